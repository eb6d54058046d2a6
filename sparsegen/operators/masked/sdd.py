"""``sdd``: the blocks that a mask wants of a product of dense matrices.

The gradient with respect to the input of a linear layer behind structured dropout (A. Lo, Efficient Sparse Training
with Structured Dropout). A sparse matrix = a dense one times a dense one, hence the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators.base.fields import trait
from sparsegen.operators.base.layout import Layout
from sparsegen.operators.base.problem import LoneRow
from sparsegen.operators.base.reference import DeviceReference
from sparsegen.operators.base.rest import Rest
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.operators.masked.masked_problem import (
    LiveParts,
    MaskedOperator,
    MaskedProblem,
    scaled_product,
    stored,
)
from sparsegen.system.device_memory import WARP, PlainDevice
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array


class SddOperator(MaskedOperator):
    """Y = s · (D · Wᵀ) ⊙ M with a mask M for every call.

    Dead blocks cost no products. They become zero, or are left as they were (`SddProblem.rest`).
    """

    problem: SddProblem

    def __call__(
        self,
        d: object,
        w: object,
        mask: object,
        out: object = None,
        stream: object = None,
        scale: object = None,
    ) -> Any:
        """Multiply; see `Operator` for ``out``, ``stream``, the result and the errors.

        Where dead blocks are left as they were, ``out`` is needed.

        Args:
            d: m × n, contiguous, of the problem's dtype; with a batch one for each element, as are W and Y (m × k).
            w: see `DsdOperator`: k × n (layout row) or n × k (layout column).
            mask: mask of Y; a `BlockMask`, or the buffer of one in the operands' library; with a batch one for each
                element.
            scale: one float32, an array of d's kind; overrides the number given to `prepare`.
        """
        self.problem.rest.require_out(out)
        return self._run((d, w, self._words(mask), scale), out, stream)


@dataclass(frozen=True, slots=True)
class SddProblem(MaskedProblem):
    """Y[m, k] = s · (D[m, n] · W[k, n]ᵀ) ⊙ M, with a mask M of blocks for every call and a number s.

    Where the rest is kept, dead blocks of Y are not written.
    """

    operator: ClassVar[str] = "sdd"
    title: ClassVar[str] = "SDD"
    summary: ClassVar[str] = "Y = (D · Wᵀ) ⊙ mask, a mask for every call"
    operator_type: ClassVar[type[SddOperator]] = SddOperator

    w_layout: Layout = trait(Layout.ROW, "memory order of W: k × n in row, n × k in column")
    rest: Rest = trait(
        Rest.FILLED, "what becomes of dead blocks: filled with zeros, or kept as they were", unsaid=True
    )

    def dense_operands(self) -> tuple[TensorSpec, ...]:
        first, second = self.factor_types
        w = (self.k, self.n) if self.w_layout is Layout.ROW else (self.n, self.k)
        return (
            TensorSpec("d", self.of_batch((self.m, self.n)), first),
            TensorSpec("w", self.of_batch(w), second),
        )

    def result(self, nnz: int) -> TensorSpec:
        return TensorSpec("y", self.of_batch((self.m, self.k)), self.dtype, is_updated=self.rest is Rest.KEPT)

    @property
    def needed_shares(self) -> Mapping[str, float]:
        written = self.density.share if self.rest is Rest.KEPT else 1.0
        return {"d": self.live_rows, "w": self.live_columns, "y": written}

    @property
    def product_sizes(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k

    @property
    def zeroing_bytes(self) -> float:
        """The product's dead blocks are written, or its live ones copied to where the rest is kept."""
        live = self.density.share
        share = 2 * live if self.rest is Rest.KEPT else 1 - live
        return self.m * self.k * self.dtype.itemsize * share

    def dense_result(self, torch: Any, live: LiveParts, operands: Mapping[str, Any], out: Any) -> Any:
        w, words = operands["w"], operands["mask"]
        right = w.t() if self.w_layout is Layout.ROW else w
        if self.rest is Rest.KEPT and out is not None:
            return live.into(out, scaled_product(torch, operands["d"], right, operands), words)
        return live.without_dead(scaled_product(torch, operands["d"], right, operands, out=out), words)

    def terms(self, matrix: CsrMatrix) -> Array:
        return np.full(1, self.n)

    def factors(self, given: Mapping[str, Array]) -> tuple[Array, Array]:
        return given["d"], stored(given["w"], self.w_layout).T

    def finished(self, exact: Array, magnitude: Array, given: Mapping[str, Array]) -> tuple[Array, Array]:
        live = self.mask_of(given).expand()
        return np.where(live, exact, self.rest.left), np.where(live, magnitude, 0.0)

    def finish_on(
        self, given: Mapping[str, Array], device: PlainDevice, into: DeviceReference, steps: tuple[int, int]
    ) -> None:
        live = device.upload(self.mask_of(given).expand().astype(np.uint8))
        count, is_kept = self.m * self.k, int(self.rest is Rest.KEPT)
        device.run(
            "product.cu:fill_unless", ceil_div(count, WARP), count, is_kept, live, into.exact, into.magnitude
        )

    def lone_row(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], row: int, rng: np.random.Generator
    ) -> LoneRow:
        alone = replace(self, m=1)
        given = {
            "d": operands["d"][row : row + 1],
            "w": operands["w"],
            "mask": self.sub_mask(operands, (1, self.k), [row // self.block.rows], slice(None)),
            "scale": operands["scale"],
        }
        return LoneRow(alone, alone.without_pattern, given, row * self.k + np.arange(self.k))


PROBLEMS = (SddProblem,)
