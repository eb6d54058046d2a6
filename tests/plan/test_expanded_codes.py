"""The full weight of packed codes: bit for bit what codes, scales and zero points stand for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest

import sparsegen
from sparsegen import backends
from sparsegen.backends.emulator.executor import EmulatorExecutor
from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import plain_source
from sparsegen.errors import OperandError
from sparsegen.kernels.base import AnyFamily
from sparsegen.kernels.config import Config
from sparsegen.kernels.quantized import quantized_csr_spmm, quantized_sparse_mma_spmm
from sparsegen.kernels.quantized.quantized_stream_spmm import FAMILY, QuantizedStreamConfig
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import (
    DType,
    Quantization,
    QuantizedMatrix,
    QuantizedSpmmProblem,
    ScaleGroup,
    ValueType,
    quantized_as,
)
from sparsegen.plan.binding import BoundVariant
from sparsegen.plan.expanded_codes import ExpandedCodes
from sparsegen.plan.packing import pack
from sparsegen.plan.variants import compile_variant
from sparsegen.system.device_memory import Buffer
from sparsegen.system.numpy_types import Array
from sparsegen.testing.matrices import csr, matrices

NEGATIVE_ZERO = 0x8000

CONFIGS = (
    QuantizedStreamConfig(blocks=8, warps_m=1, depth=1),
    QuantizedStreamConfig(blocks=16, warps_m=2, warps_k=4, ring_chunks=16, depth=6, row_order="balanced"),
)
ROUNDINGS = (
    (Quantization(ValueType.INT4, ScaleGroup.OF_32, symmetric=False), DType.FLOAT16),
    (Quantization(ValueType.INT4), DType.BFLOAT16),
    (Quantization(ValueType.INT8, ScaleGroup.OF_64, symmetric=False), DType.BFLOAT16),
    (Quantization(ValueType.INT8), DType.FLOAT16),
    (Quantization(ValueType.E4M3, ScaleGroup.OF_128), DType.FLOAT16),
    (Quantization(ValueType.E4M3), DType.BFLOAT16),
)


@pytest.fixture(scope="module", params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    opened = backends.open_executor(backends.find_device(request.param))
    yield opened
    opened.close()


def drifting() -> CsrMatrix:
    """A matrix whose lanes drift apart and are brought together again."""
    rng = np.random.default_rng(0)
    live = rng.random((64, 3000)) < np.linspace(0.02, 1, 64)[:, None]
    return csr((rng.standard_normal((64, 3000)) * live).astype(np.float32))


@pytest.mark.parametrize("config", CONFIGS, ids=["one warp", "balanced"])
@pytest.mark.parametrize(("rounding", "dtype"), ROUNDINGS, ids=str)
def test_weights_have_equal_bits(
    executor: Executor, rounding: Quantization, dtype: DType, config: QuantizedStreamConfig
) -> None:
    for name in ("odd_shape", "empty_rows", "aligned_shape", "no_nonzeros"):
        require_equal_bits(executor, FAMILY, config, rounding, dtype, matrices()[name])
    require_equal_bits(executor, FAMILY, config, rounding, dtype, drifting())


@pytest.mark.parametrize(("rounding", "dtype"), [pair for pair in ROUNDINGS if pair[0].symmetric], ids=str)
def test_weights_of_two_in_four_columns(executor: Executor, rounding: Quantization, dtype: DType) -> None:
    """Matrices of one layer, and full ones, which have two, are expanded."""
    some = np.random.default_rng(0).standard_normal((70, 300)).astype(np.float32)
    for matrix in (csr(some * (np.arange(300) % 4 < 2)), csr(some), matrices()["odd_shape"]):
        family = quantized_sparse_mma_spmm.FAMILY
        for of in (4, 8, 16):
            if rounding.group.size(matrix.shape[1]) < 8 * of:
                continue
            config = quantized_sparse_mma_spmm.QuantizedSparseMmaConfig(of_columns=of)
            require_equal_bits(executor, family, config, rounding, dtype, matrix)


@pytest.mark.parametrize("index_bits", [16, 32])
@pytest.mark.parametrize(("rounding", "dtype"), ROUNDINGS, ids=str)
def test_weights_of_rows(executor: Executor, rounding: Quantization, dtype: DType, index_bits: int) -> None:
    config = quantized_csr_spmm.QuantizedCsrConfig(index_bits=index_bits)
    for name in ("odd_shape", "empty_rows", "no_nonzeros"):
        require_equal_bits(executor, quantized_csr_spmm.FAMILY, config, rounding, dtype, matrices()[name])


def require_equal_bits(
    executor: Executor,
    family: AnyFamily,
    config: Config,
    rounding: Quantization,
    dtype: DType,
    matrix: CsrMatrix,
) -> None:
    expand, made = expanded(executor, family, config, rounding, dtype, matrix)
    found, expected = expand.weights(), bits_of(made, dtype)
    np.testing.assert_array_equal(np.where(found == NEGATIVE_ZERO, 0, found), expected)


def bits_of(made: QuantizedMatrix, dtype: DType) -> Array:
    """The full weight as its elements are stored."""
    expected = dtype.to_storage(made.dequantized().to_dense()).view(np.uint16)
    return np.where(expected == NEGATIVE_ZERO, 0, expected)


def expanded(
    executor: Executor,
    family: AnyFamily,
    config: Config,
    rounding: Quantization,
    dtype: DType,
    matrix: CsrMatrix,
) -> tuple[ExpandedCodes, QuantizedMatrix]:
    """A matrix packed and bound for expansion, and what it is."""
    toolchain = backends.toolchain(executor.device)
    made = quantized_as(rounding, matrix, dtype)
    problem = QuantizedSpmmProblem(
        *matrix.shape, 8, dtype, value_type=rounding.value_type, scale_group=rounding.group,
        symmetry=rounding.symmetry,
    )  # fmt: skip
    compiled = compile_variant(config, problem, toolchain)
    packed = pack(family, problem, config, made.codes, executor)
    variant = BoundVariant(compiled, packed, executor)
    return ExpandedCodes(variant, made.scales, made.zero_points), made


@pytest.mark.sanitizer
@pytest.mark.parametrize("config", CONFIGS, ids=["one warp", "balanced"])
@pytest.mark.parametrize(("rounding", "dtype"), ROUNDINGS, ids=str)
def test_nothing_is_read_or_written_out_of_bounds(
    rounding: Quantization, dtype: DType, config: QuantizedStreamConfig, emulator_toolchain: EmulatorToolchain
) -> None:
    executor = EmulatorExecutor()
    for matrix in (matrices()["odd_shape"], drifting()):
        expand, made = expanded(executor, FAMILY, config, rounding, dtype, matrix)
        source = plain_source("code_stream_weights.cu")
        kernel = emulator_toolchain.compile_sanitized("plain", expand.entry, source)
        full = np.full(matrix.shape, 0xFFFF, dtype=np.uint16)
        *_, found = run_sanitized(kernel.binary, expand.launch, [*on_host(executor, expand.arguments), full])
        np.testing.assert_array_equal(np.where(found == NEGATIVE_ZERO, 0, found), bits_of(made, dtype))


def on_host(executor: Executor, arguments: Iterable[Buffer | int]) -> Iterator[Array | int]:
    """The arguments of a launch, with bytes in the place of buffers."""
    for argument in arguments:
        if isinstance(argument, int):
            yield argument
            continue
        found = np.empty(argument.nbytes, dtype=np.uint8)
        executor.download(argument, found)
        yield found


def test_other_families_are_refused(executor: Executor) -> None:
    operator = sparsegen.prepare(drifting(), n=4, family="csr_spmm", device="emulator")
    with pytest.raises(OperandError, match="a family of quantized_spmm packed"):
        ExpandedCodes(operator.launcher.prepared, np.zeros((1, 64)), None)
