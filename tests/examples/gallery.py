"""Runs of the examples by the tests: in this process, with a database of its own."""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparsegen import kernels

EXAMPLES = Path(__file__).parents[2] / "examples"
ROOT = EXAMPLES.parent
# Longer than an example of the gallery, for GPUs or with packages of their own; who changes them runs them.
PROGRAMS = ("masked_cnn", "structured_dropout", "train_pruned_mlp")


def sources() -> dict[str, str]:
    """The text of every example of the gallery, by name."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("*.py"))}
    return {name: text for name, text in texts.items() if name not in PROGRAMS}


def needs_torch(name: str) -> bool:
    """True if an example imports PyTorch at its beginning."""
    return (
        re.search(r"^(import torch|from torch|    import torch$)", sources()[name], re.MULTILINE) is not None
    )


@contextmanager
def as_user(folder: Path, device: str = "emulator") -> Iterator[None]:
    """Run as a user of this device does; what an example leaves in the process is gone afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        before = dict(os.environ)
        os.environ.update(
            SPARSEGEN_DEVICE=device,
            SPARSEGEN_DB=str(folder / "tuning.db"),
            PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        )
        patch.syspath_prepend(str(EXAMPLES))
        patch.setattr(kernels, "_taken_up", {})
        patch.setattr(kernels, "_loaded", dict(kernels._loaded))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def run(name: str, folder: Path, *arguments: str, device: str = "emulator") -> None:
    """Run an example as the main program."""
    file = EXAMPLES / f"{name}.py"
    with as_user(folder, device), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(file), *arguments])
        runpy.run_path(str(file), run_name="__main__")
