"""Copies of tensors with zeros behind their rows, up to whole vectors of 16 bytes, in one launch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.calls.plain_launches import current_stream
from sparsegen.operators import ImageLayout
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.image_orders import ITEM_BYTES, Reordered, bind_reordered
from sparsegen.plan.own_launch import OwnBinding
from sparsegen.system.bounded import Bounded

MOST_KINDS = 256  # of tensors whose copies are kept ready
_known: dict[tuple[Any, ...], RowCopy] = Bounded(MOST_KINDS)


class RowCopy:
    """Copies of tensors like one, of elements of 2 or 4 bytes; rows lie along the last dimension."""

    def __init__(self, like: Tensor, shape: tuple[int, ...]) -> None:
        """
        Args:
            like: where kernels of ours run.
            shape: shape of the copy: the rows' length rounded up to whole vectors; the first dimension, too, may be
                longer.
        """
        device = kernel_device(like)
        assert device is not None
        rows, pixels = like.numel() // like.shape[-1], ImageLayout.NHWC
        # An element of 4 bytes is two of the kernel's: as channels of a row of pixels.
        what = Reordered((1, 1, rows, like.shape[-1] * like.itemsize // ITEM_BYTES), pixels, pixels)
        assert what.stored_channels * ITEM_BYTES == shape[-1] * like.itemsize
        self._launch = OwnBinding(shared_executor(device), bind_reordered, what)
        self._launch.bound()  # compiled and loaded, which no capture may do
        self._shape, self._rows, self._stream = shape, len(like), current_stream(like)

    def __call__(self, tensor: Tensor) -> Tensor:
        """A new tensor with zeros behind the rows, and behind the first dimension."""
        given, made = tensor.contiguous(), tensor.new_empty(self._shape)
        self._launch.bound()(self._stream(), 0, given.data_ptr(), made.data_ptr())
        if len(self._shape) > 1 and self._rows < self._shape[0]:
            made[self._rows :] = 0
        return made


def padded_to(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The copy of that shape, by columns as a matrix is; the tensor itself where it has it."""
    if tensor.shape == shape:
        return tensor
    if tensor.ndim == 2 and not tensor.is_contiguous() and tensor.t().is_contiguous():
        return padded_to(tensor.t(), shape[::-1]).t()
    kind = tensor.shape, tensor.dtype, tensor.device, shape
    copy = _known.get(kind)
    if copy is None:
        copy = _known[kind] = RowCopy(tensor, shape)
    return copy(tensor)
