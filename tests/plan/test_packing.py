"""Packing by a device gives what the host gives, bit for bit; and which of them packs."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from nvcc_builds import needs_nvcc, ptxas
from tuning_samples import H100

from sparsegen import backends
from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import plain_source
from sparsegen.errors import MatrixError
from sparsegen.kernels import family
from sparsegen.kernels.layouts import lane_stream
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.spmm.lane_stream_spmm import FAMILY, LaneStreamConfig
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_rows
from sparsegen.operators import DType, ItemValues, Layout, SpmmProblem
from sparsegen.plan import packing
from sparsegen.system.numpy_types import Array
from sparsegen.testing.matrices import csr, matrices


@pytest.fixture(scope="module", params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    opened = backends.open_executor(backends.find_device(request.param))
    yield opened
    opened.close()


def decoding(matrix: CsrMatrix, dtype: DType = DType.FLOAT16) -> SpmmProblem:
    return SpmmProblem(*matrix.shape, 8, dtype, Layout.COLUMN)


def downloaded(executor: Executor, buffer: Any) -> Array:
    found = np.empty(buffer.nbytes, dtype=np.uint8)
    executor.download(buffer, found)
    return found


def assert_same(executor: Executor, one: Packed, other: Packed) -> None:
    assert one.sizes == other.sizes and one.scratch == other.scratch and one.values == other.values
    assert one.arrays.keys() == other.arrays.keys()
    pairs = [(name, one.arrays[name], other.arrays[name]) for name in one.arrays]
    for name, a, b in [*pairs, ("source", one.value_source(), other.value_source())]:
        np.testing.assert_array_equal(downloaded(executor, a), downloaded(executor, b), name)


CONFIGS = {
    "one warp": LaneStreamConfig(blocks=8, warps_m=1, ring_rows=96, refill_tiles=1),
    "tight": LaneStreamConfig(blocks=16, warps_m=2, ring_rows=96, refill_tiles=2, row_order="balanced"),
    "wide": LaneStreamConfig(blocks=132, warps_m=2, warps_k=4, ring_rows=160, row_order="balanced"),
    "tall": LaneStreamConfig(blocks=8, warps_m=8, warps_k=2, ring_rows=128, refill_tiles=2),
    "a small ring": LaneStreamConfig(blocks=8, warps_m=1, ring_rows=64),
}


@pytest.mark.parametrize(
    ("backend", "large", "packs", "by"),
    [
        ("cuda", 100, True, "device"),
        ("cuda", 101, True, "host"),
        ("cuda", 100, False, "host"),
        ("emulator", 1, True, "host"),
    ],
)
def test_a_cuda_device_packs_large_matrices_where_the_family_can(
    backend: str, large: int, packs: bool, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = random_rows(10, 10, 1.0, 0.0, 0)
    monkeypatch.setattr(packing, "LARGE", large)
    monkeypatch.setattr(packing, "by_device", lambda *asked: "device" if packs else None)
    monkeypatch.setattr(packing, "by_host", lambda *asked: "host")
    executor: Any = SimpleNamespace(device=SimpleNamespace(backend=backend), entered=nullcontext)
    assert matrix.nnz == 100
    assert packing.pack(FAMILY, decoding(matrix), LaneStreamConfig(), matrix, executor) == by


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_lane_streams(executor: Executor, dtype: DType, config: LaneStreamConfig) -> None:
    """On matrices that kernels get wrong, and on one whose lanes drift apart and are brought together again."""
    rng = np.random.default_rng(0)
    drifting = rng.standard_normal((64, 1000)) * (rng.random((64, 1000)) < np.linspace(0.02, 1, 64)[:, None])
    for matrix in (*matrices().values(), csr(drifting.astype(np.float32))):
        problem = decoding(matrix, dtype)
        host = packing.by_host(FAMILY, problem, config, matrix, executor)
        device = packing.by_device(FAMILY, problem, config, matrix, executor)
        assert device is not None
        assert_same(executor, device, host)


def test_values_are_rounded_as_the_host_rounds_them(executor: Executor) -> None:
    values = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65520, 6e-8, 2**-25, -0.0, 3.4e38, 1e-45, np.inf, 0.1])
    matrix = CsrMatrix(
        (1, values.size), np.array([0, values.size]), np.arange(values.size), values.astype(np.float32)
    )
    exact = matrix.with_values(values)  # float64: rounded once
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        for one in (matrix, exact):
            host = packing.by_host(FAMILY, decoding(one, dtype), LaneStreamConfig(), one, executor)
            device = packing.by_device(FAMILY, decoding(one, dtype), LaneStreamConfig(), one, executor)
            assert device is not None
            assert_same(executor, device, host)


def test_streams_beyond_32_bits_are_refused(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = random_rows(64, 256, 0.5, 0.0, 0)
    monkeypatch.setattr(lane_stream, "MAX_INDEX", 8191)
    for pack in (packing.by_host, packing.by_device):
        with pytest.raises(MatrixError, match="more than 32-bit numbers reach"):
            pack(FAMILY, decoding(matrix), LaneStreamConfig(), matrix, executor)


def test_nothing_that_packing_needs_stays_on_the_device(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, made = random_rows(64, 256, 0.5, 0.0, 0), []
    for name in ("upload", "allocate"):
        original = getattr(executor, name)

        def noting(argument: Any, original: Any = original) -> Any:
            made.append(weakref.ref(buffer := original(argument)))
            return buffer

        monkeypatch.setattr(executor, name, noting)
    packed = packing.by_device(FAMILY, decoding(matrix), LaneStreamConfig(), matrix, executor)
    assert packed is not None
    for more in (0, 1):
        source = packed.value_source() if more else None
        gc.collect()
        assert len({id(b) for ref in made if (b := ref())}) == len(packed.arrays) + more
    del source


def test_large_matrices_are_packed_by_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cuda:
        def __init__(self) -> None:
            self.device = H100

        def __getattr__(self, name: str) -> Any:
            return getattr(emulator, name)

    emulator = backends.open_executor(backends.find_device("emulator"))
    by_device = []

    def pack_on(self: Any, problem: Any, config: Any, matrix: CsrMatrix, device: Any) -> None:
        by_device.append(matrix.nnz)

    monkeypatch.setattr(packing, "LARGE", 1000)
    matrix, small = random_rows(64, 256, 0.5, 0.0, 0), random_rows(64, 256, 0.01, 0.0, 0)
    for name in ("lane_stream_spmm", "csr_spmm"):
        with monkeypatch.context() as patched:
            patched.setattr(type(family(name)), "pack_on", pack_on)
            config = family(name).config_type()
            for of in (matrix, small):
                assert packing.pack(family(name), decoding(of), config, of, Cuda()).nbytes  # type: ignore[arg-type]
            packing.pack(family(name), decoding(matrix), config, matrix, emulator)
    assert by_device == [matrix.nnz] * 2


def test_gathered_values(executor: Executor) -> None:
    matrix = random_rows(40, 90, 0.3, 0.5, 1)
    new = matrix.with_values(np.random.default_rng(2).standard_normal(matrix.nnz).astype(np.float32))
    for dtype, name in ((DType.BFLOAT16, "lane_stream_spmm"), (DType.FLOAT32, "csr_spmm")):
        problem, one = decoding(matrix, dtype), family(name)
        packed = packing.by_host(one, problem, one.config_type(), matrix, executor)
        gather = packing.Gather(packed, problem, executor)
        gather(executor.upload(dtype.to_storage(new.values)))
        executor.synchronize()
        assert_same(
            executor, packed, packing.by_host(one, decoding(new, dtype), one.config_type(), new, executor)
        )


def test_gathered_values_of_each_item(executor: Executor) -> None:
    matrix = random_rows(40, 90, 0.3, 0.5, 1)
    values = np.random.default_rng(2).standard_normal((11, matrix.nnz)).astype(np.float32)
    one = family("csr_spmm")
    config = one.config_type()
    problem = SpmmProblem(40, 90, 4, batch=11, item_values=ItemValues.OWN)
    packed = packing.by_host(one, problem, config, matrix, executor)

    def stored(values: Array) -> Array:
        alone = packing.by_host(one, problem.alone, config, matrix.with_values(values), executor)
        return downloaded(executor, alone.arrays["values"])

    held = packed.arrays["values"]
    assert np.array_equal(downloaded(executor, held), np.tile(stored(matrix.values), 11)), (
        "the matrix's at first"
    )
    packing.Gather(packed, problem, executor)(executor.upload(values))
    executor.synchronize()
    assert np.array_equal(downloaded(executor, held), np.concatenate([stored(own) for own in values]))


@needs_nvcc
@pytest.mark.parametrize("name", ["lane_stream.cu", "gather.cu"])
def test_nvcc_compiles_the_packing_kernels(name: str, tmp_path: Path) -> None:
    said = ptxas(plain_source(name), tmp_path, "80")
    assert set(re.findall(r"(\d+) bytes stack frame", said)) == {"0"}
