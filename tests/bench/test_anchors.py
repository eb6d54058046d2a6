"""The independent measurement that ours is held against names the suites' own cases."""

from __future__ import annotations

import sys
from pathlib import Path

from sparsegen.bench.suites import load_suite

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is no part of the package

from benchmarks import anchors


def test_every_peer_s_dtype_is_measured() -> None:
    peers = anchors.peers()
    measured = {
        (name, case.name, dtype)
        for name in {suite for suite, _, _ in peers}
        for case in load_suite(name).cases
        for dtype in case.dtypes
    }
    assert {(suite, case) for suite, case, _ in peers} == {(suite, case) for suite, case, _ in measured}
    assert len(measured & peers.keys()) >= 144, "each row in one dtype at least"


def test_triton_bsr_stands_at_its_best_block_size() -> None:
    times = anchors.peers()["block", "4096x4096x4096 .90 b128", "float16"]
    assert times["torch-bsr"] == 51.6 and "torch-bsr 64" not in times
