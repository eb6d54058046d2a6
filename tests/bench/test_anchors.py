"""The independent measurement that ours is held against names the suites' own cases."""

from __future__ import annotations

import sys
from pathlib import Path

from sparsegen.bench.case import Case
from sparsegen.bench.suites import load_suite

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is no part of the package

from benchmarks import anchors


def test_every_peer_is_a_case_of_a_suite() -> None:
    peers = anchors.peers()
    suites = {suite for suite, _, _ in peers}
    cases: dict[tuple[str, str], Case] = {
        (name, case.name): case for name in suites for case in load_suite(name).cases
    }
    assert suites == {"rnn", "transformer", "uniform", "llm", "block", "sddmm", "spmv"}
    assert {(suite, case) for suite, case, _ in peers} == set(cases)


def test_triton_bsr_stands_at_its_best_block_size() -> None:
    times = anchors.peers()["block", "4096x4096x4096 .90 b128", "float16"]
    assert times["torch-bsr"] == 51.6 and "torch-bsr 64" not in times
