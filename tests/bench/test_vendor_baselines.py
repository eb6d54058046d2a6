"""The baselines that call NVIDIA's libraries, with a library that accepts everything and computes nothing.

What it checks is the calls: every implementation is there, with as many arguments as the C prototypes have.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import pytest

from sparsegen.backends import emulator_device, open_executor
from sparsegen.bench.baseline.baseline import Implementation, UnsupportedError
from sparsegen.bench.baseline.inputs import InputsMaker
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines import baselines, cusparse_sddmm
from sparsegen.bench.baselines import cublaslt as cublaslt_baselines
from sparsegen.bench.baselines import cusparse as cusparse_baselines
from sparsegen.bench.baselines.cublaslt import by_call
from sparsegen.bench.baselines.cusparse_layers import from_to
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.patterns.patterns import Blocks, Drawn
from sparsegen.measure.baselines import cublas, cublaslt, cusparse, libraries
from sparsegen.operators import (
    DsdProblem,
    DType,
    Layout,
    Problem,
    SddmmProblem,
    SddProblem,
    SparseNetworkProblem,
    SpmmProblem,
)
from sparsegen.settings import Settings
from sparsegen.system.device_memory import Buffer

PARAMETERS = {  # of the functions in cublas_api.h, cublasLt.h and cusparse.h
    "cublasCreate_v2": 1,
    "cublasDestroy_v2": 1,
    "cublasGetVersion_v2": 2,
    "cublasGemmEx": 19,
    "cublasLtCreate": 1,
    "cublasLtDestroy": 1,
    "cublasLtMatmul": 16,
    "cublasLtMatmulAlgoCapGetAttribute": 5,
    "cublasLtMatmulAlgoCheck": 8,
    "cublasLtMatmulAlgoConfigSetAttribute": 4,
    "cublasLtMatmulAlgoGetHeuristic": 10,
    "cublasLtMatmulAlgoGetIds": 10,
    "cublasLtMatmulAlgoInit": 9,
    "cublasLtMatmulDescCreate": 3,
    "cublasLtMatmulDescDestroy": 1,
    "cublasLtMatmulDescSetAttribute": 4,
    "cublasLtMatmulPreferenceCreate": 1,
    "cublasLtMatmulPreferenceDestroy": 1,
    "cublasLtMatmulPreferenceSetAttribute": 4,
    "cublasLtMatrixLayoutCreate": 5,
    "cublasLtMatrixLayoutDestroy": 1,
    "cusparseCreate": 1,
    "cusparseDestroy": 1,
    "cusparseGetVersion": 2,
    "cusparseCreateCsr": 11,
    "cusparseCreateCoo": 10,
    "cusparseCreateBsr": 14,
    "cusparseCreateBlockedEll": 10,
    "cusparseCreateDnMat": 7,
    "cusparseSpMM_bufferSize": 11,
    "cusparseSpMM_preprocess": 11,
    "cusparseSpMM": 11,
    "cusparseSDDMM_bufferSize": 11,
    "cusparseSDDMM_preprocess": 11,
    "cusparseSDDMM": 11,
}
REFUSED = 10


class Library:
    """Answers every function with success, or refuses those it is told to."""

    def __init__(self, *refused: str) -> None:
        self.called: Counter[str] = Counter()
        self._refused = refused

    def __getattr__(self, name: str) -> Callable[..., int]:
        def function(*arguments: object) -> int:
            assert len(arguments) == PARAMETERS[name], name
            self.called[name] += 1
            if "Create" in name and not name.startswith("cusparseCreateD"):
                arguments[0]._obj.value = 1  # type: ignore[attr-defined]  # what ctypes.byref points to
            if name == "cublasLtMatmulAlgoCapGetAttribute":  # two tiles or stages
                arguments[2][:2] = [7, 9]  # type: ignore[index]
                arguments[-1]._obj.value = 8  # type: ignore[attr-defined]
            if name in ("cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmulAlgoGetIds"):
                arguments[-1]._obj.value = 2  # type: ignore[attr-defined]
            return REFUSED if name in self._refused else 0

        return function


SPMM = SpmmProblem(64, 96, 16, DType.FLOAT16, Layout.COLUMN)
SDDMM = SddmmProblem(64, 96, 8, DType.FLOAT16)
Prepared = Callable[[str, Problem, Library], list[Implementation]]


@pytest.fixture
def implementations(tmp_path: Path, emulator_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """The implementations of a baseline for a matrix of dense blocks, each run once."""
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))

    def prepare(name: str, problem: Problem, library: Library) -> list[Implementation]:
        for module in (libraries, cublas, cublaslt, cusparse, cusparse_baselines, cusparse_sddmm):
            monkeypatch.setattr(module, "find_library", lambda _: library)
        pattern = Blocks(64, 96, 0.5, 32) if problem.has_pattern else Drawn(64, 96)
        case = Case("t", "t", problem, (problem.dtype,), pattern, "")
        bench = Workbench(InputsMaker(tmp_path).make(case, DType.FLOAT16), open_executor(emulator_device()))
        found = list(baselines()[name].implementations(bench))
        for implementation in found:
            implementation.clear()
            implementation.run()
            assert implementation.read().shape == problem.result(bench.features.nnz).shape
            assert implementation.preparation_ms > 0 and implementation.memory_bytes >= 0
        return found

    return prepare


@pytest.mark.parametrize(
    ("name", "problem", "details"),
    [
        ("cublas", SPMM, ["dense float16, A row-major", "dense float16, A column-major"]),
        ("cublas", SDDMM, ["the whole product, C row-major", "the whole product, C column-major"]),
        ("cublas", DsdProblem(64, 96, 16, DType.FLOAT16), ["masked elements are zeros"]),
        ("cublas", SddProblem(64, 96, 16, DType.FLOAT16), ["the whole product"]),
        (
            "cublaslt",
            DsdProblem(64, 96, 16, DType.FLOAT16),
            [f"masked elements are zeros, algorithm {place}" for place in (1, 2)],
        ),
        ("cublaslt", SddProblem(64, 96, 16), [f"the whole product, algorithm {place}" for place in (1, 2)]),
        (
            "cusparse-csr",
            SPMM,
            [f"CSR {a}, {o}-major" for o in ("row", "column") for a in cusparse.CSR_ALGORITHMS],
        ),
        (
            "cusparse-coo",
            SPMM,
            [f"COO {a}, {o}-major" for o in ("row", "column") for a in cusparse.COO_ALGORITHMS],
        ),
        (
            "cusparse-blocked-ell",
            SPMM,
            [f"Blocked-ELL {size} alg1, {o}-major" for size in (32, 16) for o in ("row", "column")],
        ),
        (
            "cusparse-bsr",
            SPMM,
            [f"BSR {size} alg1, {o}-major" for size in (32, 16) for o in ("row", "column")],
        ),
        ("cusparse-sddmm", SDDMM, ["B column-major", "B row-major"]),
        pytest.param(
            "cusparse-layers",
            SparseNetworkProblem(64, 96, 16, DType.FLOAT16),
            [f"CSR {a}, row-major" for a in cusparse.CSR_ALGORITHMS],
            marks=pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch adds biases and activates"),
        ),
    ],
)
def test_every_way_is_called(
    implementations: Prepared, name: str, problem: Problem, details: list[str]
) -> None:
    library = Library()
    found = [implementation.detail for implementation in implementations(name, problem, library)]
    assert [detail for detail in found if " 64" not in detail and " 128" not in detail] == details
    assert any(library.called[function] >= len(details) for function in library.called)


def test_a_refused_algorithm_is_left_out(implementations: Prepared) -> None:
    assert implementations("cusparse-csr", SPMM, Library("cusparseSpMM_preprocess")) == []


def test_a_refused_sampling_says_so(implementations: Prepared) -> None:
    with pytest.raises(UnsupportedError, match="B row-major: cusparseSDDMM returned status 10"):
        implementations("cusparse-sddmm", SDDMM, Library("cusparseSDDMM"))


def test_handles_are_given_back(implementations: Prepared) -> None:
    library = Library()
    del implementations("cusparse-csr", SPMM, library)[:]
    assert library.called["cusparseCreate"] == library.called["cusparseDestroy"] == 1


def test_cublaslt_held_to_kernels_of_sm80(implementations: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt_baselines, "kernels_of", lambda calls: ["nvjet_sm90", "ampere_h16816gemm"])
    problem = DsdProblem(64, 96, 16, DType.FLOAT16)
    [*found] = (
        implementation.detail for implementation in implementations("cublaslt-mma", problem, Library())
    )
    places = [f"algorithm 0, tile {tile}, stages {stages}" for tile in (7, 9) for stages in (7, 9)]
    assert found == [f"masked elements are zeros, {place} (ampere_h16816gemm)" for place in places]


def test_cublaslt_without_kernels_of_sm80(implementations: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt_baselines, "kernels_of", lambda calls: ["nvjet_sm90"] * len(calls))
    with pytest.raises(UnsupportedError, match="none of 2 algorithms is of sm_80: nvjet_sm90"):
        implementations("cublaslt-mma", DsdProblem(64, 96, 16, DType.FLOAT16), Library())


def test_kernels_told_apart_by_marks() -> None:
    events = [(5.0, "call 1", False), (1.0, "call 0", False), (2.0, "cudaLaunchKernel", False)]
    kernels = [
        (3.0, "sm80_gemm", True),
        (4.0, "splitKreduce", True),
        (6.5, "nvjet", True),
        (7.0, "call 2", False),
    ]
    assert by_call([*events, *kernels], 3) == ["sm80_gemm + splitKreduce", "nvjet", ""]


def test_a_layers_arrays_live_as_long_as_its_product() -> None:
    """cuSPARSE has their addresses alone: freed, they were read all the same."""

    class Array:
        pass

    array = Array()
    alive = weakref.ref(array)
    multiply = from_to(lambda: None, None, "result", [cast(Buffer, array)])
    del array
    gc.collect()
    assert alive() is not None
    del multiply
    gc.collect()
    assert alive() is None
