"""Softmax of CSR rows by a subwarp, a warp or a block each, with online normalisation of long rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.family import (
    Constraint,
    Device,
    Family,
    Launch,
    Packed,
    Value,
    empty_as_one,
    tunable,
)
from sparsegen.features import Features
from sparsegen.formats import MAX_INDEX, CsrMatrix
from sparsegen.kernels._rows import order_rows
from sparsegen.operators import SoftmaxProblem

WARP = 32
VALUES_KEPT = 64  # of a thread, in registers


@dataclass(frozen=True)
class RowSoftmaxConfig:
    """One point of the tuning space of `RowSoftmax`."""

    threads_per_row: int = tunable(32, (4, 8, 16, 32, 64, 128, 256, 512, 1024), "threads that share a row")
    rows_per_block: int = tunable(4, (1, 2, 4, 8, 16, 32, 64), "rows of a block")
    vector_width: int = tunable(4, (1, 2, 4, 8), "values per load and store")
    vectors_kept: int = tunable(
        2, (1, 2, 4, 8), "vectors of a thread that stay in registers; what a row has beyond is read twice"
    )
    row_order: str = tunable(
        "sorted",
        ("natural", "sorted"),
        "row swizzle: as they come, or the longest first, so that subwarps of a warp end together",
        packs=True,
    )


class RowSoftmax(Family[SoftmaxProblem, RowSoftmaxConfig]):
    """Rows without nonzeros are not launched at all.

    A row's largest value and its sum of powers are kept together and corrected as larger values come, so that a row
    that does not fit the registers is read twice, not three times.
    """

    name = "row_softmax"
    summary = "softmax of CSR rows, by a subwarp, a warp or a block each"
    source = "Milakov, Gimelshein: Online normalizer calculation for softmax, arXiv 1805.02867, section 3"
    template = "sparse_softmax/row_softmax.cu.j2"
    entry = "row_softmax"
    size_names = ("rows",)
    packed_names = ("row_order", "row_offsets")
    problem_type = SoftmaxProblem
    config_type = RowSoftmaxConfig

    def constraints(
        self, problem: SoftmaxProblem, config: RowSoftmaxConfig, device: Device
    ) -> Iterator[Constraint]:
        c = config
        threads = c.threads_per_row * c.rows_per_block
        yield Constraint(
            threads % WARP == 0 and threads <= 1024,
            f"threads_per_row · rows_per_block ({threads}) is a multiple of 32, at most 1024",
        )
        yield Constraint(
            c.threads_per_row <= WARP or c.rows_per_block == 1,
            f"a row of several warps ({c.threads_per_row} threads) has a block of its own",
        )
        yield Constraint(
            c.vector_width * problem.dtype.itemsize <= 16,
            f"vector_width ({c.vector_width}) elements are at most 16 bytes",
        )
        yield Constraint(
            c.vectors_kept * c.vector_width <= VALUES_KEPT,
            f"a thread keeps vectors_kept · vector_width ({c.vectors_kept * c.vector_width}) values, "
            f"at most {VALUES_KEPT}",
        )

    def constants(self, problem: SoftmaxProblem, config: RowSoftmaxConfig) -> Mapping[str, Value]:
        return {"dtype": problem.dtype.value}

    def prepare(self, problem: SoftmaxProblem, config: RowSoftmaxConfig, matrix: CsrMatrix) -> Packed:
        lengths = np.diff(matrix.row_offsets)
        margin = 1024 * VALUES_KEPT  # places past a row's end that the largest block may count to
        if matrix.nnz > MAX_INDEX - margin:
            raise MatrixError(
                f"{matrix.nnz} nonzeros are more than 32-bit positions reach ({MAX_INDEX - margin}); "
                "split the matrix by rows"
            )
        order = order_rows(lengths, config.row_order, 1)
        order = order[lengths[order] > 0]
        return Packed(
            arrays={"row_order": empty_as_one(order), "row_offsets": np.array(matrix.row_offsets)},
            sizes={"rows": int(order.size)},
        )

    def launch(
        self, problem: SoftmaxProblem, config: RowSoftmaxConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        c = config
        return Launch(
            grid=(-(-sizes["rows"] // c.rows_per_block), 1, 1),
            block=(c.threads_per_row * c.rows_per_block, 1, 1),
        )

    def guessed_rate(self, problem: SoftmaxProblem, features: Features) -> float:
        return 1e5

    def guess(self, problem: SoftmaxProblem, features: Features, device: Device) -> RowSoftmaxConfig:
        vector = 16 // problem.dtype.itemsize
        threads = 4
        while threads < 512 and threads * vector * 2 < features.row_mean:
            threads *= 2
        return RowSoftmaxConfig(
            threads_per_row=threads,
            rows_per_block=max(1, 128 // threads),
            vector_width=vector,
        )


FAMILY = RowSoftmax()
