"""Sparse attention in one launch, called like the three steps of `AttentionOperator`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from sparsegen.attention.choice import AttentionImplementation
from sparsegen.dispatch.chosen import Choice
from sparsegen.dispatch.decision import Decision
from sparsegen.errors import OperandError
from sparsegen.kernels.base import Device
from sparsegen.operators import DType, Operator, TensorSpec
from sparsegen.plan.arrays import Call, Target, caller
from sparsegen.plan.own_launch import Bound, OwnLaunch
from sparsegen.plan.variant_launcher import variant_launcher
from sparsegen.system.device_bound import DeviceBound
from sparsegen.tuning_db.records import Variant


class FusedAttentionOperator(DeviceBound, OwnLaunch):
    """softmax(scale · Q · Kᵀ at a mask) · V in one launch; make one with `prepare_attention`.

    The fused kernel takes the mask's places, ``block_attention`` its live blocks and the bits of partial ones. A query
    whose row of the mask has no nonzero gets zeros. Scores and weights are never in memory. Keys and values must be
    finite also where no query sees them: a weight of 0 times infinity is NaN.

    Calls are thread-safe, never tune, compile or wait, and allocate nothing but ``out``: a CUDA graph captures them
    (capture after one call in the same thread). Gradients are not recorded;
    `sparsegen.integrations.torch.SparseAttention` records them.

    Attributes:
        heads, head_dim, scale: the values that it was prepared with.
        implementation: ``fused`` or ``blocks``.
        dtype, device: type of the arrays, and the device that it runs on.
        operands, result: shapes and dtypes of Q, K, V and of the result.
        work_bytes: device memory for each thread that calls it: none of the fused kernel.
        decision: decision of `prepare_attention` between it and the other implementations.
    """

    decision: Decision

    def __init__(
        self,
        operator: Operator,
        kept: Mapping[str, Any],
        *,
        implementation: AttentionImplementation,
        heads: int | None,
        head_dim: int,
        scale: float,
    ) -> None:
        """Take an operator of all heads; ``heads=1`` has a dimension for it, and None has none.

        Args:
            kept: the operands beside Q, K and V.
        """
        self.implementation = implementation
        self.heads, self.head_dim, self.scale = heads, head_dim, scale
        self._launcher = variant_launcher(operator)
        self._prepared = self._launcher.prepared
        self.work_bytes = sum(self._prepared.packed.scratch.values())
        self.device: Device = self._launcher.device
        self.dtype: DType = operator.problem.dtype
        super().__init__(self._prepared.executor)
        self.operands = tuple(self._with_heads(spec) for spec in self._prepared.operands[:3])
        self.result = self._with_heads(self._prepared.result)
        with self.executor.entered():
            self._kept = [self.executor.upload(kept[spec.name]) for spec in self._prepared.operands[3:]]
            self.executor.synchronize()  # calls may come on other streams than the upload
        self.launching = nullcontext()  # nothing that it reads is ever replaced
        self._callers: dict[type, Call] = {}

    def _with_heads(self, spec: TensorSpec) -> TensorSpec:
        lead = () if self.heads is None else (self.heads,)
        return TensorSpec(spec.name, (*lead, *spec.shape[-2:]), spec.dtype, spec.alignment)

    def __repr__(self) -> str:
        heads = "one head" if self.heads is None else f"{self.heads} heads"
        return f"<FusedAttentionOperator: {heads}, head_dim {self.head_dim}, {self.dtype}, on {self.device.name}>"

    def __call__(self, q: object, k: object, v: object, out: object = None, stream: object = None) -> Any:
        """Attend; see `AttentionOperator` for the arguments and errors.

        ``out`` may be q, but must not share memory with k or v.
        """
        if out is not None and (out is k or out is v):
            raise OperandError(
                "out: expected another array than k and v, which are read while out is written"
            )
        kind = type(q)
        call = self._callers.get(kind)
        if call is None:
            call = self._callers[kind] = caller(kind, Target(self, self.device, {}))
        return call((q, k, v), out, stream)

    @property
    def choices(self) -> dict[str, Choice]:
        """The variant, ``attention``, and why it was chosen among those of its operator."""
        return {"attention": self._launcher.choice}

    @property
    def variant(self) -> Variant:
        """The variant that runs."""
        return self._launcher.variant

    def explain(self) -> str:
        """Describes what runs, and why."""
        queries, keys = (spec.shape[-2] for spec in self.operands[:2])
        heads = self.heads or 1
        lines = [
            f"attention of {heads} head{'s' if heads > 1 else ''}, {queries} queries × {keys} keys, head_dim "
            f"{self.head_dim}, {self.dtype}: 1 launch",
            f"{self.implementation}: {self.decision.why}",
            "attention:",
            *(f"  {line}" for line in self._launcher.explain().splitlines()),
        ]
        return "\n".join(lines)

    def _bind(self) -> Bound:
        """A launch of one thread: ``bound(stream, q, k, v, out)``."""
        launch, kept = self._prepared.bound(), [buffer.address for buffer in self._kept]

        def run(stream: int, q: int, k: int, v: int, out: int) -> None:
            launch(stream, q, k, v, *kept, out)

        return run
