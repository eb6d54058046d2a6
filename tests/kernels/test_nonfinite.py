"""Infinities and NaN in rows of B that no nonzero meets: where they may reach a result, the family says so."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegen
from sparsegen.backends.emulator import device
from sparsegen.kernels import families
from sparsegen.kernels.base import AnyFamily
from sparsegen.operators import DType, Epilogue, Layout, SpmmProblem
from sparsegen.testing.variants import random_valid_config

M, K, N = 70, 96, 16
SPREADS = {  # whose tiles are multiplied whole
    "bitmap_spmm",
    "block_spmm",
    "group_spmm",
    "lane_stream_spmm",
    "mma_spmm",
    "tma_block_spmm",
    "turned_block_spmm",
}
OF_SPMM = {name: of for name, of in families().items() if of.problem_type is SpmmProblem}


def _matrix() -> Any:
    """Rows of all kinds: many empty ones, the first and the last among them, and columns that no row has."""
    dense = np.where(np.random.default_rng(0).random((M, K)) < 0.2, 1.0, 0.0)
    dense[::3] = 0
    dense[-1] = 0
    dense[:, [0, 1, 40, K - 1]] = 0  # of which B's rows hold what must not spread
    dense[4, 7] = 1
    return sp.csr_array(dense.astype(np.float32))


MATRIX = _matrix()


def _problem(of: AnyFamily) -> SpmmProblem:
    """The first kind of problem that the family computes; with a bias, which rows without nonzeros keep."""
    return next(
        problem
        for dtype in DType
        for layout in Layout
        if of.computes(problem := SpmmProblem(M, K, N, dtype, layout, Epilogue.BIAS))
    )


def _is_kept_apart(of: AnyFamily, problem: SpmmProblem, config: Any) -> bool:
    """True if the result is that of finite numbers, except in rows with a nonzero that multiplies NaN."""
    op = sparsegen.prepare(
        MATRIX, n=N, dtype=problem.dtype, layout=problem.layout, epilogue=problem.epilogue,
        family=of.name, config=config.to_dict(), device="emulator",
    )  # fmt: skip
    b = np.random.default_rng(1).integers(-2, 3, (K, N)).astype(np.float32)
    bias = np.arange(M, dtype=np.float32) % 5
    want = MATRIX @ b + bias[:, None]
    want[4], b[7] = np.nan, np.nan
    want[MATRIX[:, [7]].toarray().ravel() != 0] = np.nan
    b[[0, 1]], b[[40, K - 1]] = np.inf, np.nan
    turned = problem.layout is Layout.COLUMN  # then arrays are tokens by features
    given = problem.dtype.to_storage(np.ascontiguousarray(b.T if turned else b))
    found = problem.dtype.from_storage(np.asarray(op(given, bias=problem.dtype.to_storage(bias))))
    found = found.T if turned else found
    return bool(np.array_equal(found, want, equal_nan=True))


def _without_requirements(of: AnyFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are right on matrices that a format does not suit, too."""
    monkeypatch.setattr(type(of), "requirements", lambda *_: iter(()))


@pytest.mark.parametrize("name", sorted(OF_SPMM))
def test_heuristic_configs_do_what_they_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = OF_SPMM[name]
    _without_requirements(of, monkeypatch)
    problem = _problem(of)
    matrix = sparsegen.as_csr(MATRIX)
    config = of.heuristic(problem, problem.features(matrix), device())
    assert of.skips_zeros(problem, config) == (name not in SPREADS)
    assert _is_kept_apart(of, problem, config) == (name not in SPREADS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", sorted(OF_SPMM.keys() - SPREADS))
def test_configs_that_skip_zeros_do(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    of, rng = OF_SPMM[name], random.Random(f"{name}{seed}")
    _without_requirements(of, monkeypatch)
    problem = _problem(of)
    config = random_valid_config(of, problem, sparsegen.as_csr(MATRIX), rng)
    assert config is not None
    if of.skips_zeros(problem, config):
        assert _is_kept_apart(of, problem, config)
    else:
        assert name in ("csr_spmm", "panel_spmm")
