"""Cost model and neighbours: which of them chooses a family."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tuning_samples import DIGEST, H100, timed, workload

from sparsegen.dispatch import neighbours
from sparsegen.dispatch.choice import Choice, How, choose
from sparsegen.dispatch.evidence import Evidence
from sparsegen.dispatch.neighbours import predict
from sparsegen.kernels import families_of, family
from sparsegen.kernels.base import AnyFamily
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import Measurement, Variant, Workload

ASKED = workload(n=256, m=256, k=2304, nnz=59_000, tag="asked")
NEAR = workload(n=256, m=1024, k=1024, nnz=420_000)


@pytest.fixture(autouse=True)
def all_families_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "families_of", families_of)


def modelled(of: AnyFamily, where: Workload) -> float:
    return of.predicted_us(where.problem, where.features, H100)


def measured(name: str, us: float, on: Workload = NEAR) -> Measurement:
    """The heuristic config of a family, as it was measured on a workload."""
    config = family(name).heuristic(on.problem, on.features, H100)
    return replace(timed(us, on), variant=Variant(config, DIGEST))


def as_modelled(on: Workload = NEAR) -> list[Measurement]:
    """All families as fast as the model says."""
    return [measured(f.name, modelled(f, on), on) for f in families_of("spmm") if modelled(f, on) < 1e6]


def ask(known: list[Measurement], of: Workload = ASKED) -> Choice:
    return choose(of, H100, MemoryLayer(known, []))


def test_a_family_that_should_be_faster_here_is_used() -> None:
    """Families changed places between the neighbour and here, and the model was right about the neighbour."""
    there = min(as_modelled(), key=lambda m: m.time_us if hasattr(m, "time_us") else m.sample.median_us)
    here = min(families_of("spmm"), key=lambda f: modelled(f, ASKED))
    assert there.variant.family != here.name
    found = ask(as_modelled())
    assert (found.how, found.family) == (How.NEAREST, here)
    assert found.expected_us == pytest.approx(modelled(here, ASKED), rel=0.1)


def test_a_model_that_was_wrong_about_a_family_near_is_corrected() -> None:
    here = min(families_of("spmm"), key=lambda f: modelled(f, ASKED))
    close = replace(ASKED, fingerprint=NEAR.fingerprint, features=replace(ASKED.features, nnz=70_000))
    slow = [
        measured(m.variant.family, 4 * modelled(here, close), close) if m.variant.family == here.name else m
        for m in as_modelled(close)
    ]
    assert ask(as_modelled(close)).family is here
    assert ask(slow).family is not here


def test_few_records_of_equal_sizes_do_not_keep_a_faster_family_out() -> None:
    """The very sizes and nearly the same row lengths were measured, of one slow family alone."""
    here = min(families_of("spmm"), key=lambda f: modelled(f, ASKED))
    twin = replace(ASKED, fingerprint=NEAR.fingerprint)
    slow = measured("mma_spmm", 1.5 * modelled(family("mma_spmm"), twin), twin)
    assert 1.5 * modelled(family("mma_spmm"), twin) > 2 * modelled(here, twin)
    found = ask([slow])
    assert (found.how, found.family.name) != (How.BUCKET, "mma_spmm")
    best = measured(here.name, modelled(here, twin), twin)
    assert ask([slow, best]).how is How.BUCKET


def test_a_neighbour_for_which_a_config_is_invalid_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is of another config: what is expected rests on the other neighbour."""
    monkeypatch.setattr(neighbours, "families_of", lambda operator: ())
    narrow = workload(n=63, m=256, k=2304, nnz=59_000, tag="narrow")  # no vector of four divides 63
    wide = timed(10.0, ASKED, dense_vector_width=4)
    near = [
        Evidence.of(ASKED, H100, [wide]),
        Evidence.of(narrow, H100, [timed(20.0, narrow, dense_vector_width=1)]),
    ]
    found = predict(ASKED, H100, near, is_allowed=lambda config: True)
    (first,) = [p for p in found if p.config == wide.variant.config]
    assert first.expected_us == pytest.approx(10.0, rel=0.1)
