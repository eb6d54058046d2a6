"""The dense products that run in the place of a pattern's sparse ones: one full weight for all of them."""

from __future__ import annotations

import threading

import torch
from torch import Tensor
from torch.nn.functional import linear

from sparsegen.dispatch.chosen import Choice
from sparsegen.integrations.torch.prepared import Follower, is_capturing
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import Epilogue, SpmmProblem
from sparsegen.plan.dense_weight import DenseWeight


class SharedWeight:
    """The full weight of a pattern, of one dtype on one device; it lives as long as a product that multiplies it.

    Attributes:
        follower: of the values that it has at the pattern.
        turn: held while it gets new values and is multiplied.
    """

    def __init__(self, pattern: CsrMatrix, dtype: torch.dtype, device: torch.device) -> None:
        self._weight = DenseWeight(pattern, dtype, device)
        self.follower = Follower(self._update)
        self.turn = threading.Lock()

    @property
    def tensor(self) -> Tensor:
        """out × in features."""
        found: Tensor = self._weight.tensor
        return found

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._weight.nbytes

    def follow(self, values: Tensor) -> None:
        """Have these values at the pattern."""
        self.follower.follow(values)

    def _update(self, values: Tensor) -> None:
        self._weight.update(values, keeps_places=values.requires_grad)


class DensePrepared:
    """A pattern's product by cuBLAS, called as `Prepared` is.

    Attributes:
        choice: why it is dense.
        weight: what it multiplies by.
        was_captured: whether a CUDA graph launches it, so that its weight must live on.
    """

    def __init__(self, weight: SharedWeight, choice: Choice, *, transposed: bool) -> None:
        self.weight, self.choice = weight, choice
        self._transposed = transposed
        assert isinstance(choice.problem, SpmmProblem)
        self._problem = choice.problem
        self._activates = choice.problem.epilogue not in (Epilogue.NONE, Epilogue.BIAS)
        self.was_captured = False

    def __call__(
        self,
        *operands: Tensor,
        values: Tensor | None = None,
        bias: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """X · Wᵀ and the epilogue, or X · W if transposed, for the one operand X, with these values of W."""
        (x,) = operands
        with self.weight.turn:
            if values is not None:
                self.weight.follow(values)
            self.was_captured |= is_capturing(x)
            weight = self.weight.tensor
            if self._transposed:
                result = torch.mm(x, weight)
            elif self._activates:
                result = self._problem.dense_result(torch, weight, {"b": x, "bias": bias}, None)
            else:
                result = linear(x, weight, bias)
        return result if out is None else out.copy_(result)

    @property
    def is_linear(self) -> bool:
        """Whether calls are those of `torch.nn.functional.linear`."""
        return not self._transposed and not self._activates


class DensePlan:
    """A `Plan` that has PyTorch multiply by the full weight."""

    __slots__ = ("_bias", "_index", "prepared", "was_used")

    def __init__(self, prepared: DensePrepared, like: Tensor, bias: Tensor | None) -> None:
        """A plan of calls with such an operand and bias."""
        self.prepared, self.was_used = prepared, True
        self._index = like.get_device()
        self._bias = None if bias is None else (bias.shape, bias.dtype, bias.get_device())

    def run(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor | None:
        """See `Plan.run`; X may have any strides."""
        if x.get_device() != self._index or (
            bias is not None and self._bias != (bias.shape, bias.dtype, bias.get_device())
        ):
            return None
        weight, self.was_used = self.prepared.weight, True
        known = weight.follower
        with weight.turn:
            if not (
                known.version is not None
                and known.values() is values
                and known.version == values._version
                and known.address == values.data_ptr()
                and not values.requires_grad
            ) and not known.follow_again(values):
                return None
            if not self.prepared.was_captured:
                self.prepared.was_captured = is_capturing(x)
            return linear(x, weight.tensor, bias)
