"""`scatter_spmm`: how it packs, that it leaves its scratch memory as it was, and where it is not tried."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tuning_samples import H100

import sparsegen
from sparsegen.backends.emulator import device
from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import ConfigError
from sparsegen.kernels import by_predicted_time, families_of
from sparsegen.kernels.spmm.scatter_spmm import FAMILY, MOST_SUM_BYTES, ScatterSpmmConfig
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import uniform_rows
from sparsegen.operators import DType, Epilogue, ItemValues, Layout, SpmmProblem
from sparsegen.render import render
from sparsegen.testing.launches import call
from sparsegen.testing.matrices import csr, matrices
from sparsegen.tuning.space.space import Space
from sparsegen.verify.bounds import worst_error

MATRIX = uniform_rows(512, 256, 40, 0)  # 80 nonzeros in a column
DEVICES = {"80": replace(H100, compute_capability=(8, 0)), "90a": H100}


def problem_of(matrix: CsrMatrix, n: int = 40, **traits: object) -> SpmmProblem:
    return SpmmProblem(*matrix.shape, n, **traits)  # type: ignore[arg-type]


# --- packing ---


@pytest.mark.parametrize("panel_m", [32, 256])
@pytest.mark.parametrize("name", matrices())
def test_tasks_hold_every_nonzero_once_and_by_columns(name: str, panel_m: int) -> None:
    matrix = matrices()[name]
    config = ScatterSpmmConfig(panel_m=panel_m, task_nonzeros=256)
    packed = FAMILY.pack(problem_of(matrix), config, matrix)
    tasks = packed.arrays["tasks"][: 4 * packed.sizes["task_count"]].reshape(-1, 4)
    rows, columns, values = (packed.arrays[part] for part in ("rows", "columns", "values"))
    panels = -(-matrix.shape[0] // panel_m)
    assert set(tasks[:, 2]) == set(range(panels)), "somebody writes each panel"
    rebuilt = np.zeros(matrix.shape, dtype=np.float32)
    reached = 0
    for begin, count, panel, of_panel in tasks:
        assert begin == reached and count <= 256
        assert of_panel == np.count_nonzero(tasks[:, 2] == panel)
        assert count > 0 or of_panel == 1, "only a panel without nonzeros has an empty task"
        reached += count
        task = slice(begin, begin + count)
        places = columns[task].astype(np.int64) * panel_m + rows[task]
        assert (np.diff(places) > 0).all() and (rows[task] < panel_m).all()
        rebuilt[panel * panel_m + rows[task], columns[task]] = values[task]
    assert reached == matrix.nnz
    np.testing.assert_array_equal(rebuilt, matrix.to_scipy().toarray())


def test_a_full_panel_is_cut_to_tasks() -> None:
    packed = FAMILY.pack(problem_of(MATRIX), ScatterSpmmConfig(panel_m=128, task_nonzeros=1024), MATRIX)
    tasks = packed.arrays["tasks"].reshape(-1, 4)
    assert packed.sizes["task_count"] == 4 * 5
    assert tasks[:5].tolist() == [[1024 * i, 1024, 0, 5] for i in range(5)]


def test_scratch_serves_every_width_of_vectors() -> None:
    """They do not pack: what one config packed, another runs with."""
    problem = problem_of(MATRIX, 96, batch=3)
    scratch = FAMILY.pack(problem, ScatterSpmmConfig(), MATRIX).scratch
    assert scratch == {"sums": 3 * 512 * 96 * 4, "counters": 3 * 4 * 3 * 4}


# --- what it computes ---


@pytest.mark.sanitizer
@pytest.mark.parametrize("epilogue", [Epilogue.NONE, Epilogue.BIAS_RESIDUAL])
def test_launch_after_launch_is_right_and_leaves_scratch_zero(
    epilogue: Epilogue, emulator_toolchain: EmulatorToolchain
) -> None:
    problem = problem_of(
        MATRIX, 36, dtype=DType.FLOAT16, epilogue=epilogue, batch=2, item_values=ItemValues.OWN
    )
    config = ScatterSpmmConfig(vector=2, panel_m=64, task_nonzeros=256, warps=4)
    packed = FAMILY.pack(problem, config, MATRIX)
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, render(FAMILY, problem, config))
    operands = problem.random_operands(np.random.default_rng(0), MATRIX.nnz)
    reference = problem.reference(MATRIX, operands)
    launch = call(FAMILY, problem, config, packed, operands, MATRIX.nnz)
    for _ in range(3):
        arrays = run_sanitized(kernel.binary, launch.launch, launch.arguments)
        assert worst_error(reference, arrays[launch.result]) <= 1
        assert len(launch.scratch) == 2 and not any(arrays[place].any() for place in launch.scratch)
        launch = launch.again(arrays)


def test_infinities_reach_only_rows_with_a_nonzero_there() -> None:
    dense = np.zeros((40, 50), dtype=np.float32)
    dense[::2, ::5] = 1.0
    dense[7, 21] = 1.0
    b = np.ones((50, 40), dtype=np.float32)
    b[20] = np.nan
    b[21] = np.inf
    operator = sparsegen.prepare(csr(dense), n=40, family=FAMILY.name, device="emulator")
    for _ in range(2):
        result = operator(b)
        assert np.isinf(result[7]).all() and np.isnan(result[::2]).all()
        empty = [row for row in range(1, 40, 2) if row != 7]
        np.testing.assert_array_equal(result[empty], np.zeros((len(empty), 40)))


# --- where it is tried ---


def test_what_it_does_not_compute_is_said_in_words() -> None:
    column = problem_of(MATRIX, 30, layout=Layout.COLUMN)
    with pytest.raises(
        ConfigError, match=r"\(column\) are row-major; vector \(4\) divides n \(30\).*half of a warp"
    ):
        FAMILY.require_valid(column, ScatterSpmmConfig(vector=4), H100)
    with pytest.raises(ConfigError, match=r"at most 2097120 columns \(2097121\)"):
        FAMILY.require_valid(problem_of(MATRIX, 2097121), ScatterSpmmConfig(), H100)


def test_it_does_not_suit_sums_beyond_l2_or_nearly_empty_columns() -> None:
    config, features = ScatterSpmmConfig(), Features.of(MATRIX)
    fits = problem_of(MATRIX, MOST_SUM_BYTES // (4 * MATRIX.shape[0]))
    assert not FAMILY.broken_requirements(fits, features, config)
    [sentence] = FAMILY.broken_requirements(replace(fits, n=fits.n + 1), features, config)
    assert "stay in L2: at most 26214400 bytes" in sentence
    [sentence] = FAMILY.broken_requirements(replace(fits, batch=2), features, config)
    assert "(52428800 bytes)" in sentence
    thin = uniform_rows(512, 256, 1, 0)
    [sentence] = FAMILY.broken_requirements(problem_of(thin), Features.of(thin), config)
    assert "4 nonzeros or more on average (2.00)" in sentence
    with pytest.raises(ConfigError, match="does not suit this matrix"):
        sparsegen.prepare(thin, n=8, family=FAMILY.name, device="emulator")


def test_a_search_tries_all_of_it_or_says_why_not() -> None:
    features = Features.of(MATRIX)
    space = Space.build([FAMILY], problem_of(MATRIX, 128), H100, features=features)
    assert len(space.candidates) == 3 * 4 * 3 * 3 and not space.left_out
    space = Space.build([FAMILY], problem_of(MATRIX, 128, batch=400), H100, features=features)
    assert not space.candidates and "stay in L2" in space.left_out[FAMILY.name]
    low = uniform_rows(40, 64, 20, 0)
    space = Space.build([FAMILY], problem_of(low, 32), H100, features=Features.of(low))
    assert {c.panel_m for c in space.candidates} == {32, 64}


def test_it_is_never_the_rule_of_thumb() -> None:
    features = Features.of(MATRIX)
    for n, dtype in itertools.product((1, 2, 8, 31, 32, 128, 4096), DType):
        order = [f.name for f in by_predicted_time(problem_of(MATRIX, n, dtype=dtype), features, H100)]
        assert order.index(FAMILY.name) > order.index("csr_spmm")
    assert FAMILY in families_of("spmm") and not FAMILY.deterministic


def test_heuristics_fill_lanes() -> None:
    features = Features.of(MATRIX)
    for n, vector in ((1, 1), (32, 1), (64, 2), (66, 2), (128, 4), (130, 2), (129, 1), (256, 4)):
        problem = problem_of(MATRIX, n)
        config = FAMILY.heuristic(problem, features, device())
        assert config.vector == vector and not FAMILY.broken_constraints(problem, config, device())


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not there")
@pytest.mark.parametrize("vector", [2, 4])
@pytest.mark.parametrize("architecture", DEVICES)
def test_nvcc_compiles_it_without_spills(architecture: str, vector: int, tmp_path: Path) -> None:
    problem = problem_of(MATRIX, 132, dtype=DType.BFLOAT16, epilogue=Epilogue.BIAS_RESIDUAL, batch=2)
    config = ScatterSpmmConfig(vector=vector, warps=16)
    assert not FAMILY.broken_constraints(problem, config, DEVICES[architecture])
    (tmp_path / "kernel.cu").write_text(render(FAMILY, problem, config))
    target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    command = ["nvcc", "-cubin", "-std=c++17", target, "-Xptxas", "-v", "-o", "kernel.cubin", "kernel.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in done.stderr
