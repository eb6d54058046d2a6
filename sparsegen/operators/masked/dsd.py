"""``dsd`` and ``dsd_transposed``: a matrix masked by blocks times a dense one.

The forward product of a linear layer behind structured dropout, and the gradient of its weight (A. Lo, Efficient
Sparse Training with Structured Dropout). A dense matrix = a sparse one times a dense one, hence the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators.base.checked_rows import some_columns
from sparsegen.operators.base.epilogue import Epilogue
from sparsegen.operators.base.fields import trait
from sparsegen.operators.base.layout import Layout
from sparsegen.operators.base.problem import LoneRow
from sparsegen.operators.base.reference import DeviceReference
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.operators.masked.masked_problem import (
    LiveParts,
    MaskedOperator,
    MaskedProblem,
    live_elements,
    scaled_product,
    stored,
)
from sparsegen.system.device_memory import PlainDevice
from sparsegen.system.numpy_types import Array


class DsdOperator(MaskedOperator):
    """Y = epilogue(s · (X ⊙ M) · W) with a mask M for every call; masked blocks of X are never read."""

    problem: DsdProblem

    def __call__(
        self,
        x: object,
        w: object,
        mask: object,
        out: object = None,
        stream: object = None,
        scale: object = None,
        bias: object = None,
        residual: object = None,
    ) -> Any:
        """Multiply; see `Operator` for ``out``, ``stream``, the result and the errors.

        Args:
            x: m × k, contiguous, of the problem's dtype; with a batch one for each element, as are W, Y and residual.
            w: k × n (layout row) or n × k (layout column, as the weight of `torch.nn.Linear`).
            mask: a `BlockMask`, or the buffer of one in the operands' library; with a batch one for each element.
            scale: one float32, an array of x's kind; overrides the number given to `prepare`.
            bias: n values of x's kind, for an epilogue with a bias.
            residual: array of Y's shape, for an epilogue with a residual; another array than ``out``.
        """
        added = self.problem.epilogue.given(bias, residual, self.problem.n)
        return self._run((x, w, self._words(mask), scale, *added), out, stream)


class DsdTransposedOperator(MaskedOperator):
    """Y = s · (X ⊙ M)ᵀ · D with a mask M for every call; masked blocks of X are never read."""

    problem: DsdTransposedProblem

    def __call__(
        self,
        x: object,
        d: object,
        mask: object,
        out: object = None,
        stream: object = None,
        scale: object = None,
    ) -> Any:
        """Multiply; see `Operator` for ``out``, ``stream``, the result and the errors.

        Args:
            x: m × k, contiguous, of the problem's dtype; with a batch one for each element, as are D and Y.
            d: m × n; Y is k × n (layout row) or n × k (layout column, as the gradient of `torch.nn.Linear`'s weight).
            mask: mask of X; a `BlockMask`, or the buffer of one in the operands' library; with a batch one for each
                element.
            scale: one float32, an array of x's kind; overrides the number given to `prepare`.
        """
        return self._run((x, d, self._words(mask), scale), out, stream)


@dataclass(frozen=True, slots=True)
class DsdProblem(MaskedProblem):
    """Y[m, n] = epilogue(s · (X[m, k] ⊙ M) · W[k, n]), with a mask M of blocks for every call and a number s.

    The bias has one value for each column of Y; GELU is the exact one.
    """

    operator: ClassVar[str] = "dsd"
    title: ClassVar[str] = "DSD"
    summary: ClassVar[str] = "Y = (X ⊙ mask) · W, a mask for every call"
    operator_type: ClassVar[type[DsdOperator]] = DsdOperator

    w_layout: Layout = trait(Layout.ROW, "memory order of W: k × n in row, n × k in column")
    epilogue: Epilogue = trait(Epilogue.NONE, "what is done to the result before it is stored", near=True)

    def dense_operands(self) -> tuple[TensorSpec, ...]:
        first, second = self.factor_types
        w = (self.k, self.n) if self.w_layout is Layout.ROW else (self.n, self.k)
        return (
            TensorSpec("x", self.of_batch((self.m, self.k)), first),
            TensorSpec("w", self.of_batch(w), second),
        )

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        added = self.epilogue.operands(self.n, self.result(nnz))
        return (*MaskedProblem.operands(self, nnz), *added)

    def result(self, nnz: int) -> TensorSpec:
        return TensorSpec("y", self.of_batch((self.m, self.n)), self.dtype)

    @property
    def needed_shares(self) -> Mapping[str, float]:
        return {"x": self.density.share, "w": self.live_columns}

    @property
    def product_sizes(self) -> tuple[int, int, int]:
        return self.m, self.k, self.n

    def dense_result(self, torch: Any, live: LiveParts, operands: Mapping[str, Any], out: Any) -> Any:
        x, w = live.of(operands["x"], operands["mask"]), operands["w"]
        right = w if self.w_layout is Layout.ROW else w.t()
        result = scaled_product(torch, x, right, operands, operands.get("bias"), out)
        if self.epilogue is Epilogue.BIAS_RELU:
            result.relu_()
        if self.epilogue is Epilogue.BIAS_GELU:
            result.copy_(torch.nn.functional.gelu(result))
        if self.epilogue.has_residual:
            result += operands["residual"]
        return result

    def terms(self, matrix: CsrMatrix) -> Array:
        return np.full(1, self.k)

    def live_terms(self, given: Mapping[str, Array]) -> Array:
        return live_elements(self.mask_of(given), axis=1)

    def factors(self, given: Mapping[str, Array]) -> tuple[Array, Array]:
        x = np.where(self.mask_of(given).expand(), given["x"], 0.0)
        return x, stored(given["w"], self.w_layout)

    def finished(self, exact: Array, magnitude: Array, given: Mapping[str, Array]) -> tuple[Array, Array]:
        for name in ("bias", "residual"):
            if name in given:
                added = given[name]
                exact, magnitude = exact + added, magnitude + np.abs(added)
        return self.epilogue.activated(exact, magnitude)

    def finish_on(
        self, given: Mapping[str, Array], device: PlainDevice, into: DeviceReference, steps: tuple[int, int]
    ) -> None:
        by_row, by_column = steps  # Y's columns have a value of the bias each
        self.epilogue.finish_on(device, into, (self.n, self.m), (by_column, by_row), given)

    def lone_row(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], row: int, rng: np.random.Generator
    ) -> LoneRow:
        columns = some_columns(self.n, rng)
        alone = replace(self, m=1, n=columns.size)
        w = operands["w"]
        given = {
            "x": operands["x"][row : row + 1],
            "w": np.ascontiguousarray(w[:, columns] if self.w_layout is Layout.ROW else w[columns]),
            "mask": self.sub_mask(operands, (1, self.k), [row // self.block.rows], slice(None)),
            "scale": operands["scale"],
        }
        if self.epilogue.has_bias:
            given["bias"] = operands["bias"][columns]
        if self.epilogue.has_residual:
            given["residual"] = operands["residual"][row : row + 1, columns]
        return LoneRow(alone, alone.without_pattern, given, row * self.n + columns)


@dataclass(frozen=True, slots=True)
class DsdTransposedProblem(MaskedProblem):
    """Y[k, n] = s · (X[m, k] ⊙ M)ᵀ · D[m, n], with a mask M of blocks for every call and a number s."""

    operator: ClassVar[str] = "dsd_transposed"
    title: ClassVar[str] = "transposed DSD"
    summary: ClassVar[str] = "Y = (X ⊙ mask)ᵀ · D, a mask for every call"
    operator_type: ClassVar[type[DsdTransposedOperator]] = DsdTransposedOperator

    y_layout: Layout = trait(Layout.ROW, "memory order of Y: k × n in row, n × k in column")

    def dense_operands(self) -> tuple[TensorSpec, ...]:
        first, second = self.factor_types
        return (
            TensorSpec("x", self.of_batch((self.m, self.k)), first),
            TensorSpec("d", self.of_batch((self.m, self.n)), second),
        )

    def result(self, nnz: int) -> TensorSpec:
        shape = (self.k, self.n) if self.y_layout is Layout.ROW else (self.n, self.k)
        return TensorSpec("y", self.of_batch(shape), self.dtype)

    @property
    def result_layout(self) -> Layout:
        return self.y_layout

    @property
    def needed_shares(self) -> Mapping[str, float]:
        return {"x": self.density.share, "d": self.live_rows}

    @property
    def product_sizes(self) -> tuple[int, int, int]:
        return self.k, self.m, self.n

    def dense_result(self, torch: Any, live: LiveParts, operands: Mapping[str, Any], out: Any) -> Any:
        x, d = live.of(operands["x"], operands["mask"]), operands["d"]
        left, right = (x.t(), d) if self.y_layout is Layout.ROW else (d.t(), x)
        return scaled_product(torch, left, right, operands, out=out)

    def terms(self, matrix: CsrMatrix) -> Array:
        return np.full(1, self.m)

    def live_terms(self, given: Mapping[str, Array]) -> Array:
        return live_elements(self.mask_of(given), axis=0)

    def factors(self, given: Mapping[str, Array]) -> tuple[Array, Array]:
        x = np.where(self.mask_of(given).expand(), given["x"], 0.0)
        return x.T, given["d"]

    def lone_row(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], row: int, rng: np.random.Generator
    ) -> LoneRow:
        columns = some_columns(self.n, rng)
        alone = replace(self, k=1, n=columns.size)
        given = {
            "x": np.ascontiguousarray(operands["x"][:, row : row + 1]),
            "d": np.ascontiguousarray(operands["d"][:, columns]),
            "mask": self.sub_mask(operands, (self.m, 1), slice(None), [row // self.block.columns]),
            "scale": operands["scale"],
        }
        places = row * self.n + columns if self.y_layout is Layout.ROW else columns * self.k + row
        return LoneRow(alone, alone.without_pattern, given, places)


PROBLEMS = (DsdProblem, DsdTransposedProblem)
