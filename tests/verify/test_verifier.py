"""Host and device compute the same reference, and say the same of right, wrong and unwritten results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sparsegen import backends
from sparsegen.backends import plain
from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import PlainKernels
from sparsegen.errors import SparsegenError
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_rows
from sparsegen.operators import (
    Activation,
    Block,
    ConvEpilogue,
    Dilation,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Epilogue,
    Groups,
    ImageLayout,
    ItemValues,
    Layout,
    MaskedConv2dProblem,
    MaskOf,
    Problem,
    Readout,
    SddmmEpilogue,
    SddmmProblem,
    SddProblem,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SparseNetworkProblem,
    SpmmProblem,
    Stride,
)
from sparsegen.settings import Settings
from sparsegen.verify import verifier as verifiers
from sparsegen.verify.bounds import ErrorBound
from sparsegen.verify.verifier import DeviceVerifier, HostVerifier, Verifier, verifier

Operands = dict[str, Any]


@pytest.fixture(scope="module", params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def executor(request: pytest.FixtureRequest, emulator_settings: Settings) -> Iterator[Executor]:
    patch = pytest.MonkeyPatch()
    patch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    opened = backends.open_executor(backends.find_device(request.param))
    yield opened
    opened.close()
    patch.undo()


MATRIX = random_rows(24, 40, 0.3, 0.6, 3)
EMPTY = CsrMatrix((0, 40), np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))
DEEP = random_rows(72, 19, 0.5, 0.3, 4)
DEEP = DEEP.with_values(DEEP.values / 8)  # so that a network's errors do not grow from layer to layer
GAPS = CsrMatrix(
    (5, 40), np.array([0, 0, 3, 3, 43, 43]), np.r_[[1, 7, 39], np.arange(40)], np.ones(43, np.float32)
)


def spmm(m: int, dtype: DType, layout: Layout, epilogue: Epilogue) -> SpmmProblem:
    return SpmmProblem(m, 40, 9, dtype, layout, epilogue)


BLOCK = Block(16, 16)
PROBLEMS: list[Problem] = [
    *(spmm(24, dtype, layout, epilogue) for dtype in DType for layout in Layout for epilogue in Epilogue),
    *(SddmmProblem(24, 40, 13, dtype, epilogue) for dtype in DType for epilogue in SddmmEpilogue),
    SpmmProblem(24, 40, 9, DType.FLOAT16, Layout.COLUMN, Epilogue.BIAS_RESIDUAL, batch=3),
    SpmmProblem(24, 40, 9, batch=3, item_values=ItemValues.OWN),
    SddmmProblem(24, 40, 13, DType.BFLOAT16, SddmmEpilogue.SCALE, batch=3),
    *(SoftmaxProblem(24, 40, dtype) for dtype in DType),
    *(SoftmaxBackwardProblem(24, 40, dtype) for dtype in DType),
    *(SparseAttentionProblem(24, 40, 8, dtype) for dtype in DType),
    SoftmaxProblem(24, 40, DType.BFLOAT16, batch=3),
    SoftmaxBackwardProblem(24, 40, DType.FLOAT16, batch=3),
    SparseAttentionProblem(24, 40, 8, DType.FLOAT16, batch=3),
    *(SparseNetworkProblem(72, 19, 45, dtype, does) for dtype in DType for does in Activation),
    *(SparseNetworkProblem(72, 19, 45, DType.FLOAT16, does, Readout.TOTALS) for does in Activation),
    SparseNetworkProblem(24, 40, 9, DType.FLOAT16, batch=3),
    *(spmm(5, DType.FLOAT32, layout, Epilogue.BIAS_GELU) for layout in Layout),  # with empty rows
    *(DsdProblem(24, 40, 9, dtype, BLOCK, epilogue=e) for dtype in DType for e in Epilogue),
    *(DsdTransposedProblem(24, 40, 9, dtype, BLOCK, y_layout=layout) for dtype in DType for layout in Layout),
    *(SddProblem(24, 40, 9, dtype, BLOCK, w_layout=layout) for dtype in DType for layout in Layout),
    DsdProblem(24, 40, 9, DType.FLOAT32, BLOCK, w_layout=Layout.COLUMN, batch=3),
    SddProblem(24, 40, 9, DType.FLOAT16, BLOCK, batch=3),
    *(
        MaskedConv2dProblem(9, 11, 4, 6, DType.FLOAT16, epilogue=e, mask_of=mask_of, layout=layout)
        for e in ConvEpilogue
        for mask_of in MaskOf
        for layout in ImageLayout
    ),
    MaskedConv2dProblem(9, 11, 4, 6, groups=Groups(2), stride=Stride(1, 2), dilation=Dilation(2, 1)),
    SddmmProblem(5, 40, 13),
    SoftmaxProblem(5, 40),
    SoftmaxBackwardProblem(5, 40),
    SparseAttentionProblem(5, 40, 8, DType.FLOAT16),
]


def matrix_of(problem: Problem) -> CsrMatrix:
    if not problem.has_pattern:
        return problem.without_pattern
    return next(matrix for matrix in (MATRIX, EMPTY, GAPS, DEEP) if matrix.shape == problem.matrix_shape)


def both(problem: Problem, matrix: CsrMatrix, operands: Operands, executor: Executor) -> list[Verifier]:
    ran, run = set[str](), PlainKernels.run

    def noted(self: PlainKernels, entry: str, *given: Any) -> None:
        ran.add(entry.partition(":")[0])
        run(self, entry, *given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PlainKernels, "run", noted)
        on_device = DeviceVerifier.of(problem, matrix, operands, executor)
    assert on_device is not None and ran <= set(problem.reference_files)
    return [HostVerifier(problem, matrix, operands, executor), on_device]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_host_and_device_agree(executor: Executor, problem: Problem) -> None:
    matrix = matrix_of(problem)
    operands = problem.random_operands(np.random.default_rng(0), matrix.nnz)
    verifiers = both(problem, matrix, operands, executor)
    on_host, on_device = (one.reference() for one in verifiers)
    size = np.abs(on_host.exact).max()
    np.testing.assert_allclose(on_device.exact, on_host.exact, rtol=1e-11, atol=1e-13 * size)
    np.testing.assert_allclose(on_device.magnitude, on_host.magnitude, rtol=1e-6, atol=1e-37)
    np.testing.assert_array_equal(on_device.terms, on_host.terms)
    assert on_device.dtype is on_host.dtype is problem.result(matrix.nnz).dtype

    exact = on_host.exact
    nudged = exact.copy()
    nudged[(2, 1, 4)[-exact.ndim :]] += 0.3
    written = problem.result(matrix.nnz).dtype
    assert isinstance(written, DType)
    unwritten = written.to_storage(exact)
    unwritten.view(np.uint8).reshape(-1)[:4] = 0xFF
    for stored, is_right in (
        (written.to_storage(exact), True),
        (written.to_storage(nudged), False),
        (unwritten, False),
    ):
        result = executor.upload(np.ascontiguousarray(stored))
        host, device = (one.worst_error(result) for one in verifiers)
        assert (host <= 1) == is_right
        assert device == pytest.approx(host, rel=1e-4)
        for bound in (ErrorBound.vendors(problem.dtype), ErrorBound.tf32()):
            host, device = (one.worst_error(result, bound) for one in verifiers)
            assert device == pytest.approx(host, rel=1e-4)
        if not is_right:
            told = [one.explain(result).split(";") for one in verifiers]
            assert told[0][0] == told[1][0] == f"{told[0][0].split()[0]} of {exact.size} values are wrong"
            assert f"worst is {problem.result(matrix.nnz).name}[" in told[0][1]


@pytest.mark.gpu
def test_a_gpu_verifies_what_it_can() -> None:
    executor = backends.open_executor(backends.find_device("cuda"))
    for problem in (
        SpmmProblem(24, 40, 9),
        SddmmProblem(24, 40, 9),
        SoftmaxProblem(24, 40),
        SparseAttentionProblem(24, 40, 8),
    ):
        operands = problem.random_operands(np.random.default_rng(0), MATRIX.nnz)
        found = verifier(problem, MATRIX, operands, executor)
        assert isinstance(found, DeviceVerifier) and "on the device" in found.source
    executor.close()


def test_the_emulator_is_verified_on_the_host() -> None:
    problem = SpmmProblem(24, 40, 9)
    operands = problem.random_operands(np.random.default_rng(0), MATRIX.nnz)
    found = verifier(problem, MATRIX, operands, backends.open_executor(backends.emulator_device()))
    assert isinstance(found, HostVerifier) and not found.source


def test_cuda_devices_verify_what_fits_into_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator stands in for a CUDA device."""
    problem = SpmmProblem(24, 40, 9)
    operands = problem.random_operands(np.random.default_rng(0), MATRIX.nnz)
    executor = backends.open_executor(backends.emulator_device())
    monkeypatch.setattr(type(executor), "device", replace(executor.device, backend="cuda"))
    made: list[Problem] = []

    def on_device(of: Problem, *others: Any) -> Any:
        made.append(of)
        return marked

    marked = object()
    monkeypatch.setattr(DeviceVerifier, "of", on_device)
    assert verifier(problem, MATRIX, operands, executor) is marked and made == [problem]
    monkeypatch.setattr(verifiers, "MOST_ON_DEVICE", 24 * 9)
    assert verifier(problem, MATRIX, operands, executor) is marked
    monkeypatch.setattr(verifiers, "MOST_ON_DEVICE", 24 * 9 - 1)
    assert isinstance(verifier(problem, MATRIX, operands, executor), HostVerifier)
    monkeypatch.setattr(verifiers, "MOST_ON_DEVICE", 24 * 9)
    monkeypatch.setattr(DeviceVerifier, "of", lambda *asked: None)
    assert isinstance(verifier(problem, MATRIX, operands, executor), HostVerifier), "it has no kernels"


