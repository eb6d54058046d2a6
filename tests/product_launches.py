"""Launches of masked products' families under the sanitizers, on masks that the problem draws."""

from __future__ import annotations

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import families
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.operators import MaskedProblem
from sparsegen.render import render
from sparsegen.testing.kinds import Kind
from sparsegen.testing.launches import run_and_compare
from sparsegen.testing.variants import Variant


def compare(
    toolchain: EmulatorToolchain, problem: MaskedProblem, config: Config, on: Device, before: str = ""
) -> None:
    """Hold a config's result against the reference.

    Args:
        on: a device that the config is valid on.
        before: lines in front of the kernel's source.
    """
    found = families()[config.declared_by]
    assert not found.broken_constraints(problem, config, on)
    source, matrix = before + render(found, problem, config), problem.without_pattern
    kernel = toolchain.compile_sanitized(found.name, found.entry, source)
    variant = Variant(found, config, Kind(type(problem), (), ()), (), source)
    packed = found.pack(problem, config, matrix)
    run_and_compare(variant, kernel, problem, matrix, packed, where=str(config))
