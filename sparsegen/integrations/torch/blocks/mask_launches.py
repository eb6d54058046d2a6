"""Launches of the kernels that make masks of blocks and drop them, on tensors; without a device of ours by PyTorch."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from sparsegen.integrations.torch.blocks import plain_masks
from sparsegen.integrations.torch.blocks.mask_states import Named
from sparsegen.integrations.torch.blocks.plain_masks import blocks_of
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device, kernel_device_of
from sparsegen.integrations.torch.calls.plain_launches import current_stream, stream_of
from sparsegen.integrations.torch.calls.prepared import aligned
from sparsegen.kernels.base import Device
from sparsegen.matrix.block_mask import BlockMaskLayout, grid, packed
from sparsegen.matrix.block_mask_draw import MaskDraw, draw_blocks
from sparsegen.plan.arrays import empty_tensors
from sparsegen.plan.block_dropout import bind_block_dropout
from sparsegen.plan.block_masks import BlockMaskMaker
from sparsegen.plan.executors import made_here, shared_executor
from sparsegen.plan.mask_sources import Given, Largest, MaskSource, given, largest
from sparsegen.plan.own_launch import Bound, OwnBinding

Key = tuple[str, int, BlockMaskLayout, int]
What = MaskDraw | MaskSource
MOST_LAUNCHES = 4096  # that a thread keeps: thresholds and the like may be new in every call


class _Makers(threading.local):
    """Makers of the calling thread, one for each device and layout, with their launches. No maker is dropped: graphs
    may use its memory.
    """

    def __init__(self) -> None:
        self.makers: dict[Key, BlockMaskMaker] = {}
        self.launches: dict[tuple[Key, What, bool], Callable[..., None]] = {}

    def launch(
        self,
        device: Device,
        layout: BlockMaskLayout,
        what: What,
        early: bool = False,
        masks: int = 1,
    ) -> Callable[..., None]:
        key = device.backend, device.index, layout, masks  # all that tells a device apart within a process
        found = self.launches.get((key, what, early))
        if found is None:
            executor = shared_executor(device)

            def bind() -> Callable[..., None]:
                if key not in self.makers:
                    self.makers[key] = BlockMaskMaker(layout, executor, masks)
                maker = self.makers[key]
                return maker.bind_draw(what, early=early) if isinstance(what, MaskDraw) else maker.bind(what)

            if len(self.launches) >= MOST_LAUNCHES:
                self.launches.clear()
            found = self.launches[key, what, early] = made_here(executor, bind)
        return found


@lru_cache(maxsize=256)
def independent(p: float) -> MaskDraw:
    """Blocks dropped with probability p, independently; to check p takes longer than a launch."""
    return MaskDraw(p)


@lru_cache(maxsize=1024)
def _words_of(layout: BlockMaskLayout) -> int:
    """Words of a mask's buffer; to add them up takes longer than a launch."""
    return layout.words


_here = _Makers()


def launch_draw(
    state: Tensor, layout: BlockMaskLayout, draw: MaskDraw, *, early: bool = False
) -> Callable[[Tensor], Tensor]:
    """Returns the function that gives the buffer of the mask that such a state names, where the state lies; one is
    added to its step.

    Args:
        early: see `BlockMaskMaker.bind_draw`.
    """
    device = kernel_device_of(state.device)
    if device is None:
        return partial(_drawn_by_numpy, layout, draw)
    own = OwnBinding(shared_executor(device), lambda _: _here.launch(device, layout, draw, early))
    bound, stream = own.bound, current_stream(state)
    empty = empty_tensors(torch, (layout.words,), torch.uint64, state.device)

    def launch(state: Tensor) -> Tensor:
        words: Tensor = empty()
        bound()(stream(), state.data_ptr(), words.data_ptr())
        return words

    return launch


def _drawn_by_numpy(layout: BlockMaskLayout, draw: MaskDraw, state: Tensor) -> Tensor:
    seed, step = (int(word) & (1 << 64) - 1 for word in state.tolist())
    words = torch.from_numpy(packed(draw_blocks(layout, draw, seed, step))).to(state.device)
    state[1] += 1
    return words


def make_on(
    source: MaskSource,
    device: Device,
    place: torch.device,
    lead: tuple[int, ...],
    layout: BlockMaskLayout,
    *at: int,
) -> Tensor:
    """The buffers of the masks of a source, ... × words.

    Args:
        place: where they lie, which is the device's.
        at: the addresses of what the source takes.
    """
    masks = math.prod(lead)
    words = torch.empty((*lead, _words_of(layout)), dtype=torch.uint64, device=place)
    if masks:
        _here.launch(device, layout, source, masks=masks)(stream_of(words), *at, words.data_ptr())
    return words


