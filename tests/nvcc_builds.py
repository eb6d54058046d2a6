"""Kernels compiled by nvcc, on machines that have it: what its assembler says of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tuning_samples import H100

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not there")
GPUS = {  # by architectures
    "80": replace(H100, compute_capability=(8, 0), multiprocessors=108, shared_memory_per_block=166912),
    "86": replace(H100, compute_capability=(8, 6), multiprocessors=84, shared_memory_per_block=101376),
    "89": replace(H100, compute_capability=(8, 9), multiprocessors=142, shared_memory_per_block=101376),
    "90a": H100,
}


def ptxas(source: str, folder: Path, architecture: str = "90a") -> str:
    """Returns what the assembler says of a source, in which nothing is a warning."""
    (folder / "kernel.cu").write_text(source)
    target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    command = ["nvcc", "-cubin", "-std=c++17", target, "-Xptxas", "-v", "kernel.cu"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    return done.stderr


def registers(source: str, folder: Path, architecture: str = "90a") -> int:
    """Counts a thread's registers; the kernel spills none."""
    said = ptxas(source, folder, architecture)
    assert "0 bytes spill stores, 0 bytes spill loads" in said, said
    [found] = re.findall(r"Used (\d+) registers", said)
    return int(found)
