"""``block_attention_backward``: the gradients of `BlockAttentionProblem` with respect to Q, K and V."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators.attention.block_attention import ROWS, BlockAttentionProblem
from sparsegen.operators.attention.reference import gradients_of, sink_gradient_of
from sparsegen.operators.attention.traits import SinkLogits, TokenOrder
from sparsegen.operators.base.cost import Cost
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.operator import Operator
from sparsegen.operators.base.random_numbers import normal_numbers
from sparsegen.operators.base.reference import Reference
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.system.numpy_types import Array
from sparsegen.system.threads import in_threads

OF_KEYS, OF_VALUES = 3, 2  # products for each live place: scores, dQ, dK of head_dim columns; dP, dV of V's


class BlockAttentionBackwardOperator(Operator):
    """The gradients of a `BlockAttentionOperator`: dQ is the result, dK and dV are written beside it."""

    problem: BlockAttentionBackwardProblem

    def __call__(
        self,
        q: object,
        k: object,
        v: object,
        o: object,
        do: object,
        lse: object,
        mask: object = None,
        out: object = None,
        stream: object = None,
        scale: object = None,
        band: object = None,
        dk: object = None,
        dv: object = None,
        numbers: object = None,
        bits: object = None,
        softcap: object = None,
        slopes: object = None,
        sink_logits: object = None,
        d_sink_logits: object = None,
    ) -> Any:
        """Differentiate; see `Operator` for ``out``, which becomes dQ, ``stream``, the result and the errors.

        Args:
            q, k, v, mask, scale, band, numbers, bits, softcap, slopes, sink_logits: the forward pass's operands.
            o, lse: its results: the output, and the natural logarithm of each query's sum of exponentials.
            do: the gradient with respect to the result, of its shape.
            dk, dv: arrays in the shapes of K and V, which the call writes; over a group of heads it adds up.
            d_sink_logits: float32, one for each query head, which the call writes where the problem has learned logits:
                sums over the batch.
        """
        of_call = self.problem.given_of_call(
            mask=mask,
            numbers=numbers,
            bits=bits,
            scale=scale,
            band=band,
            softcap=softcap,
            slopes=slopes,
            sink_logits=sink_logits,
        )
        written = (dk, dv, d_sink_logits)[: 3 if self.problem.sinks is SinkLogits.HEADS else 2]
        return self._run((q, k, v, o, do, lse, *of_call, *written), out, stream)


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
            *self._written(),
        )

    def _written(self) -> tuple[TensorSpec, ...]:
        """Results beside dQ."""
        of_keys = (self.dense(name, self.kv_heads, self.keys, is_written=True) for name in ("dk", "dv"))
        if self.sinks is SinkLogits.NONE:
            return tuple(of_keys)
        return *of_keys, TensorSpec("d_sink_logits", (self.heads,), DType.FLOAT32, is_written=True)

    def result(self, nnz: int) -> TensorSpec:
        return self.dense("dq", self.heads, self.queries)

    def kept(self, given: Mapping[str, object]) -> dict[str, object]:
        """The scale, by default 1 / √head_dim, the band, by default the span's, and room for dK and dV."""
        room = {spec.name: np.zeros(spec.shape, spec.dtype.storage) for spec in self._written()}
        return self._kept_of_call(given) | room

    def random_operands(self, rng: np.random.Generator, nnz: int) -> dict[str, Array]:
        """Returns the operands and results of a forward pass on random numbers, and a normal gradient of the result."""
        found = BlockAttentionProblem.random_operands(self, rng, nnz)
        given = [
            self.alone._references(one, 1) for _, one in self.batch_elements(self.without_pattern, found)
        ]
        o, lse = (np.stack([pair[i].exact for pair in given]) for i in range(2))
        found["o"] = self.dtype.to_storage(
            o.reshape(self.dense("o", self.heads, self.queries).shape).astype(np.float32)
        )
        found["lse"] = lse.reshape(self.statistics("lse").shape).astype(np.float32)
        found["do"] = normal_numbers(rng, self.dense("do", self.heads, self.queries))
        for spec in self._written():
            found[spec.name] = spec.dtype.to_storage(np.full(spec.shape, np.nan, np.float32))
        return found

    def cost(self, nnz: int) -> Cost:
        """Five products for each live place; every array once."""
        live = self.batch * self.heads * round(self.live_share * self.queries * self.keys)
        moved = sum(spec.nbytes for spec in (*self.operands(nnz), self.result(nnz)))
        columns = OF_KEYS * self.head_dim + OF_VALUES * self.value_columns
        return Cost(flop=2 * live * columns, bytes=moved)

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
        for spec in self._written():
            of = [gradients[spec.name] for gradients in found]
            exact, magnitude = ([getattr(one, part) for one in of] for part in ("exact", "magnitude"))
            if spec.name == "d_sink_logits":  # the items share the logits
                sums = np.sum(exact, axis=0), np.sum(magnitude, axis=0)
            else:
                sums = np.stack(exact).reshape(spec.shape), np.stack(magnitude).reshape(spec.shape)
            references[spec.name] = Reference(*sums, of[0].terms, of[0].dtype)
        return references

    def _gradients(self, operands: Mapping[str, Array], threads: int) -> dict[str, Reference]:
        """All three of a batch element."""
        q, k, v, o, do = (
            self.by_heads(operands[name]).astype(np.float64) for name in ("q", "k", "v", "o", "do")
        )
        lse = operands["lse"].reshape(self.heads, self.queries).astype(np.float64)
        sees, scores = self.sees(operands), self.scores_of_heads(operands)
        of_queries = {name: np.zeros(q.shape) for name in ("exact", "magnitude")}
        of_keys = {
            (name, part): np.zeros(like.shape)
            for name, like in (("dk", k), ("dv", v))
            for part in ("exact", "magnitude")
        }

        def differentiate(of_key: int) -> None:
            for head in range(of_key * self.group, (of_key + 1) * self.group):
                for start in range(0, self.queries, ROWS):
                    part = slice(start, min(start + ROWS, self.queries))
                    own_q, own_o, own_do, own_lse = (a[head, part] for a in (q, o, do, lse))
                    found = gradients_of(
                        *(own_q, own_o, own_do, own_lse, k[of_key], v[of_key], sees(head, part)),
                        scores[head],
                        self.dtype,
                        start,
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
        if self.sinks is SinkLogits.HEADS:
            of_heads = [sink_gradient_of(o[h], do[h], lse[h], scores[h].sink) for h in range(self.heads)]
            exact, magnitude = (np.array(part) for part in zip(*of_heads, strict=True))
            growth = 4.0 * np.sqrt(self.queries + 2.0)
            rows = np.full(1, self.queries)
            references["d_sink_logits"] = Reference(exact, magnitude / growth, rows, DType.FLOAT32)
        return references


PROBLEMS = (BlockAttentionBackwardProblem,)
