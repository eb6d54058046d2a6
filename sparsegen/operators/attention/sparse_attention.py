"""``sparse_attention``: softmax(s · Q · Kᵀ at a mask) · V, for heads that share the mask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sparsegen.errors import OperandError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators.base.checked_rows import row_alone
from sparsegen.operators.base.cost import Cost, matrix_bytes
from sparsegen.operators.base.dtype import SIGNIFICAND_BITS, DType
from sparsegen.operators.base.fields import batch_size, element_type, size
from sparsegen.operators.base.operator import Operator
from sparsegen.operators.base.problem import LoneRow, Problem
from sparsegen.operators.base.reference import DeviceReference, Reference
from sparsegen.operators.base.scale import kept_scale
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.system.device_memory import PlainDevice
from sparsegen.system.numpy_types import Array
from sparsegen.system.threads import in_threads

ROWS = 64  # queries of which the reference is computed together, over the keys that any of them sees


class SparseAttentionOperator(Operator):
    """softmax(scale · Q · Kᵀ at one mask) · V in one launch; a query that sees no key gets zeros."""

    problem: SparseAttentionProblem

    def __call__(self, q: object, k: object, v: object, out: object = None, stream: object = None) -> Any:
        """Attend; see `Operator` for ``out``, ``stream``, the result and the errors.

        Args:
            q, k, v: m × k, n × k and n × k, contiguous, of the problem's dtype; with a batch each has a leading batch
                dimension. Keys and values must be finite even if no query sees them: a weight of 0 times infinity is
                NaN. ``out`` may be q, but share no memory with the others.
        """
        if out is not None and (out is k or out is v):
            raise OperandError(
                "out: expected another array than k and v, which are read while out is written"
            )
        return self._run((q, k, v, None), out, stream)


@dataclass(frozen=True, slots=True)
class SparseAttentionProblem(Problem):
    """O = softmax(s · Q · Kᵀ at the mask) · V, with one mask of m queries × n keys for a batch of heads.

    Q and O are m × k, K and V are n × k, row-major, of each head. A query whose row of the mask has no nonzero gets
    zeros. The values of the mask play no part. The scale s is an operand, one float32 for all heads, so that variants
    serve every scale.
    """

    operator: ClassVar[str] = "sparse_attention"
    title: ClassVar[str] = "attention"
    summary: ClassVar[str] = "softmax(s · Q · Kᵀ at the matrix's nonzeros) · V"
    matrix_sizes: ClassVar[tuple[str, str]] = ("m", "n")
    dense_sizes: ClassVar[tuple[str, ...]] = ("k",)
    keeps: ClassVar[tuple[str, ...]] = ("scale",)
    operator_type: ClassVar[type[SparseAttentionOperator]] = SparseAttentionOperator
    reference_files: ClassVar[tuple[str, ...]] = ("rows.cu",)

    m: int = size("queries, rows of the mask", flags=("--m",))
    n: int = size("keys, columns of the mask")
    k: int = size("columns of Q, K and V", usual=128, flags=("-k", "--k"))
    dtype: DType = element_type()
    batch: int = batch_size()

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        return (
            TensorSpec("q", self.of_batch((self.m, self.k)), self.dtype),
            TensorSpec("k", self.of_batch((self.n, self.k)), self.dtype),
            TensorSpec("v", self.of_batch((self.n, self.k)), self.dtype),
            TensorSpec("scale", (1,), DType.FLOAT32),
        )

    def result(self, nnz: int) -> TensorSpec:
        return TensorSpec("o", self.of_batch((self.m, self.k)), self.dtype)

    def cost(self, nnz: int) -> Cost:
        """Two products of length k for each head and nonzero; the mask's pattern, Q, K, V and O once each."""
        dense = sum(spec.nbytes for spec in self.operands(nnz)) + self.result(nnz).nbytes
        return Cost(flop=4 * self.batch * nnz * self.k, bytes=matrix_bytes(self.m, self.n, nnz, 0) + dense)

    def kept(self, given: Mapping[str, object]) -> dict[str, object]:
        """The scale as an array; by default 1 / √k. See `Problem.kept`."""
        return kept_scale(given, self.k**-0.5)

    def element_reference(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> Reference:
        """See `Problem.reference`.

        With weights w = exp(z - the row's largest) the result is the sum of w · v over that of w. To first order it
        errs by at most twice the largest relative error of a weight times the mean of |v| under the weights:

        - z is a dot product of k terms in float32 (Higham, 3.1; |q| · |k| bounds the sum of their absolute
          values by Cauchy and Schwarz), whose rounding, scaling and difference change an exponent by a few units of the
          last place of the row's largest |z|;
        - the sums over the row have as many terms as it has nonzeros;
        - weights may be rounded to the dtype before they meet V, which takes them off by its unit roundoff, or in
          float16 by half of its smallest number.

        The magnitude is such that 4 · √(terms + 2) units of float32's last place of it make that bound.
        """
        q, k, v = (self.dtype.from_storage(operands[name]) for name in ("q", "k", "v"))
        scale = float(operands["scale"][0])
        exact, magnitude = np.zeros((self.m, self.k)), np.zeros((self.m, self.k))

        def attend(start: int) -> None:
            part = slice(start, min(start + ROWS, self.m))
            seen, keys = _block(matrix, part.start, part.stop)
            if keys.size:
                own_q, own_k, own_v = (x.astype(np.float64) for x in (q[part], k[keys], v[keys]))
                exact[part], magnitude[part] = _attention(own_q, own_k, own_v, seen, scale, self.dtype)

        in_threads(attend, range(0, self.m, ROWS), threads)
        return Reference(exact, magnitude, self.terms(matrix), self.dtype)

    def terms(self, matrix: CsrMatrix) -> Array:
        return np.diff(matrix.row_offsets)[:, None]

    def fill_on(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], device: PlainDevice, into: DeviceReference
    ) -> None:
        pattern = device.upload(matrix.row_offsets), device.upload(matrix.column_indices)
        given = (device.upload(operands[name]) for name in ("q", "k", "v", "scale"))
        weights = device.filled(8 * matrix.nnz)
        sizes = (self.m, self.k, SIGNIFICAND_BITS[self.dtype])
        found = (into.exact, into.magnitude)
        device.run("rows.cu:sparse_attention", self.m, *sizes, *pattern, *given, weights, *found)

    def lone_row(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], row: int, rng: np.random.Generator
    ) -> LoneRow:
        own, part = row_alone(matrix, row)
        seen = matrix.column_indices[part]
        given = {"q": operands["q"][row : row + 1], "k": operands["k"][seen], "v": operands["v"][seen]}
        places = row * self.k + np.arange(self.k)
        alone = replace(self, m=1, n=own.nnz)
        return LoneRow(alone, own, given | {"scale": operands["scale"]}, places)


