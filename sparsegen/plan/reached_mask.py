"""Masks of spatial blocks behind a layer, made of those before it on their device, in one launch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import is_loaded
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.axis_reach import AxisReach
from sparsegen.matrix.bits import words_for
from sparsegen.plan.block_masks import may_start_early
from sparsegen.plan.own_launch import Bound
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.device_memory import WARP

FILE, ENTRY = "reached_mask.cu", "reached_mask"
THREADS = 128


@dataclass(frozen=True, slots=True)
class ReachedMask:
    """The blocks of images that read a live block of a mask.

    Attributes:
        images: their number.
        down, across: what blocks read along rows and columns.
    """

    images: int
    down: AxisReach
    across: AxisReach

    @property
    def shape(self) -> tuple[int, int, int]:
        """Images, rows and columns of blocks."""
        return self.images, self.down.out_blocks, self.across.out_blocks

    @property
    def word_shape(self) -> tuple[int, int]:
        """Rows of blocks of all images, and words of each."""
        return self.images * self.down.out_blocks, words_for(self.across.out_blocks)

    @property
    def launch(self) -> Launch:
        rows, words = self.word_shape
        return Launch.flat(rows * words * WARP, THREADS)

    @property
    def sizes(self) -> list[int]:
        """The kernel's arguments before the addresses."""
        return [self.images, *self.down.numbers, *self.across.numbers]

    @staticmethod
    def is_loaded(executor: Executor) -> bool:
        """True if `bind_reached_mask` loads nothing, so that it can be called while a CUDA graph is captured."""
        return is_loaded(executor, (FILE, ENTRY))


def bind_reached_mask(executor: Executor, what: ReachedMask) -> Bound:
    """A launch for one thread to start many times: ``bound(stream, live, reached, words)``, all addresses.

    Live and reached blocks are bools, images × rows × columns of blocks; words are as `sparsegen.masks.words_of` makes
    them of the latter.

    Raises:
        CompileError, DeviceUnavailableError: the kernel cannot be compiled.
    """
    (kernel,) = plain_launchers(executor, FILE, ENTRY)
    launch = replace(what.launch, starts_early=may_start_early(executor))
    return kernel.bind(launch, *what.sizes, None, None, None)
