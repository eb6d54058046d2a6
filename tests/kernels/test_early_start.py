"""Kernels that begin early let the next one begin behind their own wait alone, so that it overlaps with no other one.

The emulator, where both instructions do nothing, is given them here: a thread that lets the next kernel begin must have
waited, and some thread must have waited when the kernel ends.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from goldens import FIRST

from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.plain import plain_source
from sparsegen.errors import KernelFault
from sparsegen.kernels import families
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.block_mask import BlockMaskLayout, packed
from sparsegen.matrix.block_mask_draw import MaskDraw, draw_blocks
from sparsegen.plan.block_masks import as_signed, scratch_words
from sparsegen.testing.launches import call, run_and_compare
from sparsegen.testing.matrices import matrices
from sparsegen.testing.variants import Variant, sample

EARLY = [
    *("bitmap_spmm", "halo_conv", "halo_conv_weights", "tma_attention"),
    *("tma_block_dsd", "tma_block_dsd_transposed", "tma_block_sdd", "tma_block_spmm"),
    *("tma_dsd", "tma_dsd_transposed", "tma_sdd", "turned_block_spmm"),
]
WAIT, LET = "wait_for_kernel_before() {\n", "let_next_kernel_begin() {\n"
BOOKS = """
#include <mutex>
#include <set>
#include <tuple>
namespace early_start {
inline std::mutex mutex;
inline std::set<std::tuple<const void*, unsigned, unsigned, unsigned>> waited;
inline auto self() {
  return std::tuple<const void*, unsigned, unsigned, unsigned>(
      sparsegen::emulator::running_place, blockIdx.x, blockIdx.y, blockIdx.z);
}
inline void wait() {
  const std::lock_guard lock(mutex);
  waited.insert(self());
}
inline void let() {
  const std::lock_guard lock(mutex);
  if (!waited.contains(self())) sparsegen::emulator::fault("it lets the next kernel begin and has not waited");
}
struct End {
  ~End() {
    if (waited.empty()) __builtin_trap();  // which the launch reports
  }
} end;
}  // namespace early_start
"""


def watched(source: str) -> str:
    """The source with both instructions for the emulator."""
    assert source.count(WAIT) == source.count(LET) == 1
    head, body = source.split("__device__ __forceinline__ void " + WAIT)
    source = head + BOOKS + "__device__ __forceinline__ void " + WAIT + body
    source = source.replace(WAIT, WAIT + "  early_start::wait();\n")
    return source.replace(LET, LET + "  early_start::let();\n")


@cache
def smallest(name: str) -> Variant:
    """The variant of a family with the shortest source."""
    return min(sample(families()[name]), key=lambda variant: len(variant.source))


def check(variant: Variant, source: str, toolchain: EmulatorToolchain) -> None:
    name = variant.matrices[0]
    problem = variant.kind.problem(matrices()[name])
    given = variant.family.pack(problem, variant.config, matrices()[name])
    operands = problem.random_operands(np.random.default_rng(0), matrices()[name].nnz)
    prepared = call(variant.family, problem, variant.config, given, operands, matrices()[name].nnz)
    assert prepared.launch.starts_early
    kernel = toolchain.compile_sanitized(variant.family.name, variant.family.entry, source)
    run_and_compare(replace(variant, source=source), kernel, problem, matrices()[name], given, where=name)


def test_these_are_all_families_that_begin_early() -> None:
    """Each template has one whole golden source."""
    templates = {families()[name].template for name in EARLY}
    assert {template for template, golden in FIRST.items() if WAIT in golden.source()} == templates
    assert set(EARLY) == {name for name, family in families().items() if family.template in templates}


@pytest.mark.sanitizer
@pytest.mark.parametrize("name", EARLY)
def test_families_wait_before_they_let_the_next_kernel_begin(
    name: str, emulator_toolchain: EmulatorToolchain
) -> None:
    check(smallest(name), watched(smallest(name).source), emulator_toolchain)


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ({"    wait_for_kernel_before();\n    let_next": "    let_next"}, "begin and has not waited"),
        ({"wait_for_kernel_before();": "", "let_next_kernel_begin();": ""}, "process ended with"),
    ],
    ids=["too soon", "never"],
)
def test_a_family_that_does_not_is_caught(
    planted: dict[str, str], said: str, emulator_toolchain: EmulatorToolchain
) -> None:
    variant = smallest("tma_sdd")
    source = watched(variant.source)
    start = source.rindex('extern "C"')
    kernel = source[start:]
    for old, new in planted.items():
        assert old in kernel
        kernel = kernel.replace(old, new)
    with pytest.raises(KernelFault, match=said):
        check(variant, source[:start] + kernel, emulator_toolchain)


@pytest.mark.sanitizer
@pytest.mark.parametrize("early", [0, 1])
@pytest.mark.parametrize(
    ("entry", "rows"), [("draw_few", 21), ("draw_bernoulli", 20), ("draw_bernoulli", 70)]
)
def test_draws_wait_before_they_let_the_next_kernel_begin(
    entry: str, rows: int, early: int, emulator_toolchain: EmulatorToolchain
) -> None:
    source = watched(plain_source("block_mask.cu"))
    kernel = emulator_toolchain.compile_sanitized("plain", entry, source)
    is_few = entry == "draw_few"
    columns = 30 if is_few else 40
    layout, draw = BlockMaskLayout(rows, columns), MaskDraw(0.5)
    mask, state = np.zeros(layout.words, np.uint64), np.array([4, 0], np.uint64)
    scratch = [] if is_few else [np.zeros(scratch_words(layout), np.uint64)]
    given = [rows, columns, as_signed(draw.amount(layout)), early, state, *scratch, mask]
    launch = Launch((-(-rows // 32), 1, 1), (32 if is_few else 1024, 1, 1), starts_early=True)
    *_, found = run_sanitized(kernel.binary, launch, given)
    np.testing.assert_array_equal(found, packed(draw_blocks(layout, draw, 4, 0)))
