"""An operator object whose values follow a tensor, called with tensors wherever they are."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsegen.plan.variant_launcher import VariantLauncher

VECTOR_BYTES = 16  # the widest load
MISALIGNED = VECTOR_BYTES - 1  # the bits of an address that such loads want to be zero
_OF_NUMPY = frozenset({torch.float32, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint64})


class Follower:
    """Brings a tensor's values to what multiplies them: always while they train; while frozen, when they have changed.

    PyTorch counts the changes of a tensor, but not those through ``.data``, which optimizers and averages of weights
    make; so only of a tensor that requires no gradient is the count trusted.

    Attributes:
        values: the tensor that was followed last, by a weak reference.
        version, address: state of that tensor then; a version of None stands for one that must be followed again.
    """

    __slots__ = ("_device", "_dtype", "_gather", "_kind", "_shape", "_update", "address", "values", "version")

    def __init__(self, update: Callable[[Tensor], None]) -> None:
        """
        Args:
            update: takes the new values.
        """
        self._update = update
        self._gather: Callable[[int, int], None] | None = None
        self.values: Callable[[], Any] = _nobody
        self.version: int | None = None
        self.address = 0
        self._kind: tuple[Any, ...] = ()

    def follow(self, values: Tensor) -> None:
        """Have these values."""
        is_frozen = not values.requires_grad and not values.is_inference()
        address = values.data_ptr()
        if (
            is_frozen
            and self.values() is values
            and self.version == values._version
            and self.address == address
        ):
            return
        self._update(values)
        self.values, self.address = weakref.ref(values), address
        self.version = values._version if is_frozen else None
        self._kind = _kind(values)

    def gathers(
        self, gather: Callable[[int, int], None], dtype: torch.dtype, shape: torch.Size, device: int
    ) -> None:
        """Have values that train, of this kind and contiguous, brought by ``gather(address, stream)`` alone."""
        self._gather, self._dtype, self._shape, self._device = gather, dtype, shape, device

    def bring(self, values: Tensor, stream: int) -> bool:
        """Have values that train or have changed, in the order of a stream; False as of `follow_again`."""
        if (
            self.version is None
            and self.values() is values
            and self._gather is not None
            and values.requires_grad
            and values.dtype is self._dtype
            and values.shape == self._shape
            and values.get_device() == self._device
            and values.is_contiguous()
        ):
            self._gather(values.data_ptr(), stream)
            return True
        return self.follow_again(values)

    def follow_again(self, values: Tensor) -> bool:
        """Have the values of the tensor that was followed last; False where it is another one, or of another kind."""
        if self.values() is not values or self._kind != _kind(values):
            return False
        self.follow(values)
        return True


def _nobody() -> None:
    """No tensor."""


def _kind(values: Tensor) -> tuple[Any, ...]:
    return values.dtype, values.shape, values.get_device()


class Prepared:
    """Wraps an operator object of `sparsegen.prepare`.

    Attributes:
        was_captured: true if a CUDA graph launches it, so that it must live on.
        follower: follower of its values.
        turn: held while it gets new values and is launched.
    """

    def __init__(self, operator: Any) -> None:
        self.operator = operator
        self.was_captured = False
        self._takes_tensors = operator.device.backend == "cuda"
        # Looked up at each call, so that a wrapped method of the operator is used.
        self.follower = Follower(lambda values: self.operator.update_values(values))
        self.turn = threading.Lock()

    @property
    def launcher(self) -> VariantLauncher | None:
        """The launcher that takes addresses of tensors; None if they are sent to the emulator."""
        found = self.operator.launcher if self._takes_tensors else None
        return found if isinstance(found, VariantLauncher) else None

    def __call__(
        self,
        *operands: Tensor,
        values: Tensor | None = None,
        bias: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """The operator's result, with these values of the matrix; None for an operator that has none.

        Args:
            out: memory for the result: contiguous, at an address as the operator wants it. PyTorch does not count the
                change, so values that came from there are to be passed as another tensor (a view) each time.
        """
        with self.turn:
            if values is not None:
                self.follower.follow(values)
            self.was_captured |= is_capturing(operands[0])
            return self._run(operands, bias, out)

    def _run(self, operands: tuple[Tensor, ...], bias: Tensor | None, out: Tensor | None) -> Tensor:
        operands = tuple(map(aligned, operands))
        if self._takes_tensors:
            if bias is None:
                return self.operator(*operands, out=out)
            return self.operator(*operands, out=out, bias=bias.contiguous())
        given = {} if bias is None else {"bias": array_of(bias.contiguous())}
        found = self.operator(*map(array_of, operands), **given)
        result = torch.from_numpy(found).to(operands[0].dtype)
        return result if out is None else out.copy_(result)


def aligned(tensor: Tensor) -> Tensor:
    """The tensor as kernels read it: contiguous, at an address that vectors divide, which a slice's need not be."""
    tensor = tensor if tensor.is_contiguous() else tensor.contiguous()
    return tensor if tensor.data_ptr() % VECTOR_BYTES == 0 else tensor.clone()


def array_of(tensor: Tensor) -> Any:
    """The tensor as the emulator takes it: a NumPy array, of float32 for types that NumPy has not."""
    return (tensor if tensor.dtype in _OF_NUMPY else tensor.float()).numpy()


def is_capturing(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