def pack_on(live: Tensor) -> Tensor:
    """The buffers of the masks of live blocks (bools, ... × rows × columns of blocks), where they lie."""
    device = kernel_device_of(live.device)
    if device is None:
        return plain_masks.packed_blocks(live)
    live = live.contiguous()
    source, layout = given(Given.BOOLS), BlockMaskLayout(*live.shape[-2:])
    return make_on(source, device, live.device, live.shape[:-2], layout, live.data_ptr())


def largest_on(scores: Tensor, among: Largest, live: int) -> Tensor:
    """Makes the masks of the ``live`` blocks with the largest scores (... × rows × columns of blocks) on their device;
    of equal ones the first. Blocks with -inf or NaN never live.
    """
    device = kernel_device_of(scores.device)
    if device is None:
        return plain_masks.largest_blocks(scores, among, live)
    return of_scores(largest(among, live), device, scores)


def of_scores(source: MaskSource, device: Device, scores: Tensor, *at: int) -> Tensor:
    """The masks of a source that takes scores, ... × rows × columns of blocks, and what lies at other addresses."""
    scores = scores.detach().float().contiguous()
    layout = BlockMaskLayout(*scores.shape[-2:])
    return make_on(source, device, scores.device, scores.shape[:-2], layout, scores.data_ptr(), *at)


def launch_drop(
    x: Tensor, state: Named, p: float, block_rows: int, block_columns: int
) -> Callable[[Tensor, Named], Tensor]:
    """Returns the function that gives matrices like X without the blocks that the mask of a state drops, the others
    divided by the share that is left. Numbers stand for a state where a kernel runs.
    """
    bound, live = _dropping(x, p, (block_rows, block_columns))
    if bound is None:
        return lambda x, state: torch.where(live(state), x / live.density, 0)
    stream, empty = current_stream(x), empty_tensors(torch, x.shape, x.dtype, x.device)

    def launch(x: Tensor, state: Named) -> Tensor:
        x, y = aligned(x), empty()
        bound()(stream(), *_of(state), x.data_ptr(), y.data_ptr())
        result: Tensor = y
        return result

    return launch


def launch_factors(
    like: Tensor, state: Named, p: float, block_rows: int, block_columns: int
) -> Callable[[Tensor, Named], Tensor]:
    """Returns the function that gives the factors by which `launch_drop` drops blocks: 0, or 1 over the share left."""
    bound, live = _dropping(like, p, (block_rows, block_columns))
    if bound is None:
        return lambda like, state: live(state).to(like.dtype) / live.density
    stream, empty = current_stream(like), empty_tensors(torch, like.shape, like.dtype, like.device)

    def launch(like: Tensor, state: Named) -> Tensor:
        factors: Tensor = empty()
        bound()(stream(), *_of(state), 0, factors.data_ptr())
        return factors

    return launch


def _of(state: Named) -> tuple[int, int, int, int]:
    """The address of a state, or 0, a seed and a step; and 0, as one mask is asked for."""
    return (0, *state, 0) if isinstance(state, tuple) else (state.data_ptr(), 0, 0, 0)


def _dropping(x: Tensor, p: float, block: tuple[int, int]) -> tuple[Callable[[], Bound] | None, LiveElements]:
    """The launch that drops blocks of matrices like this one, if there is one, and what else tells live elements."""
    shape, device = (x.shape[0], x.shape[1]), kernel_device(x)
    live = LiveElements(shape, block, independent(p))
    if device is None:
        return None, live
    return OwnBinding(
        shared_executor(device), bind_block_dropout, shape, block, p, DTYPES[x.dtype]
    ).bound, live


class LiveElements:
    """The live elements of matrices by masks that states name, which stay as they are; without a kernel of ours.

    Attributes:
        density: their expected share.
    """

    def __init__(self, shape: tuple[int, int], block: tuple[int, int], draw: MaskDraw) -> None:
        self._shape, self._block, self._draw = shape, block, draw
        self._layout = grid(shape, block)
        self.density = draw.density(self._layout)

    def __call__(self, state: Named) -> Tensor:
        """bool, one for each element."""
        assert isinstance(state, Tensor)  # numbers come where a kernel runs
        words = launch_draw(state, self._layout, self._draw)(state.clone())
        return expanded(blocks_of(words, self._layout), self._block, self._shape)


def expanded(blocks: Tensor, block: tuple[int, int], shape: tuple[int, int]) -> Tensor:
    """A value for each element, of one for each block; ... × rows × columns both."""
    *lead, rows, columns = blocks.shape
    tiles = blocks[..., :, None, :, None].expand(*lead, rows, block[0], columns, block[1])
    return tiles.reshape(*lead, rows * block[0], columns * block[1])[..., : shape[0], : shape[1]]
