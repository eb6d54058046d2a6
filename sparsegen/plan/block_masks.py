"""Masks of blocks made on a device, in one launch each: drawn anew, or of what is there (`mask_sources`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparsegen.backends.executor import Buffer, Executor
from sparsegen.errors import MatrixError
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.block_mask import BlockMaskLayout
from sparsegen.matrix.block_mask_draw import Drawn, MaskDraw, check_state
from sparsegen.plan.mask_sources import BAND, MaskSource
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

MOST_LINES = 4096  # rows or columns of blocks, as in block_mask.cuh
MOST_MASKS = 65535  # limit of a grid's y
DRAWN_ROWS, DRAWN_COLUMNS = 128, 256  # most that a thread block draws; kOwnRows and kOwnColumns at most
FEW = WARP  # rows and columns of a mask that one warp draws, a lane for each
COUNTER_WORDS = 2  # words of scratch; then two for each BAND of rows, and the bits of rows and columns


class BlockMaskMaker:
    """Makes masks of one layout on one device.

    Every launch writes a whole buffer of ``layout.words`` words, or as many of them as ``masks`` says. Launches of one
    maker must follow each other on a stream, or wait for each other: they share scratch memory. Two of these take
    turns, so that a launch may begin while the one before still ends. None waits for the host, and CUDA graphs capture
    them.

    Raises:
        MatrixError: more rows or columns of blocks than `MOST_LINES`.
        CompileError, DeviceUnavailableError: the kernels cannot be compiled.
        LaunchError: the device has not enough memory.
    """

    def __init__(self, layout: BlockMaskLayout, executor: Executor, masks: int = 1) -> None:
        """
        Args:
            masks: number of masks that a launch of `bind` makes side by side.
        """
        if masks > MOST_MASKS:
            raise MatrixError(f"a launch makes at most {MOST_MASKS} masks, got {masks}; make them in parts")
        if max(layout.rows, layout.columns) > MOST_LINES:
            raise MatrixError(
                f"a device makes masks of at most {MOST_LINES} × {MOST_LINES} blocks, got {layout.rows} × "
                f"{layout.columns}; take larger blocks, or make it on the host by BlockMask.from_blocks"
            )
        self.layout, self._executor, self._masks = layout, executor, masks
        self._scratch = [executor.allocate(8 * masks * scratch_words(layout)) for _ in range(2)]
        self._turn = 0
        for scratch in self._scratch:
            executor.fill(scratch, 0)
        executor.synchronize()  # launches may come on other streams

    def bind_draw(self, draw: MaskDraw, *, early: bool = False) -> Callable[..., None]:
        """A launch for one thread to start many times: ``bound(stream, state, mask)``, the latter two addresses.

        The state is two 64-bit words, a seed and a step (`new_state`); every launch draws the mask that these name, and
        adds one to the step. The mask is that of `sparsegen.matrix.block_mask_draw.draw_blocks`, on every device.

        Args:
            early: the mask is made while the kernel before may still run, and stored when that has ended. It pays if
                the state is older than that kernel; otherwise the kernel behind sets itself up sooner without.
        """
        entry, amount = f"draw_{draw.drawn}", as_signed(draw.amount(self.layout))
        # Counts take as long as rows are many, so that bands are better made side by side.
        is_quick, rows, columns = draw.drawn is Drawn.BERNOULLI, self.layout.rows, self.layout.columns
        if is_quick and max(rows, columns) <= FEW:
            (few,) = plain_launchers(self._executor, "block_mask.cu", "draw_few")
            launch = Launch((1, 1, 1), (WARP, 1, 1), starts_early=may_start_early(self._executor))
            return few.bind(launch, rows, columns, amount, int(early), None, None)
        blocks = 1 if is_quick and rows <= DRAWN_ROWS and columns <= DRAWN_COLUMNS else ceil_div(rows, BAND)
        return self._bind("block_mask.cu", entry, (blocks, 1), BAND, amount, int(early), None)

    def bind(self, source: MaskSource) -> Callable[..., None]:
        """Returns ``bound(stream, *addresses)``, which makes the masks of a source, one behind the other; the last
        address is theirs.
        """
        grid = ceil_div(self.layout.rows, source.band), self._masks
        return self._bind(source.file, source.entry, grid, source.band, *source.arguments)

    def _bind(
        self, file: str, entry: str, grid: tuple[int, int], band: int, *arguments: int | None
    ) -> Callable[..., None]:
        """
        Args:
            grid: thread blocks of each mask, and masks.
            band: rows that a thread block makes at a time.
        """
        (kernel,) = plain_launchers(self._executor, file, entry)
        launch = Launch((*grid, 1), (WARP * band, 1, 1), starts_early=may_start_early(self._executor))
        given = (self.layout.rows, self.layout.columns, *arguments)
        bound = [kernel.bind(launch, *given, scratch, None) for scratch in self._scratch]

        def start(stream: int, *addresses: int) -> None:
            bound[self._turn](stream, *addresses)
            self._turn = 1 - self._turn  # not where the launch was refused

        return start


def scratch_words(layout: BlockMaskLayout) -> int:
    """64-bit words of scratch memory that a launch needs."""
    bits = layout.rows * layout.row_words + layout.columns * layout.column_words
    return COUNTER_WORDS + 2 * ceil_div(layout.rows, BAND) + bits


def may_start_early(executor: Executor) -> bool:
    """True if kernels may begin while the previous one on the stream still ends."""
    return executor.device.compute_capability[0] >= 9


def as_signed(word: int) -> int:
    """The signed integer with the bits of a 32-bit word, as launches take it."""
    return word - (1 << 32) if word >= 1 << 31 else word


def new_state(executor: Executor, seed: int, step: int = 0) -> Buffer:
    """The state that masks are drawn from, on the device.

    Raises:
        MatrixError: a seed or step outside [0, 2⁶⁴).
    """
    check_state(seed, step)
    state = executor.upload(np.array([seed, step], dtype=np.uint64))
    executor.synchronize()  # launches may come on other streams
    return state
