"""The file of a shipped folder that loads it: Python that needs PyTorch alone."""

from __future__ import annotations

from pathlib import Path

from sparsegen.plan.shipping.program import ProgramKind

LOADER = "load.py"


def write_loader(folder: Path, kind: ProgramKind) -> None:
    """Write the file into a folder of a library and a program."""
    source = Path(__file__).with_name(f"load_{kind.value}.py").read_text(encoding="utf-8")
    (folder / LOADER).write_text(source, encoding="utf-8")
