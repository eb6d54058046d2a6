"""``block_attention_backward``: the gradients of `BlockAttentionProblem` with respect to Q, K and V."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparsegen.errors import OperandError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators.attention_span import Band, kept_band
from sparsegen.operators.attention_traits import MasksOf, TokenOrder
from sparsegen.operators.base.cost import Cost
from sparsegen.operators.base.dtype import Array, DType
from sparsegen.operators.base.operator import Operator
from sparsegen.operators.base.random_numbers import normal_numbers
from sparsegen.operators.base.reference import Reference
from sparsegen.operators.base.scale import kept_scale
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.operators.block_attention import ROWS, BlockAttentionProblem
from sparsegen.system.threads import in_threads

PRODUCTS = 5  # products of length head_dim for each live place: scores, dP, dQ, dK, dV
SMALLEST_HALF = 2.0**-25  # half of float16's smallest number


class BlockAttentionBackwardOperator(Operator):
    """The gradients of a `BlockAttentionOperator`: dQ is the result, dK and dV are written beside it."""

    problem: BlockAttentionBackwardProblem

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        o: Any,
        do: Any,
        lse: Any,
        mask: Any = None,
        out: Any = None,
        stream: Any = None,
        scale: Any = None,
        band: Any = None,
        dk: Any = None,
        dv: Any = None,
    ) -> Any:
        """Differentiate; see `Operator` for ``out``, which becomes dQ, ``stream``, the result and the errors.

        Args:
            q, k, v, mask, scale, band: the forward pass's operands.
            o, lse: its results: the output, and the natural logarithm of each query's sum of exponentials.
            do: the gradient with respect to the result, of its shape.
            dk, dv: arrays in the shapes of K and V, which the call writes; over a group of heads it adds up.
        """
        masks = () if self.problem.masks is MasksOf.NOBODY else (self.problem.mask_words(mask),)
        if not masks and mask is not None:
            raise OperandError(
                'mask: expected none, as the problem has masks of nobody; prepare it with masks="all"'
            )
        return self._run((q, k, v, o, do, lse, *masks, scale, band, dk, dv), out, stream)


@dataclass(frozen=True, slots=True)
class BlockAttentionBackwardProblem(BlockAttentionProblem):
    """dQ, dK and dV of softmax(s · Q · Kᵀ at the live places) · V, from O, its gradient dO and the log-sum-exp.

    With weights P = exp(s · Q · Kᵀ - LSE) and δ the sum of dO ∘ O over a row: dV = Pᵀ · dO, dS = P ∘ (dO · Vᵀ - δ),
    dQ = s · dS · K, dK = s · dSᵀ · Q; dK and dV are sums over the heads of a group. A query without a live place, whose
    LSE is -inf, has no part in them, and gets zeros.
    """

    operator: ClassVar[str] = "block_attention_backward"
    title: ClassVar[str] = "gradient of attention by blocks"
    summary: ClassVar[str] = "the gradients of that attention with respect to Q, K and V"
    operator_type: ClassVar[type[Operator]] = BlockAttentionBackwardOperator  # type: ignore[assignment]

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        return (
            self.dense("q", self.heads, self.queries),
            self.dense("k", self.kv_heads, self.keys),
            self.dense("v", self.kv_heads, self.keys),
            self.dense("o", self.heads, self.queries),
            self.dense("do", self.heads, self.queries),
            self.statistics("lse"),
            *self.of_call(),
            self.dense("dk", self.kv_heads, self.keys, is_written=True),
            self.dense("dv", self.kv_heads, self.keys, is_written=True),
        )

    def result(self, nnz: int) -> TensorSpec:
        return self.dense("dq", self.heads, self.queries)

    def kept(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The scale, by default 1 / √head_dim, the band, by default the span's, and room for dK and dV."""
        room = {name: np.zeros(self._of_keys(name).shape, self.dtype.storage) for name in ("dk", "dv")}
        return kept_scale(given, self.head_dim**-0.5) | {"band": kept_band(given, self.band)} | room

    def _of_keys(self, name: str) -> TensorSpec:
        return self.dense(name, self.kv_heads, self.keys, is_written=True)

    def random_operands(self, rng: np.random.Generator, nnz: int) -> dict[str, Array]:
        """Returns the operands and results of a forward pass on random numbers, and a normal gradient of the result."""
        found = BlockAttentionProblem.random_operands(self, rng, nnz)
        given = [
            self.alone._references(one, 1) for _, one in self.batch_elements(self.without_pattern, found)
        ]
        o, lse = (np.stack([pair[i].exact for pair in given]) for i in range(2))
        found["o"] = self.dtype.to_storage(o.reshape(found["q"].shape).astype(np.float32))
        found["lse"] = lse.reshape(self.statistics("lse").shape).astype(np.float32)
        found["do"] = normal_numbers(rng, self.dense("do", self.heads, self.queries))
        for name in ("dk", "dv"):
            found[name] = self.dtype.to_storage(np.full(self._of_keys(name).shape, np.nan, np.float32))
        return found

    def cost(self, nnz: int) -> Cost:
        """Five products of length head_dim for each live place; every array once."""
        live = self.batch * self.heads * round(self.live_share * self.queries * self.keys)
        moved = sum(spec.nbytes for spec in (*self.operands(nnz), self.result(nnz)))
        return Cost(flop=2 * PRODUCTS * live * self.head_dim, bytes=moved)

    # --- what it computes ---

    def element_reference(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> Reference:
        """dQ; see `Problem.reference` and `gradients_of`."""
        return self._gradients(operands, threads)["dq"]

    def written_references(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> dict[str, Reference]:
        """dK and dV; see `Problem.written_references`."""
        one = self.alone
        found = [one._gradients(given, threads) for _, given in self.batch_elements(matrix, operands)]
        references = {}
        for name in ("dk", "dv"):
            shape = self._of_keys(name).shape
            exact, magnitude = (
                np.stack([getattr(of[name], part) for of in found]).reshape(shape)
                for part in ("exact", "magnitude")
            )
            references[name] = Reference(exact, magnitude, found[0][name].terms, self.dtype)
        return references

    def _gradients(self, operands: Mapping[str, Array], threads: int) -> dict[str, Reference]:
        """All three of a batch element."""
        q, k, v, o, do = (
            self.by_heads(operands[name]).astype(np.float64) for name in ("q", "k", "v", "o", "do")
        )
        lse = operands["lse"].reshape(self.heads, self.queries).astype(np.float64)
        scale, band = float(operands["scale"][0]), Band(*(int(word) for word in operands["band"]))
        masks = self._live_of_heads(operands.get("mask"))
        of_queries = {name: np.zeros(q.shape) for name in ("exact", "magnitude")}
        of_keys = {
            (name, part): np.zeros(k.shape) for name in ("dk", "dv") for part in ("exact", "magnitude")
        }

        def differentiate(of_key: int) -> None:
            for head in range(of_key * self.group, (of_key + 1) * self.group):
                for start in range(0, self.queries, ROWS):
                    part = slice(start, min(start + ROWS, self.queries))
                    seen = band.seen(part, self.keys)
                    if masks is not None:
                        own = masks[head][np.arange(part.start, part.stop) // self.block.rows]
                        seen &= own.repeat(self.block.columns, axis=1)[:, : self.keys]
                    own_q, own_o, own_do, own_lse = (a[head, part] for a in (q, o, do, lse))
                    found = gradients_of(
                        own_q, own_o, own_do, own_lse, k[of_key], v[of_key], seen, scale, self.dtype
                    )
                    of_queries["exact"][head, part], of_queries["magnitude"][head, part] = found["dq"]
                    for name in ("dk", "dv"):
                        for which, values in zip(("exact", "magnitude"), found[name], strict=True):
                            of_keys[name, which][of_key] += values

        in_threads(differentiate, list(range(self.kv_heads)), threads)
        found = {"dq": (of_queries["exact"], of_queries["magnitude"])}
        found |= {name: (of_keys[name, "exact"], of_keys[name, "magnitude"]) for name in ("dk", "dv")}
        terms = {"dq": self.keys, "dk": self.queries * self.group, "dv": self.queries * self.group}
        references = {}
        for name, (exact, magnitude) in found.items():
            if self.order is TokenOrder.TOKENS:
                exact, magnitude = (np.ascontiguousarray(a.swapaxes(0, 1)) for a in (exact, magnitude))
            growth = 4.0 * np.sqrt(terms[name] + 2.0)
            references[name] = Reference(exact, magnitude / growth, np.full(1, terms[name]), self.dtype)
        return references


def gradients_of(
    q: Array,
    o: Array,
    do: Array,
    lse: Array,
    k: Array,
    v: Array,
    seen: Array,
    scale: float,
    dtype: DType,
) -> dict[str, tuple[Array, Array]]:
    """Some queries' part of dQ, dK and dV, each with its error in units of float32's last place, in float64.

    - A weight's exponent errs by a dot product of head_dim terms (see `attention_of`) and by a few units of the last
      place of the largest score and of the LSE, and the weight is rounded to the dtype.
    - dP and δ are dot products of head_dim terms, bounded by norms (Cauchy and Schwarz).
    - dS is rounded to the dtype, in float16 to no less than half of its smallest number.
    - Sums over rows or columns have as many terms as there are live places.

    Args:
        q, o, do: queries × head_dim; lse: one for each query.
        k, v: keys × head_dim.
        seen: bool, queries × keys.
    """
    unit, rounding = DType.FLOAT32.unit_roundoff, dtype.unit_roundoff / DType.FLOAT32.unit_roundoff
    lost = SMALLEST_HALF / unit if dtype is DType.FLOAT16 else 0.0
    seen = seen & np.isfinite(lse)[:, None]
    reference = np.where(np.isfinite(lse), lse, 0.0)[:, None]
    z = np.where(seen, q @ k.T * scale, 0.0)
    p = np.where(seen, np.exp(np.where(seen, z - reference, -np.inf)), 0.0)
    dp, delta = do @ v.T, np.sum(do * o, axis=1, keepdims=True)
    ds = p * (dp - delta)

    def norms(rows: Array) -> Array:
        found: Array = np.linalg.norm(rows, axis=1)
        return found

    dot = 4.0 * np.sqrt(q.shape[1] + 2.0)
    of_exponents = dot * np.abs(scale) * norms(q)[:, None] * norms(k) + 16.0 * (
        1.0 + np.abs(z) + np.abs(reference)
    )
    of_weights = p * (of_exponents + rounding)
    of_differences = dot * norms(do)[:, None] * (norms(v) + norms(o)[:, None]) + 4.0 * np.abs(dp - delta)
    of_ds = np.where(
        seen, np.abs(dp - delta) * of_weights + p * of_differences + rounding * np.abs(ds) + lost, 0.0
    )
    rows, columns = (4.0 * np.sqrt(seen.sum(axis=axis, keepdims=True) + 2.0) for axis in (1, 0))
    of_dq, of_dk = of_ds + rows * np.abs(ds), of_ds + columns * np.abs(ds)
    of_dv = np.where(seen, of_weights + columns * p + lost, 0.0)
    return {
        "dq": (ds @ k * scale, of_dq @ np.abs(k) * abs(scale)),
        "dk": (ds.T @ q * scale, of_dk.T @ np.abs(q) * abs(scale)),
        "dv": (p.T @ do, of_dv.T @ np.abs(do)),
    }


PROBLEMS = (BlockAttentionBackwardProblem,)
