"""The model of dense products: on the seeds' shapes, and what measured ones near say."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from sparsegen.backends import emulator_device
from sparsegen.dispatch.dense_time import (
    Known,
    dense_time_us,
    is_modelled,
    is_near,
    known_products,
    loaded_bytes,
    modelled_us,
)
from sparsegen.kernels.base import Device
from sparsegen.operators import DType, Layout, SddmmProblem, SpmmProblem
from sparsegen.tuning.prediction.targets import find_target
from sparsegen.tuning_db.seeds_reader import packaged


def measured() -> tuple[Device, list[Known]]:
    """The median of cuBLAS's times of each shape in the seeds."""
    times: dict[SpmmProblem, list[float]] = {}
    baselines = [b for b in packaged().all_baselines() if b.name == "cublas"]
    for b in baselines:
        p = b.workload.problem
        if isinstance(p, SpmmProblem) and p.batch == 1:
            times.setdefault(SpmmProblem(p.m, p.k, p.n, p.dtype, p.layout), []).append(b.sample.median_us)
    return baselines[0].device, [Known(problem, median(found)) for problem, found in times.items()]


@pytest.fixture(scope="module")
def device() -> Device:
    return measured()[0]


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32])
def test_shapes_are_estimated_from_the_others(dtype: DType) -> None:
    device, every = measured()
    known = [one for one in every if one.problem.dtype is dtype]
    others = ([other for other in known if other is not one] for one in known)
    estimates = [dense_time_us(one.problem, device, rest) for one, rest in zip(known, others, strict=True)]
    off = np.array([abs(math.log(us / one.time_us)) for us, one in zip(estimates, known, strict=True)])
    assert len(known) > 25
    assert np.exp(np.quantile(off, 0.9)) < 1.25 and np.exp(off.max()) < 2.0


def test_equal_sizes_are_the_answer(device: Device) -> None:
    one = SpmmProblem(512, 512, 256)
    others = [Known(replace(one, n=n), 99.0) for n in (255, 257)]
    assert dense_time_us(one, device, [*others, Known(one, 7.0)]) == pytest.approx(7.0)


def test_what_is_near_puts_the_model_right_and_what_is_far_does_not(device: Device) -> None:
    problem = SpmmProblem(2048, 2048, 512, DType.FLOAT16)
    alone = modelled_us(problem, device)
    near, far = replace(problem, n=600), SpmmProblem(64, 64, 16, DType.FLOAT16)
    by_near, by_far = (
        dense_time_us(problem, device, [Known(other, 2 * modelled_us(other, device))])
        for other in (near, far)
    )
    assert 1.6 * alone < by_near < 2 * alone and by_far < 1.05 * alone
    assert dense_time_us(problem, device) == alone


def test_bfloat16_goes_by_its_own_rate(device: Device) -> None:
    large = SpmmProblem(8192, 8192, 8192, DType.BFLOAT16)
    rates = device.expected_rates
    twice = replace(device, rates=replace(rates, bfloat16_flop_per_us=2 * rates.bfloat16_flop_per_us))
    assert modelled_us(large, twice) < 0.6 * modelled_us(large, device)
    half = replace(large, dtype=DType.FLOAT16)
    assert modelled_us(half, twice) == modelled_us(half, device)


def test_more_work_takes_longer(device: Device) -> None:
    sizes = [SpmmProblem(s, s, s, DType.FLOAT16) for s in (256, 1024, 4096, 16384)]
    times = [modelled_us(problem, device) for problem in sizes]
    assert times == sorted(times) and times[-1] > 30 * times[-2]


@pytest.mark.parametrize("dtype", DType)
def test_the_smallest_products_take_hardly_more_than_a_launch(device: Device, dtype: DType) -> None:
    for k in (1, 63, 64, 65):
        assert 5 < modelled_us(SpmmProblem(1, k, 1, dtype), device) < 11


def test_what_it_is_of(device: Device) -> None:
    problem = SpmmProblem(64, 64, 64)
    assert is_modelled(problem, device)
    assert not is_modelled(replace(problem, batch=2), device)
    assert not is_modelled(SddmmProblem(64, 64, 64), device)
    assert not is_modelled(problem, emulator_device())
    column = replace(problem, layout=Layout.COLUMN)
    given = {problem: 3.0, replace(problem, batch=4): 9.0, SddmmProblem(64, 64, 64): 5.0, column: 4.0}
    assert known_products(given) == [Known(problem, 3.0), Known(column, 4.0)]


def test_rows_that_no_chunk_divides_take_longer() -> None:
    """600 × 4946 × 6456 took 205 µs on an H200, column-major, and 10750 × 832 × 4659 734; float32 has whole chunks
    enough.
    """
    odd = SpmmProblem(600, 4946, 6456, DType.BFLOAT16, layout=Layout.COLUMN)
    by_rows = replace(odd, layout=Layout.ROW)
    assert [loaded_bytes(replace(odd, k=k)) for k in (4943, 4946, 4948, 4944)] == [2, 4, 8, 16]
    assert loaded_bytes(by_rows) == 16 and loaded_bytes(replace(by_rows, m=601)) == 4
    assert loaded_bytes(replace(odd, n=6457, k=4944)) == 16
    assert loaded_bytes(replace(by_rows, n=6457, k=4944)) == 2
    assert loaded_bytes(replace(odd, dtype=DType.FLOAT32)) == 16
    h200 = find_target("nvidia-h200").device
    assert dense_time_us(odd, h200) == pytest.approx(205, rel=0.1)
    assert 2.5 < dense_time_us(odd, h200) / dense_time_us(replace(odd, k=4944), h200) < 3.5
    by_elements = SpmmProblem(10750, 832, 4659, DType.BFLOAT16)
    assert dense_time_us(by_elements, h200) == pytest.approx(734, rel=0.15)


def test_what_is_far_is_not_near() -> None:
    here, there = SpmmProblem(64, 512, 64), SpmmProblem(64, 4096, 64)
    assert is_near(here, [Known(here, 1.0)]) and is_near(here, [Known(replace(here, k=2000), 1.0)])
    assert not is_near(here, [Known(there, 1.0)]) and not is_near(here, [])
