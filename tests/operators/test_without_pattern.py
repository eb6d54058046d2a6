"""Operators whose sparsity comes with every call need no memory for a matrix, however large they are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import sparsegen
from sparsegen import backends
from sparsegen.dispatch.wanted import Wanted
from sparsegen.errors import NoVariantError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import MAX_INDEX, OPERATORS
from sparsegen.tuning_db.records import Workload

CAP = 16 * 2**20  # bytes; the row offsets of the largest matrix are 8 GiB
BLOCKS = {"k": 16, "n": 16, "block": "16x16", "density": 0.5}
CONV = {
    **{"height": 2**20, "width": 2**11 - 1, "channels": 16, "filters": 16},
    **{"mask_block": "16x16", "density": 0.5},
}
ATTENTION = {"queries": MAX_INDEX, "keys": 64, "kv_heads": 1, "group": 1, "head_dim": 16, "density": 0.5}
LARGEST: dict[str, dict[str, Any]] = {
    "block_attention": ATTENTION,
    "block_attention_backward": ATTENTION,
    "dsd": {"m": MAX_INDEX, **BLOCKS},
    "dsd_transposed": {"m": MAX_INDEX, **BLOCKS},
    "sdd": {"m": MAX_INDEX, **BLOCKS},
    "paged_attention": {
        "queries": 1,
        "keys": MAX_INDEX,
        "kv_heads": 1,
        "group": 1,
        "head_dim": 16,
        "density": 0.5,
    },
    "masked_conv2d": CONV,
    "masked_conv2d_weights": {"images": 1, **CONV},
    "submanifold_conv3d": {"points": MAX_INDEX, "channels": 16, "filters": 16, "density": 0.5},
    "submanifold_conv3d_weights": {"points": MAX_INDEX, "channels": 16, "filters": 16, "density": 0.5},
}


def peak(work: Callable[[], Any]) -> int:
    """The bytes that Python and NumPy hold at most while it runs, beside what they held before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_every_operator_without_a_pattern_is_here() -> None:
    assert {name for name, kind in OPERATORS.items() if not kind.has_pattern} == {*LARGEST}


@pytest.mark.parametrize("operator", LARGEST)
def test_the_largest_problem_takes_no_memory(operator: str) -> None:
    def look_up() -> None:
        wanted = Wanted.of(None, None, operator, False, LARGEST[operator])
        workload = Workload.of(wanted.problem, wanted.matrix)
        assert wanted.matrix.shape == wanted.problem.matrix_shape
        with suppress(NoVariantError):  # "outputs are counted with 31 bits"
            sparsegen.lookup(None, workload.problem, device=backends.emulator_device())

    look_up()  # modules are imported and packaged results read
    assert peak(look_up) < CAP


def test_the_largest_product_is_prepared() -> None:
    def prepare() -> None:
        sparsegen.prepare(operator="dsd", device="emulator", **LARGEST["dsd"])

    prepare()
    assert peak(prepare) < CAP


def test_a_matrix_of_zeros_is_like_any_other() -> None:
    empty = CsrMatrix.without_nonzeros((3, 5))
    assert empty.fingerprint() == CsrMatrix((3, 5), [0] * 4, empty.column_indices, empty.values).fingerprint()
    assert (empty.nnz, empty.row_offsets.tolist(), empty.to_dense().sum()) == (0, [0] * 4, 0)
    assert empty.transposed().shape == (5, 3)
