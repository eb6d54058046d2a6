"""Images of 16-bit elements copied on a device from one memory order to the other, in one launch.

Kernels are fastest on images with channels innermost, as many as vectors of 16 bytes divide. A mask of blocks says
which pixels are needed; no other is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import is_loaded
from sparsegen.kernels.base import Device
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.bits import words_for
from sparsegen.operators import ImageLayout
from sparsegen.plan.block_masks import may_start_early
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div, round_up

FILE = "image_orders.cu"
THREADS, PIXELS = 256, 32  # of a thread block, and pixels that a warp takes at once, as in image_orders.cu
LANES = 4  # of a pixel, each of which takes a vector of its channels
WARPS = 1 << 14  # two to four times what GPUs hold: up to so many, each takes one part of the channels
VECTOR = 8  # elements of 16 bytes; planes of at most as many channels have a thread for each pixel
FEW_AT_ONCE = 4  # pixels of such a thread
ITEM_BYTES = 2
SECTOR = 16  # elements of 32 bytes, the least that is read of planes
# Microseconds of a multiprocessor for pixels that a warp looks up in the mask, and for a part of their channels: by the
# instructions that it has for them, at four a cycle.
GROUP_US, PART_US = 0.03, 0.03
MOST_BLOCKS = 1 << 20  # thread blocks, which take several tiles each where there are more


@dataclass(frozen=True, slots=True)
class Reading:
    """The pixels that a convolution's outputs in live blocks read, along one direction.

    Attributes:
        outputs, block: number of outputs, and those of a block of the mask.
        reach: pixels from the first to the last that an output reads.
    """

    outputs: int
    block: int
    reach: int = 0
    padding: int = 0
    stride: int = 1

    def spread(self, run: int = 1) -> float:
        """Returns the number of runs that hold a pixel for a live block's outputs, over the pixels below the block.

        Args:
            run: pixels of a run, which begins anywhere.
        """
        return 1.0 + (self.reach + run - 1) / (self.block * self.stride)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The kernel's arguments."""
        return self.outputs, self.block, self.reach - self.padding, self.padding, self.stride


@dataclass(frozen=True, slots=True)
class Reordered:
    """Images in another memory order.

    Attributes:
        shape: images, rows, columns and channels.
        source: order in which they lie.
        to: order in which they are written; with channels innermost there are `stored_channels` of them, the last ones
            zeros.
        needed: which pixels are needed, along rows and columns, by a mask of blocks; None for all.
        fills: write zeros where no pixel is needed; if not, memory stays as it is there. Planes are always filled.
        beyond: channels of a pixel that planes leave out, behind the images' own.
    """

    shape: tuple[int, int, int, int]
    source: ImageLayout
    to: ImageLayout
    needed: tuple[Reading, Reading] | None = None
    fills: bool = False
    beyond: int = 0

    @property
    def stored_channels(self) -> int:
        """Channels of a pixel with channels innermost: a multiple of `VECTOR`, if that is what is written."""
        channels = self.shape[3]
        return channels + self.beyond if self.to.has_planes else round_up(channels, VECTOR)

    @property
    def written_channels(self) -> int:
        """Channels of an image that is written."""
        return self.shape[3] if self.to.has_planes else self.stored_channels

    @property
    def entry(self) -> str:
        """Name of the kernel."""
        if self.to.has_planes:
            return "pixels_to_planes"
        if not self.source.has_planes:
            return f"pixels_to_pixels_{self._lanes}"
        return "few_planes_to_pixels" if self.is_few else "planes_to_pixels"

    @property
    def is_few(self) -> bool:
        """True if a thread takes whole pixels of planes."""
        return self.source.has_planes and self.shape[3] <= VECTOR

    @property
    def launch(self) -> Launch:
        images, rows, columns, _ = self.shape
        if self.is_few:
            threads = ceil_div(images * rows * columns, FEW_AT_ONCE)
            return Launch.flat(min(threads, MOST_BLOCKS * THREADS), THREADS)
        blocks, parts = ceil_div(self._groups, THREADS // WARP), ceil_div(WARPS, self._groups)
        return Launch((min(blocks, MOST_BLOCKS), min(parts, self._parts), 1), (THREADS, 1, 1))

    @property
    def _groups(self) -> int:
        """Groups of pixels, of a warp each."""
        images, rows, columns, _ = self.shape
        if self.source.has_planes or self.to.has_planes:
            return images * ceil_div(rows * columns, PIXELS)
        return ceil_div(images * rows * columns, PIXELS * LANES // self._lanes)

    @property
    def _lanes(self) -> int:
        """Lanes that take a vector each of a pixel, from pixels to pixels."""
        return next((lanes for lanes in (1, 2) if self.stored_channels <= lanes * VECTOR), LANES)

    @property
    def _parts(self) -> int:
        """Parts of a pixel's channels."""
        return ceil_div(self.written_channels, LANES * VECTOR)

    @property
    def sizes(self) -> list[int]:
        """The kernel's arguments before the addresses."""
        down, across = self.needed or (Reading(1, 1), Reading(1, 1))
        mask = ceil_div(down.outputs, down.block), words_for(ceil_div(across.outputs, across.block))
        return [*self.shape, self.stored_channels, *mask, *down.sizes, *across.sizes, int(self.fills)]

    def is_loaded(self, executor: Executor) -> bool:
        """True if `bind_reordered` loads nothing, so that it can be called while a CUDA graph is captured."""
        return is_loaded(executor, (FILE, self.entry))

    def share(self, density: float, run: int = 1) -> float:
        """Returns the share of the pixels that are needed, for this share of live blocks.

        Args:
            run: neighbours of a row that count as needed together, if one is.
        """
        if self.needed is None:
            return 1.0
        down, across = self.needed
        dead: float = (1.0 - density) ** (down.spread() * across.spread(run))
        return 1.0 - dead

    def expected_us(self, device: Device, density: float) -> float:
        """Microseconds that the launch should take: those of a copy of as many bytes, or of its instructions.

        Args:
            density: share of the mask's blocks that are live.
        """
        images, rows, columns, channels = self.shape
        rates, fills = device.expected_rates, self.fills or self.to.has_planes
        read = self.share(density, SECTOR if self.source.has_planes else 1)
        written = 1.0 if fills else self.share(density)
        moved = images * rows * columns * ITEM_BYTES * (read * channels + written * self.written_channels)
        parts = self._parts * (1.0 if fills else self.share(density, PIXELS))
        looks = 0.0 if self.needed is None else images * rows * columns / PIXELS
        issued_us = (self._groups * parts * PART_US + looks * GROUP_US) / device.multiprocessors
        return rates.launch_us + max(moved / rates.copy_bytes_per_us, issued_us)


def bind_reordered(executor: Executor, what: Reordered) -> Callable[..., None]:
    """A launch for one thread to start many times: ``bound(stream, mask, x, y)``, addresses all.

    The mask is words of images × rows of blocks, 64 blocks in a word; 0 where all pixels are needed. X and Y lie on 16
    bytes where their channels are innermost.

    Raises:
        CompileError, DeviceUnavailableError: the kernel cannot be compiled.
    """
    (kernel,) = plain_launchers(executor, FILE, what.entry)
    launch = replace(what.launch, starts_early=may_start_early(executor))
    return kernel.bind(launch, *what.sizes, None, None, None)
