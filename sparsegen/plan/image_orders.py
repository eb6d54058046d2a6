"""Images of 16-bit elements copied on a device from one memory order to the other, in one launch.

Kernels are fastest on images with channels innermost, as many as vectors of 16 bytes divide. A mask of blocks says
which pixels are needed; no other is read.
"""

from __future__ import annotations

import math
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
from sparsegen.system.integers import ceil_div, round_up

FILE = "image_orders.cu"
THREADS, PIXELS, CHANNELS = 256, 64, 64  # of a thread block and its tile, as in image_orders.cu
VECTOR = 8  # elements of 16 bytes; images with at most as many channels have a thread for each pixel
ITEM_BYTES = 2
# Microseconds of a tile, however many of its channels there are, from planes or to them, and from pixels to pixels: on
# an H200 copies of drawn convolutions' images and results took 0.8 to 1.2, and 1.5.
PLANES_TILE_US, PIXELS_TILE_US = 1.1, 1.5
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

    @property
    def spread(self) -> float:
        """Pixels that a live block's outputs read, over those that it lies above."""
        return 1.0 + self.reach / (self.block * self.stride)

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
        source = "planes" if self.source.has_planes else "pixels"
        return f"few_{source}_to_pixels" if self.is_few else f"{source}_to_pixels"

    @property
    def is_few(self) -> bool:
        """True if a thread takes a pixel."""
        return not self.to.has_planes and self.shape[3] <= VECTOR

    @property
    def launch(self) -> Launch:
        images, rows, columns, _ = self.shape
        if self.is_few:
            return Launch.flat(min(images * rows * columns, MOST_BLOCKS * THREADS), THREADS)
        pixels, channels = self._tiles
        return Launch((min(pixels, MOST_BLOCKS), channels, 1), (THREADS, 1, 1))

    @property
    def _tiles(self) -> tuple[int, int]:
        """Tiles of pixels, and of the channels of each."""
        images, rows, columns, _ = self.shape
        return images * rows * ceil_div(columns, PIXELS), ceil_div(self.written_channels, CHANNELS)

    @property
    def sizes(self) -> list[int]:
        """The kernel's arguments before the addresses."""
        down, across = self.needed or (Reading(1, 1), Reading(1, 1))
        mask = ceil_div(down.outputs, down.block), words_for(ceil_div(across.outputs, across.block))
        return [*self.shape, self.stored_channels, *mask, *down.sizes, *across.sizes, int(self.fills)]

    def is_loaded(self, executor: Executor) -> bool:
        """True if `bind_reordered` loads nothing, so that it can be called while a CUDA graph is captured."""
        return is_loaded(executor, (FILE, self.entry))

    def share(self, density: float) -> float:
        """Returns the share of the pixels that are needed, for this share of live blocks, if these lie apart."""
        if self.needed is None:
            return 1.0
        down, across = self.needed
        return min(1.0, density * down.spread * across.spread)

    def expected_us(self, device: Device, density: float) -> float:
        """Microseconds that the launch should take: those of a copy of as many bytes, or of tiles.

        Args:
            density: share of the mask's blocks that are live.
        """
        images, rows, columns, channels = self.shape
        share = self.share(density)
        written = 1.0 if self.fills or self.to.has_planes else share
        bytes_moved = (
            images * rows * columns * ITEM_BYTES * (share * channels + written * self.written_channels)
        )
        rates, tiles = device.expected_rates, 0.0
        if not self.is_few:
            tiles = share * math.prod(self._tiles)
        has_planes = self.source.has_planes or self.to.has_planes
        of_tiles = tiles * (PLANES_TILE_US if has_planes else PIXELS_TILE_US) / device.multiprocessors
        return rates.launch_us + max(bytes_moved / rates.copy_bytes_per_us, of_tiles)


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
