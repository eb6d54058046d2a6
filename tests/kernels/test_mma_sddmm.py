"""Preference for `mma_sddmm` and its heuristic, beyond the contract tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparsegen.kernels import by_predicted_time, family
from sparsegen.kernels.base import Device
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, SddmmProblem

FAMILY = family("mma_sddmm")
H100 = Device("h100", "H100", "cuda", (9, 0), 132, 232448, 233472, 50 << 20)
A100 = Device("a100", "A100", "cuda", (8, 0), 108, 166912, 167936, 40 << 20)
V100 = Device("v100", "V100", "cuda", (7, 0), 80, 98304, 98304, 6 << 20)


def causal_band(size: int, width: int) -> CsrMatrix:
    """Each row's own column and the ``width`` - 1 before it."""
    first = np.maximum(np.arange(size) - width + 1, 0)
    lengths = np.arange(size) - first + 1
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    columns = (np.repeat(first, lengths) + within).astype(np.int32)
    return CsrMatrix((size, size), offsets, columns, np.ones(columns.size, dtype=np.float32))


@pytest.mark.parametrize(
    ("dtype", "density", "k", "preferred"),
    [
        (DType.FLOAT16, 0.1, 1024, "mma_sddmm"),
        (DType.BFLOAT16, 0.1, 1024, "mma_sddmm"),
        (DType.FLOAT32, 0.3, 1024, "mma_sddmm"),
        (DType.FLOAT16, 0.005, 64, "csr_sddmm"),
        (DType.FLOAT32, 0.01, 64, "csr_sddmm"),
    ],
)
def test_dense_patterns_prefer_tensor_cores(dtype: DType, density: float, k: int, preferred: str) -> None:
    features = Features.of(random_uniform(2048, 2048, density, seed=0))
    assert by_predicted_time(SddmmProblem(2048, 2048, k, dtype), features, H100)[0].name == preferred


def test_a_sparse_band_prefers_tensor_cores_because_its_rows_share_columns() -> None:
    band = causal_band(4096, 64)
    features = Features.of(band)
    problem = SddmmProblem(4096, 4096, 128, DType.FLOAT16)
    assert features.density < 0.02
    assert by_predicted_time(problem, features, H100)[0] is FAMILY
    heuristic = FAMILY.heuristic(problem, features, H100)
    assert FAMILY.suits(problem, features, heuristic, H100)
    tiles = FAMILY.pack(problem, heuristic, band).sizes["tiles"]
    assert band.nnz > 0.25 * tiles * heuristic.tile_m * heuristic.tile_n, "tiles are well filled"


def test_scattered_nonzeros_do_not_suit() -> None:
    features = Features.of(random_uniform(4096, 4096, 0.0005, seed=0))
    problem = SddmmProblem(4096, 4096, 64, DType.FLOAT16)
    (sentence,) = FAMILY.broken_requirements(
        problem, features, FAMILY.config(tile_m=128, tile_n=256, tile_k=64)
    )
    assert sentence.startswith("tiles of 128 by 256 used columns have a nonzero in one place of 64 or more")


def test_heuristics_fill_the_device_and_fit_it() -> None:
    def heuristic(m: int, n: int, k: int, device: Device = H100):  # type: ignore[no-untyped-def]
        problem = SddmmProblem(m, n, k, DType.FLOAT16)
        features = Features.of(random_uniform(m, n, 0.1, seed=0))
        config = FAMILY.heuristic(problem, features, device)
        assert not FAMILY.broken_constraints(problem, config, device)
        return config

    large, small = heuristic(4096, 4096, 1024), heuristic(512, 512, 1024)
    assert large.tile_m * large.tile_n == 128 * 128
    assert small.tile_m * small.tile_n < 64 * 128, "a small grid"
    assert heuristic(4096, 4096, 64).stages == 2, "one stage is all there is"
    assert heuristic(4096, 4096, 16).tile_k == 32, "short rows"
    heuristic(4096, 4096, 1024, A100)


def test_float32_is_multiplied_by_warpgroups_where_there_are_some() -> None:
    problem = SddmmProblem(2048, 512, 2048, DType.FLOAT32)
    features = Features.of(random_uniform(2048, 512, 0.3, seed=0))
    heuristic = FAMILY.heuristic(problem, features, H100)
    assert heuristic.warpgroups and heuristic.splits > 1, "64 tiles of 128 by 128 do not fill the device"
    assert not FAMILY.heuristic(problem, features, A100).warpgroups
    config = FAMILY.config(tile_m=64, tile_n=128, warps_m=4, warps_n=1, warpgroups=True)
    assert not FAMILY.broken_constraints(problem, config, H100)
    broken = FAMILY.broken_constraints(
        replace(problem, dtype=DType.FLOAT16), replace(config, tile_k=64), H100
    )
    assert "warpgroups multiply float32 here" in broken


def test_older_devices_are_told() -> None:
    problem = SddmmProblem(64, 64, 64, DType.FLOAT16)
    broken = FAMILY.broken_constraints(problem, FAMILY.config(), V100)
    assert any("(7.0) has compute capability 8.0 or later" in sentence for sentence in broken)
