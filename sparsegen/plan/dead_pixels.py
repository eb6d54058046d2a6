"""Zeros over the pixels of images that lie in dead blocks of a mask, or over those of a copy, in one launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import is_loaded
from sparsegen.kernels.launch import Launch
from sparsegen.operators import ImageLayout
from sparsegen.plan.block_masks import may_start_early
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.integers import ceil_div

FILE = "dead_pixels.cu"
THREADS, PLANES = 256, 16  # as in dead_pixels.cu
VECTOR_BYTES = 16


@dataclass(frozen=True, slots=True)
class DeadPixels:
    """Images whose dead blocks become zeros.

    Attributes:
        shape: images, rows, columns and channels, one of each at the least.
        order: their order in memory.
        itemsize: bytes of an element, 2 or 4.
        block: rows and columns of a block of the mask.
        is_packed: the mask is one of words, and not of bools.
    """

    shape: tuple[int, int, int, int]
    order: ImageLayout
    itemsize: int
    block: tuple[int, int]
    is_packed: bool = False

    @property
    def access_bytes(self) -> int:
        """Bytes that an access moves: a vector, where the channels of a pixel are whole vectors."""
        is_whole = not self.order.has_planes and self.shape[3] * self.itemsize % VECTOR_BYTES == 0
        return VECTOR_BYTES if is_whole else self.itemsize

    @property
    def entry(self) -> str:
        """Name of the kernel."""
        place = "planes" if self.order.has_planes else "pixels"
        return f"zero_in_{place}_{self.access_bytes}{'_packed' if self.is_packed else ''}"

    @property
    def launch(self) -> Launch:
        images, rows, _, channels = self.shape
        return Launch(
            (images * rows, ceil_div(channels, PLANES) if self.order.has_planes else 1, 1), (THREADS, 1, 1)
        )

    @property
    def sizes(self) -> list[int]:
        """The kernel's arguments before the addresses."""
        _, rows, columns, channels = self.shape
        mask = ceil_div(rows, self.block[0]), ceil_div(columns, self.block[1])
        return [rows, columns, channels * self.itemsize // self.access_bytes, *mask, *self.block]

    def is_loaded(self, executor: Executor) -> bool:
        """True if `bind_dead_pixels` loads nothing, so that it can be called while a CUDA graph is captured."""
        return is_loaded(executor, (FILE, self.entry))


def bind_dead_pixels(executor: Executor, what: DeadPixels) -> Callable[..., None]:
    """A launch for one thread to start many times: ``bound(stream, mask, x, y)``, addresses all.

    The mask is bools of images × rows × columns of blocks, or packed, with rows of whole words of 64 bits; X and Y lie
    on as many bytes as an access moves. An address of 0 for X says that Y holds it: only dead pixels are written.

    Raises:
        CompileError, DeviceUnavailableError: the kernel cannot be compiled.
    """
    (kernel,) = plain_launchers(executor, FILE, what.entry)
    launch = replace(what.launch, starts_early=may_start_early(executor))
    return kernel.bind(launch, *what.sizes, None, None, None)
