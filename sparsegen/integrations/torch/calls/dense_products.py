"""The dense products that run in the place of a pattern's sparse ones: one full weight for all of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import torch
from torch import Tensor, mm
from torch.nn.functional import linear

from sparsegen.dispatch.chosen import Choice
from sparsegen.errors import CompileError, DeviceUnavailableError
from sparsegen.integrations.torch.calls.plain_launches import current_stream
from sparsegen.integrations.torch.calls.prepared import Follower, is_capturing
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import Epilogue, SpmmProblem
from sparsegen.plan.dense_fill import DenseFill
from sparsegen.plan.dense_weight import DenseWeight
from sparsegen.plan.executors import shared_executor

log = logging.getLogger(__name__)


class SharedWeight:
    """The full weight of a pattern, of one dtype on one device; it lives as long as a product that multiplies it.

    Attributes:
        follower: follower of its values at the pattern.
        turn: held while it gets new values and is multiplied.
    """

    def __init__(self, pattern: CsrMatrix, dtype: torch.dtype, device: torch.device, where: Device) -> None:
        """Zeros.

        Args:
            where: the device, as sparsegen's own kernels know it.
        """
        self._weight = DenseWeight(pattern, dtype, device)
        self._where = where
        self._fill: DenseFill | None = None  # made with the first values that train
        self._may_fill = where.backend == "cuda"
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
        trains = values.requires_grad
        self._weight.update(values, keeps_places=trains)
        if trains and self._may_fill and not is_capturing(values):  # when no kernel may be loaded
            self._may_fill = False
            try:
                self._fill = self._weight.fill(shared_executor(self._where))
            except (CompileError, DeviceUnavailableError) as error:
                log.warning(
                    "PyTorch's operations bring values to the dense weight, which takes longer: %s", error
                )
            else:
                self.follower.gathers(self._launch_fill, self.tensor.dtype, values.shape, values.get_device())

    def _launch_fill(self, address: int, stream: int) -> None:
        assert self._fill is not None
        if torch.cuda.current_device() == self._where.index:
            self._fill.bound()(stream, address)
        else:
            with shared_executor(self._where).entered():
                self._fill.bound()(stream, address)


class DensePrepared:
    """A pattern's product by cuBLAS, called as `Prepared` is.

    Attributes:
        choice: why it is dense.
        weight: factor of its products.
        was_captured: true if a CUDA graph launches it, so that its weight must live on.
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
    def is_product(self) -> bool:
        """True if calls are those of `torch.nn.functional.linear` or `torch.mm`."""
        return not self._activates

    @property
    def transposed(self) -> bool:
        """True if X is multiplied by W, not by its transpose."""
        return self._transposed


class DensePlan:
    """A `Plan` that has PyTorch multiply by the full weight."""

    __slots__ = ("_bias", "_index", "_stream", "_transposed", "_weight", "prepared", "was_used")

    def __init__(self, prepared: DensePrepared, like: Tensor, bias: Tensor | None) -> None:
        """A plan of calls with such an operand and bias."""
        self.prepared, self.was_used = prepared, True
        self._index, self._transposed = like.get_device(), prepared.transposed
        self._bias = None if bias is None else (bias.shape, bias.dtype, bias.get_device())
        self._weight = prepared.weight.tensor
        self._stream = current_stream(like)

    def run(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor | None:
        """See `Plan.run`; X may have any strides."""
        if x.get_device() != self._index or (
            bias is not None and self._bias != (bias.shape, bias.dtype, bias.get_device())
        ):
            return None
        weight, self.was_used = self.prepared.weight, True
        stream, known = self._stream(), weight.follower
        with weight.turn:
            if not (
                known.version is not None
                and known.values() is values
                and known.version == values._version
                and known.address == values.data_ptr()
                and not values.requires_grad
            ) and not known.bring(values, stream):
                return None
            if stream and not self.prepared.was_captured:  # the default stream cannot be captured
                self.prepared.was_captured = is_capturing(x)
            return mm(x, self._weight) if self._transposed else linear(x, self._weight, bias)

    def trained(
        self, x: Tensor, values: Tensor, bias: Tensor | None, empty: Callable[[], Tensor], stream: int
    ) -> Tensor:
        """See `TrainingPlan`; PyTorch makes the result itself."""
        weight, self.was_used = self.prepared.weight, True
        with weight.turn:
            if not weight.follower.bring(values, stream):
                weight.follow(values)
            if stream and not self.prepared.was_captured:
                self.prepared.was_captured = is_capturing(x)
            return linear(x, self._weight.t() if self._transposed else self._weight, bias)
