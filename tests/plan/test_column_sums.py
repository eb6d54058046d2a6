"""Sums of columns on a device are those of float64, and nothing beside the matrix is read."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import plain_source
from sparsegen.kernels.launch import Launch
from sparsegen.operators import DType
from sparsegen.plan.column_sums import bind_column_sums

SHAPES = [(1, 1), (64, 96), (5000, 40), (513, 33), (3, 4352), (9, 2200)]


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_of_columns(executor: Executor, shape: tuple[int, int], dtype: DType) -> None:
    x = dtype.to_storage(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    given, found = executor.upload(x), executor.allocate(shape[1] * dtype.itemsize)
    executor.fill(found, 0xFF)
    bind_column_sums(executor, shape, dtype)(0, given.address, found.address)
    executor.synchronize()
    sums = np.empty(shape[1], dtype=x.dtype)
    executor.download(found, sums)
    numbers = dtype.from_storage(x).astype(np.float64)
    step = {DType.FLOAT32: 2.0**-23, DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}[dtype]
    expected, added = numbers.sum(0), np.abs(numbers).sum(0)
    error = np.abs(dtype.from_storage(sums) - expected)
    assert (error <= step * np.abs(expected) + 2.0**-18 * added).all()


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("entry", "shape", "columns"), [("add_float32_4x2", (700, 12), 8), ("add_float32_1x16", (37, 71), 16)]
)
def test_nothing_out_of_bounds(
    emulator_toolchain: EmulatorToolchain, entry: str, shape: tuple[int, int], columns: int
) -> None:
    compiled = emulator_toolchain.compile_sanitized("plain", entry, plain_source("column_sums.cu"))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    launch = Launch((-(-shape[1] // columns), 1, 1), (512, 1, 1))
    *_, found = run_sanitized(
        compiled.binary, launch, [*shape, x, np.full(shape[1], np.nan, dtype=np.float32)]
    )
    np.testing.assert_allclose(found, x.sum(0, dtype=np.float64), rtol=1e-4, atol=1e-4)
