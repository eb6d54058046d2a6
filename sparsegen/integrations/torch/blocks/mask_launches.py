"""Launches of the kernels that make masks of blocks and drop them, on tensors; without a device of ours by PyTorch."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from sparsegen.integrations.torch.blocks import plain_masks
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device, kernel_device_of
from sparsegen.integrations.torch.calls.plain_launches import PlainLaunches, stream_of
from sparsegen.integrations.torch.calls.prepared import aligned
from sparsegen.kernels.base import Device
from sparsegen.matrix.bits import WORD_BITS
from sparsegen.matrix.block_mask import BlockMaskLayout, grid, packed
from sparsegen.matrix.block_mask_draw import MaskDraw, draw_blocks
from sparsegen.plan.block_dropout import bind_block_dropout
from sparsegen.plan.block_masks import BlockMaskMaker, Given, Largest
from sparsegen.plan.executors import made_here, shared_executor

Key = tuple[str, int, BlockMaskLayout, int]
What = MaskDraw | Given | tuple[Largest, int]


class _Makers(threading.local):
    """Makers of the calling thread, one for each device and layout, with their launches. None is dropped: graphs may
    use any.
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
                if isinstance(what, Given):
                    return maker.bind_finish(what)
                if isinstance(what, MaskDraw):
                    return maker.bind_draw(what, early=early)
                return maker.bind_largest(*what)

            found = self.launches[key, what, early] = made_here(executor, bind)
        return found


@lru_cache(maxsize=256)
def independent(p: float) -> MaskDraw:
    """Blocks dropped with probability p, independently; to check p takes longer than a launch."""
    return MaskDraw(p)


_here = _Makers()
_drops = PlainLaunches(bind_block_dropout)


def draw_on(state: Tensor, layout: BlockMaskLayout, draw: MaskDraw, *, early: bool = False) -> Tensor:
    """The buffer of the mask that a state names, where the state lies; one is added to its step.

    Args:
        early: see `BlockMaskMaker.bind_draw`.
    """
    device = kernel_device_of(state.device)
    if device is None:
        seed, step = (int(word) & (1 << 64) - 1 for word in state.tolist())
        words = torch.from_numpy(packed(draw_blocks(layout, draw, seed, step))).to(state.device)
        state[1] += 1
        return words
    words = torch.empty(layout.words, dtype=torch.uint64, device=state.device)
    _here.launch(device, layout, draw, early)(stream_of(state), state.data_ptr(), words.data_ptr())
    return words


def pack_on(live: Tensor) -> Tensor:
    """The buffers of the masks of live blocks (bools, ... × rows × columns of blocks), where they lie."""
    lead, layout = live.shape[:-2], BlockMaskLayout(*live.shape[-2:])
    device, masks = kernel_device_of(live.device), math.prod(lead)
    if device is None:
        return plain_masks.packed_blocks(live)
    live = live.contiguous()
    words = torch.empty((*lead, layout.words), dtype=torch.uint64, device=live.device)
    if masks:
        launch = _here.launch(device, layout, Given.BOOLS, masks=masks)
        launch(stream_of(live), live.data_ptr(), words.data_ptr())
    return words


def largest_on(scores: Tensor, among: Largest, live: int) -> Tensor:
    """Makes the masks of the ``live`` blocks with the largest scores (... × rows × columns of blocks) on their device;
    of equal ones the first. Blocks with -inf or NaN never live.
    """
    lead, layout = scores.shape[:-2], BlockMaskLayout(*scores.shape[-2:])
    device, masks = kernel_device_of(scores.device), math.prod(lead)
    if device is None:
        return plain_masks.largest_blocks(scores, among, live)
    scores = scores.detach().float().contiguous()
    words = torch.empty((*lead, layout.words), dtype=torch.uint64, device=scores.device)
    if masks:
        launch = _here.launch(device, layout, (among, live), masks=masks)
        launch(stream_of(scores), scores.data_ptr(), words.data_ptr())
    return words


def drop_on(x: Tensor, state: Tensor, p: float, block: tuple[int, int]) -> Tensor:
    """X, a matrix, without the blocks that the mask of a state drops, the others divided by the share that is left."""
    shape, draw = (x.shape[0], x.shape[1]), independent(p)
    device = kernel_device(x)
    if device is None:
        live, density = _drawn(state, shape, block, draw)
        return torch.where(live, x / density, 0)
    x = aligned(x)
    y = torch.empty_like(x)
    launch = _drops.of(device, shape, block, p, DTYPES[x.dtype])
    launch(stream_of(x), state.data_ptr(), x.data_ptr(), y.data_ptr())
    return y


def multiplier_on(like: Tensor, state: Tensor, p: float, block: tuple[int, int]) -> Tensor:
    """Returns the factors, like this matrix, by which `drop_on` drops blocks: 0, or 1 over the share left."""
    shape, draw = (like.shape[0], like.shape[1]), independent(p)
    device = kernel_device(like)
    if device is None:
        live, density = _drawn(state, shape, block, draw)
        return live.to(like.dtype) / density
    y = torch.empty(shape, dtype=like.dtype, device=like.device)
    launch = _drops.of(device, shape, block, p, DTYPES[like.dtype])
    launch(stream_of(like), state.data_ptr(), 0, y.data_ptr())
    return y


def _drawn(
    state: Tensor, shape: tuple[int, int], block: tuple[int, int], draw: MaskDraw
) -> tuple[Tensor, float]:
    """Returns the live elements of the mask of a state, which stays as it is, and their expected share."""
    layout = grid(shape, block)
    live = blocks_of(draw_on(state.clone(), layout, draw), layout)
    return expanded(live, block, shape), draw.density(layout)


def blocks_of(words: Tensor, layout: BlockMaskLayout) -> Tensor:
    """bool, ... × rows × columns of blocks, of the buffers of masks, ... × words."""
    lead, signed = words.shape[:-1], words.view(torch.int64)
    bits = signed[..., : layout.row_order_at].reshape(*lead, layout.rows, layout.row_words)
    order = signed[..., layout.row_order_at : layout.column_bits_at].contiguous().view(torch.int32)
    places = torch.arange(WORD_BITS, device=words.device)
    ranked = ((bits[..., None] >> places) & 1).reshape(*lead, layout.rows, -1)[..., : layout.columns].bool()
    rows = order[..., : layout.rows, None].long().expand(ranked.shape)
    return torch.empty_like(ranked).scatter_(-2, rows, ranked)


def expanded(blocks: Tensor, block: tuple[int, int], shape: tuple[int, int]) -> Tensor:
    """A value for each element, of one for each block; ... × rows × columns both."""
    *lead, rows, columns = blocks.shape
    tiles = blocks[..., :, None, :, None].expand(*lead, rows, block[0], columns, block[1])
    return tiles.reshape(*lead, rows * block[0], columns * block[1])[..., : shape[0], : shape[1]]
