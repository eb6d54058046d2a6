"""Statements of a choice on dense and sparse: as sure as the evidence is, and no surer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tuning_samples import variant, workload

from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.dense_or_sparse import Faster
from sparsegen.dispatch.options import Dense

CHOICE = Choice(workload().problem, variant().config, How.EXACT, "for a test", expected_us=10.0)
UNSURE = ", as far as estimates tell"


@pytest.mark.parametrize(
    ("faster", "is_dense_faster", "words"),
    [
        (Faster.SPARSE, False, "sparse wins"),
        (Faster.DENSE, True, "dense wins, it runs instead"),
        *((faster, False, f"sparse wins{UNSURE}") for faster in Faster if faster not in ("sparse", "dense")),
        *(
            (faster, True, f"dense wins{UNSURE}, it runs instead")
            for faster in Faster
            if faster not in ("sparse", "dense")
        ),
    ],
)
def test_it_says_how_sure_it_is(
    monkeypatch: pytest.MonkeyPatch, faster: Faster, is_dense_faster: bool, words: str
) -> None:
    monkeypatch.setattr(Choice, "faster", faster)
    monkeypatch.setattr(Choice, "dense_is_faster", is_dense_faster)
    assert CHOICE.decision.why == words and CHOICE.use_dense is is_dense_faster


def test_what_keeps_the_dense_product_away_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Choice, "faster", Faster.DENSE)
    monkeypatch.setattr(Choice, "dense_is_faster", True)
    assert replace(CHOICE, obstacle="no PyTorch").decision.why == "dense wins, but no PyTorch: sparse runs"
    never = replace(CHOICE, policy=Dense.NEVER)
    assert never.decision.why == "dense wins, but sparse runs (dense=never)"
    always = replace(CHOICE, policy=Dense.ALWAYS)
    assert always.decision.why == "it runs instead (dense=always)"
