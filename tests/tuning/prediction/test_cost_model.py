"""The cost model's arithmetic, and its fit to times that are made of known coefficients."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from tuning_samples import H100, workload

from benchmarks.fitting import Known, fit, fit_without, known, usual_registers
from sparsegen.kernels import family
from sparsegen.tuning.prediction.model import FARTHEST, STEEPEST, CostModel, cost_model, difference_from
from sparsegen.tuning.prediction.terms import Described, Resources

NOTHING = CostModel({"": 0.0}, {}, {}, 0.0, 64)
HALF = Described("csr_spmm", 10.0, 0.5, {"waves": 2.0}, {"tile_n": 3.0})


def test_a_correction_counts_by_the_share_that_is_not_the_launch() -> None:
    assert NOTHING.corrected_us(HALF) == 10.0
    slow = replace(NOTHING, general={"": 0.1, "waves": 0.2}, usual={"waves": 0.0})
    assert slow.corrected_us(HALF) == pytest.approx(10 * math.exp(0.5 * 0.5))
    own = replace(NOTHING, families={"csr_spmm": {"tile_n": -0.1, "tile_k": 9.0}})
    assert own.corrected_us(HALF) == pytest.approx(10 * math.exp(-0.5 * 0.3))
    assert own.without("csr_spmm").corrected_us(HALF) == 10.0
    unlike = replace(NOTHING, unlike=0.2)
    assert unlike.corrected_us(HALF, 1.0) == pytest.approx(10 * math.exp(0.5 * 0.2))
    assert unlike.corrected_us(HALF, 50.0) == unlike.corrected_us(HALF, FARTHEST)
    far = replace(NOTHING, general={"": 99.0})
    assert far.corrected_us(HALF) == pytest.approx(10 * math.exp(0.5 * STEEPEST))


def test_what_is_not_known_is_usual() -> None:
    model = replace(NOTHING, general={"": 0.0, "registers": 0.3}, usual={"registers": 6.0})
    assert model.corrected_us(HALF) == pytest.approx(10 * math.exp(0.5 * 1.8))


def test_the_digest_names_the_coefficients() -> None:
    assert NOTHING.digest == replace(NOTHING, families={}).digest
    assert NOTHING.digest != replace(NOTHING, unlike=0.1).digest
    assert CostModel(**json.loads(json.dumps(cost_model().to_dict()))).digest == cost_model().digest


def test_differences_from_what_was_measured() -> None:
    csr, mma = family("csr_spmm"), family("mma_spmm")
    base = csr.config()
    near, far = csr.config(tile_n=128), csr.config(row_order="natural", staging="shared")
    assert difference_from([base], [base, far]) == [0.0, 2.0]
    assert 0 < difference_from([base], [near])[0] < 1
    assert difference_from([mma.config()], [base]) == difference_from([], [base]) == [FARTHEST]


def made_up(count: int = 400) -> tuple[list[Known], int]:
    """Times that go with the square root of registers, and with a word of one family."""
    rng = np.random.default_rng(5)
    csr, panel = family("csr_spmm"), family("panel_spmm")
    measured = []
    for number in range(count):
        of = workload(int(rng.choice([64, 128, 512])), m=4096, k=2048, nnz=400_000, tag=f"{number % 25}")
        if rng.integers(2):
            config = csr.config(
                tile_n=int(rng.choice([32, 64, 128])), staging=str(rng.choice(["shared", "shared_async"]))
            )
        else:
            config = panel.config(tile_n=int(rng.choice([32, 64])), step=int(rng.choice([4, 8])))
        resources = Resources(int(rng.choice([32, 48, 64, 96, 128])))
        described = Described.of(of, config, H100, resources, 64)
        log = 0.35 * (described.general["registers"] - 6)
        log += 0.4 * ("staging=shared" in described.own)
        noise = 0.01 * float(rng.normal())
        measured.append(
            (of, H100, config, described.analytic_us * math.exp(described.share * log + noise), resources)
        )
    return known(measured, 64), usual_registers(resources for *_, resources in measured)


def test_a_fit_finds_what_times_were_made_of() -> None:
    variants, usual = made_up()
    assert usual == pytest.approx(67, abs=8)
    model = fit(variants, usual)
    assert model.general["registers"] == pytest.approx(0.35, abs=0.03)
    own = model.families["csr_spmm"]
    assert own["staging=shared"] - own["staging=shared_async"] == pytest.approx(0.4, abs=0.06)
    errors = [math.log(model.corrected_us(v.described) / v.time_us) for v in variants]
    assert np.std(errors) < 0.05 and abs(np.mean(errors)) < 0.02
    assert min(v.slowdown for v in variants) == 1.0


def test_what_is_left_out_has_no_say() -> None:
    variants, usual = made_up(200)
    model = fit_without(variants, usual, lambda v: v.config.family_name == "csr_spmm")
    assert set(model.families) == {"panel_spmm"}
    spoiled = [
        replace(v, time_us=v.time_us * 7) if v.config.family_name == "csr_spmm" else v for v in variants
    ]
    assert fit_without(spoiled, usual, lambda v: v.config.family_name == "csr_spmm") == model
