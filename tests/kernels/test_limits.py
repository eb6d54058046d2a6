"""Resources of a multiprocessor: blocks that share its memory, registers and threads."""

from __future__ import annotations

import pytest
from tuning_samples import H100

from sparsegen.kernels.layouts.limits import allowed_registers_fit, resident_blocks


@pytest.mark.parametrize(
    ("threads", "registers", "taken", "blocks"),
    [
        (256, 32, 0, 8),  # 2048 threads
        (256, 64, 0, 4),  # 65536 registers
        (256, 32, 56 * 1024, 4),  # 228 KiB, of which each block costs 1 KiB more than it asks for
        (256, 32, 56 * 1024 + 1, 3),
        (32, 32, 0, 32),
        (1024, 64, 227 * 1024, 1),
    ],
)
def test_blocks_share_a_multiprocessor(threads: int, registers: int, taken: int, blocks: int) -> None:
    assert resident_blocks(threads, registers, taken, H100) == blocks


def test_a_block_that_does_not_fit_counts_as_one() -> None:
    assert resident_blocks(1024, 128, 1 << 20, H100) == 1


@pytest.mark.parametrize(("registers", "holds"), [(64, True), (128, False)])
def test_registers_of_a_block(registers: int, holds: bool) -> None:
    found = allowed_registers_fit(registers, threads=1024)
    assert found.holds is holds
    assert str(1024 * registers) in found.sentence
