"""Transposes of two matrices in one launch, against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import plain_source
from sparsegen.kernels.launch import Launch
from sparsegen.plan.transposes import bind_transposes

SHAPES = [(1, 1, 1), (40, 33, 70), (64, 32, 1), (5, 96, 31)]


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_are_transposed(executor: Executor, shape: tuple[int, int, int], kind: type) -> None:
    rows, *columns = shape
    given = [np.random.default_rng(0).standard_normal((rows, side)).astype(kind) for side in columns]
    sources = [executor.upload(matrix) for matrix in given]
    found = [executor.allocate(matrix.nbytes) for matrix in given]
    launch = bind_transposes(executor, rows, (columns[0], columns[1]), given[0].itemsize)
    launch(0, *(buffer.address for buffer in (*sources, *found)))
    executor.synchronize()
    for matrix, buffer in zip(given, found, strict=True):
        turned = np.empty(matrix.shape[::-1], kind)
        executor.download(buffer, turned)
        np.testing.assert_array_equal(turned, matrix.T)


@pytest.mark.sanitizer
def test_nothing_out_of_bounds(emulator_toolchain: EmulatorToolchain) -> None:
    compiled = emulator_toolchain.compile_sanitized("plain", "transpose_32", plain_source("transpose.cu"))
    x, y = (np.random.default_rng(0).standard_normal((37, side)).astype(np.float32) for side in (33, 5))
    launch = Launch((3, 2, 1), (256, 1, 1))
    empty = [np.full(matrix.shape[::-1], np.nan, np.float32) for matrix in (x, y)]
    *_, first, second = run_sanitized(compiled.binary, launch, [37, 33, 5, x, y, *empty])
    np.testing.assert_array_equal(first, x.T)
    np.testing.assert_array_equal(second, y.T)
