"""Kinds of programs that call a shipped library."""

from __future__ import annotations

from enum import StrEnum


class ProgramKind(StrEnum):
    """Kind of a shipped program."""

    COMPILED = "compiled"  # by AOTInductor, for one device and kind of machine
    EXPORTED = "exported"  # as torch.export wrote it: for every architecture of the kernels
