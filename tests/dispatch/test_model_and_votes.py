"""Votes of neighbours, and a cost model that knows better: which of them chooses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tuning_samples import DIGEST, H100, timed, workload

from sparsegen.dispatch import modelled as dispatch
from sparsegen.dispatch.choice import Choice, How, choose
from sparsegen.dispatch.neighbours import Neighbour, predict
from sparsegen.kernels import family
from sparsegen.kernels.base import AnyFamily
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import Measurement, Variant, Workload

ASKED = workload(n=256, m=256, k=2304, nnz=59_000, tag="asked")
NEAR = workload(n=256, m=1024, k=1024, nnz=420_000)


@pytest.fixture(autouse=True)
def the_model_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "WORTH_ANOTHER", 1.15)


def modelled(of: AnyFamily, where: Workload) -> float:
    return of.predicted_us(where.problem, where.features, H100)


def measured(name: str, us: float) -> Measurement:
    """The heuristic config of a family, as it was measured on the neighbour."""
    config = family(name).heuristic(NEAR.problem, NEAR.features, H100)
    return replace(timed(us, NEAR), variant=Variant(config, DIGEST))


def ask(known: list[Measurement]) -> Choice:
    return choose(ASKED, H100, MemoryLayer(known, []))


def test_a_family_that_should_be_faster_here_is_used() -> None:
    """Two families changed places between the neighbour and here, and the model was right about the neighbour."""
    csr, mma = family("csr_spmm"), family("mma_spmm")
    assert modelled(csr, ASKED) * 1.5 < modelled(mma, ASKED)
    found = ask([measured("mma_spmm", modelled(mma, NEAR)), measured("csr_spmm", 1.3 * modelled(mma, NEAR))])
    assert found.how is How.DEFAULT and found.family is csr
    assert "csr_spmm should take" in found.why and "mma_spmm, the best where it was measured" in found.why


def test_a_model_that_was_wrong_about_the_neighbour_is_not_asked() -> None:
    slow = 2 * modelled(family("mma_spmm"), NEAR)
    found = ask([measured("mma_spmm", slow), measured("csr_spmm", 1.3 * slow)])
    assert found.how is How.NEAREST and found.family.name == "mma_spmm"


def test_a_family_that_nobody_tried_near_is_not_used_for_little() -> None:
    found = ask([measured("mma_spmm", modelled(family("mma_spmm"), NEAR))])
    assert found.family.name == "mma_spmm" or "was tried on nothing near" in found.why


def test_a_neighbour_for_which_a_config_is_invalid_does_not_count() -> None:
    """Its inferred time is of other configs: what is expected rests on the other neighbour alone."""
    narrow = workload(n=63, m=256, k=2304, nnz=59_000, tag="narrow")  # no vector of four divides 63
    wide = timed(10.0, ASKED, dense_vector_width=4)
    near = [
        (Neighbour(ASKED, H100, 0.2), [wide]),
        (Neighbour(narrow, H100, 0.1), [timed(500.0, narrow, dense_vector_width=1)]),
    ]
    found = predict(ASKED, H100, near, is_allowed=lambda config: True)
    (first,) = [p for p in found if p.config == wide.variant.config]
    assert first.expected_us(ASKED.problem, ASKED.features, H100) == pytest.approx(10.0)
