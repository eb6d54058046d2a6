"""The packaged coefficients are what the committed command makes of the packaged measurements."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest
from tuning_samples import H100, workload

from benchmarks import cost_model as script
from benchmarks.fitting import Known, fit
from sparsegen.kernels import family
from sparsegen.operators import SddmmProblem, SoftmaxProblem
from sparsegen.tuning.prediction.model import FILE, cost_model, expected_times
from sparsegen.tuning_db.records import Workload


@cache
def evidence() -> tuple[list[Known], int]:
    return script.evidence()


def test_the_file_is_what_the_command_makes() -> None:
    """Close, as linear algebra differs in the last bits from machine to machine."""
    variants, usual = evidence()
    made, kept = fit(variants, usual), cost_model()
    assert made.usual_registers == kept.usual_registers
    assert made.general == pytest.approx(kept.general, rel=1e-3, abs=1e-4)
    assert made.usual == pytest.approx(kept.usual, rel=1e-3, abs=1e-4)
    assert made.unlike == pytest.approx(kept.unlike, rel=1e-2)
    assert made.families.keys() == kept.families.keys()
    for name, own in made.families.items():
        assert own == pytest.approx(kept.families[name], rel=1e-2, abs=1e-3), name
    assert json.loads(FILE.read_text())["source"] == script.document(made, variants)["source"]


def test_the_first_variants_of_suites_that_were_left_out_are_good() -> None:
    """The requirement is checked on thirds of the suites: `benchmarks.cost_model quality` checks the whole."""
    variants, usual = evidence()
    names = script.suites()
    parts = script.left_out(
        variants, usual, lambda v: str(hash_of(names.get(v.workload.fingerprint, "others")) % 3)
    )
    everything = [v for inside, _ in parts.values() for v in inside]
    times = [t for _, found in parts.values() for t in found]
    found = script.Quality.of(everything, times, script.workload_of)
    assert script.geometric_mean(found.first) < 1.15
    assert script.geometric_mean(found.of_eight) < 1.05
    analytic = [v.described.analytic_us for v in everything]
    before = script.Quality.of(everything, analytic, script.workload_of)
    assert script.geometric_mean(found.first) < script.geometric_mean(before.first), "better than no model"


def hash_of(name: str) -> int:
    return sum(map(ord, name))


def test_quality_takes_ties_in_the_worst_order() -> None:
    variants = evidence()[0]
    one = [v for v in variants if script.workload_of(v) == script.workload_of(variants[0])]
    found = script.Quality.of(one, [1.0] * len(one), script.workload_of)
    assert found.first == [pytest.approx(max(v.time_us for v in one) / min(v.time_us for v in one))]


def test_searches_expect_times_of_what_the_model_orders_alone() -> None:
    of = workload()
    assert expected_times(of, [family("csr_spmm").config()], H100)
    assert expected_times(of, [family("csr_spmm").config()], replace(H100, backend="emulator")) == []
    for problem, name in (
        (SddmmProblem(128, 256, 64), "csr_sddmm"),
        (SoftmaxProblem(128, 256), "row_softmax"),
    ):
        other = Workload(problem, of.fingerprint, of.features)
        assert expected_times(other, [family(name).config()], H100) == []
