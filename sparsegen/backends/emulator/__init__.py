"""Runs the generated CUDA source, unchanged, on the CPU: one fiber for each CUDA thread.

It proves what a kernel computes and that it touches only what it may; it proves neither speed nor the GPU's
memory model. A small runtime in C++ lies beside this file; `toolchain` compiles a variant with the host's
compiler, `executor` runs it in this process, `sanitized` in a child process under AddressSanitizer and
UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import os

from sparsegen.kernels.base import Device

CORES = os.cpu_count() or 1


def device(index: int = 0) -> Device:
    """The CPU in the guise of an H100, so that families declare the same configs valid on both.

    Args:
        index: number of the device, if the CPU passes for several.
    """
    return Device(
        key="emulator",
        name="emulator (CPU)",
        backend="emulator",
        compute_capability=(9, 0),
        multiprocessors=CORES,
        shared_memory_per_block=232448 - 1024,
        shared_memory_per_multiprocessor=233472,
        l2_bytes=50 << 20,
        index=index,
    )