def test_an_operator_without_kernels_is_verified_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpmmProblem, "reference_files", ())
    problem = SpmmProblem(24, 40, 9)
    operands = problem.random_operands(np.random.default_rng(0), MATRIX.nnz)
    executor = backends.open_executor(backends.emulator_device())
    assert DeviceVerifier.of(problem, MATRIX, operands, executor) is None


def test_an_overflow_of_float16_is_right_where_the_exact_value_overflows(executor: Executor) -> None:
    matrix = MATRIX.with_values(np.full(MATRIX.nnz, 60000, dtype=np.float32))
    problem = SpmmProblem(24, 40, 9, DType.FLOAT16)
    operands = {"b": np.full((40, 9), 100, dtype=np.float16)}
    stored = problem.dtype.to_storage(problem.reference(matrix, operands).exact)
    assert np.isinf(stored).any()
    for one in both(problem, matrix, operands, executor):
        assert one.worst_error(executor.upload(stored)) <= 1


WRONGLY = [
    SpmmProblem(24, 40, 9),
    SpmmProblem(24, 40, 9, layout=Layout.COLUMN, epilogue=Epilogue.BIAS_RESIDUAL, batch=3),
    SddmmProblem(24, 40, 9),
    SoftmaxProblem(24, 40),
    SoftmaxBackwardProblem(24, 40),
    SparseAttentionProblem(24, 40, 8),
]


