"""Statements of a choice on dense and sparse: as sure as the evidence is, and no surer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tuning_samples import variant, workload

from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.dense_or_sparse import Verdict
from sparsegen.dispatch.options import Dense

CHOICE = Choice(workload().problem, variant().config, How.EXACT, "for a test", expected_us=10.0)
UNSURE = ", as far as estimates tell"


@pytest.mark.parametrize(
    ("verdict", "is_dense_faster", "words"),
    [
        (Verdict.SPARSE, False, "sparse wins"),
        (Verdict.DENSE, True, "dense wins, it runs instead"),
        *(
            (verdict, False, f"sparse wins{UNSURE}")
            for verdict in Verdict
            if verdict not in ("sparse", "dense")
        ),
        *(
            (verdict, True, f"dense wins{UNSURE}, it runs instead")
            for verdict in Verdict
            if verdict not in ("sparse", "dense")
        ),
    ],
)
def test_it_says_how_sure_it_is(
    monkeypatch: pytest.MonkeyPatch, verdict: Verdict, is_dense_faster: bool, words: str
) -> None:
    monkeypatch.setattr(Choice, "verdict", verdict)
    monkeypatch.setattr(Choice, "dense_is_faster", is_dense_faster)
    monkeypatch.setattr(Choice, "use_dense", is_dense_faster)
    assert CHOICE._decision() == words


def test_what_keeps_the_dense_product_away_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Choice, "verdict", Verdict.DENSE)
    monkeypatch.setattr(Choice, "dense_is_faster", True)
    monkeypatch.setattr(Choice, "use_dense", False)
    assert replace(CHOICE, obstacle="no PyTorch")._decision() == "dense wins, but no PyTorch: sparse runs"
    never = replace(CHOICE, policy=Dense.NEVER)
    assert never._decision() == "dense wins, but sparse runs (dense=never)"
    always = replace(CHOICE, policy=Dense.ALWAYS)
    assert always._decision() == "it runs instead (dense=always)"