def _block(matrix: CsrMatrix, start: int, stop: int) -> tuple[Array, Array]:
    """Some rows of a mask as booleans over those of its columns that any of them sees, and these columns."""
    offsets = matrix.row_offsets[start : stop + 1].astype(np.int64)
    keys, place = np.unique(matrix.column_indices[offsets[0] : offsets[-1]], return_inverse=True)
    seen = np.zeros((stop - start, keys.size), dtype=bool)
    seen[np.repeat(np.arange(stop - start), np.diff(offsets)), place] = True
    return seen, keys


def _attention(q: Array, k: Array, v: Array, seen: Array, scale: float, dtype: DType) -> tuple[Array, Array]:
    """Some queries' attention and its magnitude, in float64.

    Args:
        seen: queries × keys.
    """
    head_dim, lengths = q.shape[1], seen.sum(axis=1, keepdims=True)
    z = np.where(seen, q @ k.T * scale, -np.inf)
    largest = np.where(lengths, z.max(axis=1, keepdims=True), 0.0)
    weights = np.exp(z - largest)
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    exact, mean = weights @ v, weights @ np.abs(v)
    # Bound on scores, by norms of each query and of the longest key that it sees.
    longest = np.where(seen, np.linalg.norm(k, axis=1), 0.0).max(axis=1, keepdims=True)
    size = np.abs(scale) * np.linalg.norm(q, axis=1, keepdims=True) * longest
    of_scores = 4.0 * np.sqrt(head_dim + 2.0) * size
    roundings = 16.0 + 16.0 * np.abs(np.where(seen, z, 0.0)).max(axis=1, keepdims=True)
    growth, unit = 4.0 * np.sqrt(lengths + 2.0), DType.FLOAT32.unit_roundoff
    error = (2.0 * (of_scores + roundings + growth) + dtype.unit_roundoff / unit) * mean
    if dtype is DType.FLOAT16:
        error += 2.0**-25 / unit * (seen @ np.abs(v))
    return exact, error / growth


PROBLEMS = (SparseAttentionProblem,)
