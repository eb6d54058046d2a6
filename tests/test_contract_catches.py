"""The contract tests are themselves tested: a bug planted into a right variant makes them fail."""

from __future__ import annotations

import pytest
from contract_cases import Kind, Variant, matrices, run_and_compare

from sparsegen.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import KernelFault
from sparsegen.kernels import family
from sparsegen.operators import DType, Epilogue, Layout
from sparsegen.render import render

FAMILY = family("csr_spmm")
CONFIG = FAMILY.config(
    tile_n=16,
    tile_k=4,
    rows_per_block=8,
    threads_per_row=4,
    row_splits=2,
    dense_vector_width=2,
    sparse_vector_width=2,
    row_alignment="reverse_offset",
    row_order="natural",
    prescale_indices=False,
    staging="shared_async",
    index_bits=32,
)
KIND = Kind.spmm(20, DType.FLOAT32, Layout.ROW, Epilogue.BIAS_RELU)
MATRIX = "odd_shape"
PLANTED = {
    "missing wait": ("copy_async_wait<1>();", ""),
    "missing barrier": ("__syncthreads();", ""),
    "missing warp barrier": ("__syncwarp(lanes);", ""),
    "row out of bounds": ("task < m", "task <= m"),
    "column out of bounds": ("column < n", "column <= n"),
    "neighbours' nonzeros": ("position + i < begin || ", ""),
    "wrong epilogue": ("fmaxf(x, 0.0f)", "x"),
}


def check(toolchain: EmulatorToolchain, source: str) -> None:
    problem = KIND.problem(matrices()[MATRIX])
    variant = Variant(FAMILY, CONFIG, KIND, (MATRIX,), source)
    packed = FAMILY.prepare(problem, CONFIG, matrices()[MATRIX])
    kernel = toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
    run_and_compare(variant, kernel, problem, matrices()[MATRIX], packed, where=MATRIX)


def right_source() -> str:
    return render(FAMILY, KIND.problem(matrices()[MATRIX]), CONFIG)


@pytest.mark.sanitizer
def test_the_right_variant_passes(emulator_toolchain: EmulatorToolchain) -> None:
    check(emulator_toolchain, right_source())


@pytest.mark.sanitizer
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(emulator_toolchain: EmulatorToolchain, bug: str) -> None:
    right, wrong = PLANTED[bug]
    source = right_source()
    assert right in source, "the template has changed: plant this bug in another way"
    with pytest.raises((AssertionError, KernelFault)):
        check(emulator_toolchain, source.replace(right, wrong))
