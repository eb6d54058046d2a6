"""Codes packed by a device are what the host packs, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sparsegen import backends
from sparsegen.backends.executor import Executor
from sparsegen.errors import MatrixError
from sparsegen.kernels.base import AnyFamily
from sparsegen.kernels.config import Config
from sparsegen.kernels.quantized import code_streams, quantized_sparse_mma_spmm
from sparsegen.kernels.quantized.quantized_sparse_mma_spmm import QuantizedSparseMmaConfig
from sparsegen.kernels.quantized.quantized_stream_spmm import FAMILY, QuantizedStreamConfig
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.generators import random_rows
from sparsegen.operators import DType, QuantizedSpmmProblem, ValueType
from sparsegen.plan import packing
from sparsegen.testing.matrices import csr, matrices

CONFIGS = {
    "one warp": QuantizedStreamConfig(blocks=8, warps_m=1, depth=1),
    "warps over rows": QuantizedStreamConfig(blocks=132, warps_m=4, row_order="balanced"),
    "warps over columns": QuantizedStreamConfig(blocks=16, warps_m=2, warps_k=4, ring_chunks=16, depth=6),
}


@pytest.fixture(scope="module", params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    opened = backends.open_executor(backends.find_device(request.param))
    yield opened
    opened.close()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("kind", [ValueType.INT4, ValueType.E4M3])
def test_code_streams(executor: Executor, kind: ValueType, config: QuantizedStreamConfig) -> None:
    """On matrices that kernels get wrong, and on one whose lanes drift apart and are brought together again."""
    rng = np.random.default_rng(0)
    drifting = rng.standard_normal((64, 3000)) * (rng.random((64, 3000)) < np.linspace(0.02, 1, 64)[:, None])
    for matrix in (*matrices().values(), csr((4 * drifting).astype(np.float32))):
        require_equal(
            FAMILY, QuantizedSpmmProblem(*matrix.shape, 8, value_type=kind), config, matrix, executor
        )


@pytest.mark.parametrize("kind", ValueType)
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_two_four_units(executor: Executor, kind: ValueType, dtype: DType) -> None:
    rng = np.random.default_rng(0)
    ranks = rng.permuted(np.tile(np.arange(4), (70, 65, 1)), axis=-1).reshape(70, 260)
    two_of_four = csr(np.where(ranks < 2, rng.integers(-7, 8, ranks.shape), 0).astype(np.float32))
    for matrix in (*matrices().values(), two_of_four):
        problem = QuantizedSpmmProblem(*matrix.shape, 8, dtype, value_type=kind)
        require_equal(
            quantized_sparse_mma_spmm.FAMILY, problem, QuantizedSparseMmaConfig(parts=2), matrix, executor
        )


def require_equal(
    family: AnyFamily, problem: QuantizedSpmmProblem, config: Config, matrix: CsrMatrix, executor: Executor
) -> None:
    """Packs both ways, and compares."""
    host = packing.by_host(family, problem, config, matrix, executor)
    device = packing.by_device(family, problem, config, matrix, executor)
    assert device is not None and host.sizes == device.sizes and host.scratch == device.scratch
    for name in family.packed_names:
        one, other = (np.empty(packed.arrays[name].nbytes, np.uint8) for packed in (host, device))
        executor.download(host.arrays[name], one)
        executor.download(device.arrays[name], other)
        np.testing.assert_array_equal(other, one, name)


def test_streams_beyond_32_bits_are_refused(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = random_rows(64, 256, 0.5, 0.0, 0)
    monkeypatch.setattr(code_streams, "MAX_INDEX", 8191)
    for pack in (packing.by_host, packing.by_device):
        with pytest.raises(MatrixError, match="more than 32-bit numbers reach"):
            pack(FAMILY, QuantizedSpmmProblem(64, 256, 8), QuantizedStreamConfig(), matrix, executor)