@pytest.mark.parametrize("problem", WRONGLY, ids=str)
def test_a_device_that_computes_wrongly_verifies_nothing(
    problem: Problem, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = problem.random_operands(np.random.default_rng(0), MATRIX.nnz)

    def other_values(array: Any) -> Any:
        other = np.arange(array.size, dtype=np.float32).reshape(array.shape)
        return array + other if array.dtype == np.float32 else array

    monkeypatch.setattr(plain, "empty_as_one", other_values)
    with pytest.raises(SparsegenError, match=r"float64 result of .* is wrong"):
        DeviceVerifier.of(problem, MATRIX, operands, executor)


def test_a_device_that_forgets_the_magnitude_verifies_nothing(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = SpmmProblem(24, 40, 9, epilogue=Epilogue.BIAS)
    operands = problem.random_operands(np.random.default_rng(0), MATRIX.nnz)
    run = PlainKernels.run

    def cleared(self: PlainKernels, entry: str, warps: int, *arguments: Any) -> None:
        run(self, entry, warps, *arguments)
        executor.fill(arguments[-1], 0)

    monkeypatch.setattr(PlainKernels, "run", cleared)
    with pytest.raises(SparsegenError, match=r"of magnitude 0\)"):
        DeviceVerifier.of(problem, MATRIX, operands, executor)


@pytest.mark.parametrize(
    "problem", [SpmmProblem(0, 40, 9), SddmmProblem(0, 40, 9), SoftmaxProblem(0, 40)], ids=str
)
def test_nothing_to_verify(problem: Problem, executor: Executor) -> None:
    operands = problem.random_operands(np.random.default_rng(0), 0)
    for one in both(problem, EMPTY, operands, executor):
        assert one.worst_error(executor.allocate(1)) == 0
        assert one.reference().exact.size == 0
