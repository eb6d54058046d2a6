"""Masks of blocks as PyTorch tensors: drawn on their device or made of bools, and dropout by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegen import arguments
from sparsegen.errors import MatrixError, OperandError
from sparsegen.integrations.torch.blocks.mask_launches import (
    expanded,
    launch_draw,
    launch_drop,
)
from sparsegen.integrations.torch.blocks.mask_operators import pack_blocks, pack_both
from sparsegen.integrations.torch.blocks.mask_states import new_state
from sparsegen.integrations.torch.blocks.plain_masks import blocks_of
from sparsegen.integrations.torch.calls.direct import Context, may_run_at_once
from sparsegen.integrations.torch.calls.launched_operator import LaunchedOperator
from sparsegen.integrations.torch.calls.launches import calls
from sparsegen.integrations.torch.calls.tensor_checks import checked_device, require_tensors
from sparsegen.matrix.block_mask import BlockMask, BlockMaskLayout, checked_blocks, grid
from sparsegen.matrix.block_mask_draw import Drawn, MaskDraw
from sparsegen.operators.masked.masked_problem import Density


@dataclass(frozen=True, slots=True, eq=False)
class BlockMaskTensor:
    """A block mask in a tensor, as block-masked products take it; or several alike, as attention does.

    Attributes:
        shape: rows and columns of elements that the mask lies over.
        block: rows and columns of a block. Blocks need not divide the shape.
        words: uint64, the buffer of a `sparsegen.masks.BlockMask`, on any device, or ... × such buffers. Only its size
            is checked: its contents are read by kernels alone, without a synchronisation.
        density: the expected share of live blocks, by which variants are chosen; results are right for any.
        longest: the expected share of live blocks of the row that has most, if it has more than 1.5 times the mean; 0
            for rows that are alike. Attention splits such rows over the multiprocessors.
    """

    shape: tuple[int, int]
    block: tuple[int, int]
    words: Tensor
    density: float = 0.5
    longest: float = 0.0

    def __post_init__(self) -> None:
        """
        Raises:
            MatrixError: a shape or a block that is none.
            OperandError: a buffer of another size or type, or no density.
        """
        shape, block = checked_blocks(self.shape, self.block)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "block", block)
        density = arguments.number(self.density, "density", OperandError)
        if not 0 < density <= 1:
            raise OperandError(
                f"density = {density:g} is outside (0, 1]: it is the expected share of live blocks"
            )
        object.__setattr__(self, "density", density)
        longest = arguments.number(self.longest, "longest", OperandError)
        if not 0 <= longest <= 1:
            raise OperandError(
                f"longest = {longest:g} is outside [0, 1]: it is a row's expected share of live blocks"
            )
        object.__setattr__(self, "longest", longest)
        layout, words = self.layout, self.words
        require_tensors(words=words)
        if words.dtype != torch.uint64 or not words.dim() or words.shape[-1] != layout.words:
            raise OperandError(
                f"a mask of {layout.rows} × {layout.columns} blocks is a buffer of {layout.words} torch.uint64, got "
                f"{words.dtype} of shape {tuple(words.shape)}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # Stored as int64: pickles cannot hold PyTorch's unsigned types.
        return _of_signed, (self.shape, self.block, self.words.view(torch.int64), self.density, self.longest)

    @classmethod
    def unchecked(
        cls, shape: tuple[int, int], block: tuple[int, int], words: Tensor, density: float
    ) -> BlockMaskTensor:
        """A mask of words that were made for it, which takes less time than a kernel."""
        made = object.__new__(cls)
        values = shape, block, words, density, 0.0
        for name, value in zip(cls.__slots__, values, strict=True):
            object.__setattr__(made, name, value)
        return made

    @classmethod
    def from_host(cls, mask: BlockMask, device: torch.device | str | None = None) -> BlockMaskTensor:
        """A mask of the host, sent to a device. Its own density and longest row are expected; without a live block, the
        density of one.
        """
        arguments.instance(mask, BlockMask, "mask", OperandError)
        words = torch.from_numpy(np.array(mask.words)).to(checked_device(device))
        live = mask.blocks().sum(axis=1)
        density = Density.of_rows(live, np.full_like(live, mask.layout.columns))
        blocks = mask.layout.rows * mask.layout.columns
        return cls(mask.shape, mask.block, words, max(mask.density, 1 / blocks), density.longest)

    @classmethod
    def from_blocks(
        cls,
        live: Tensor,
        block: int | tuple[int, int],
        shape: tuple[int, int] | None = None,
        *,
        density: float = 0.5,
        longest: float = 0.0,
    ) -> BlockMaskTensor:
        """The mask whose live blocks are true, made where the bools lie, without waiting for them.

        Args:
            live: bools, rows × columns of blocks; with more dimensions in front a mask for each of their places, such
                as batch × heads.
            block: rows and columns of a block, or one number for both.
            shape: shape in elements; by default that of whole blocks.
            density, longest: what is expected; see the class.

        Raises:
            OperandError: no tensor.
            MatrixError: no matrices of bools, or as many blocks as the shape does not have.
        """
        require_tensors(live=live)
        if live.dtype != torch.bool or live.dim() < 2 or not live.shape[-2] * live.shape[-1]:
            raise MatrixError(f"a mask is a matrix of bools, got {live.dtype} of shape {tuple(live.shape)}")
        shape, block = sizes_of(live, block, shape)
        return cls(shape, block, pack_blocks(live), density, longest)

    def to_host(self) -> BlockMask:
        """The mask on the host, where it is checked whole; waits for the device.

        Raises:
            OperandError: several masks.
        """
        self.require_one("a mask of the host")
        return BlockMask(self.shape, self.block, self.words.cpu().numpy())

    @property
    def lead(self) -> tuple[int, ...]:
        """Leading dimensions: the number of masks along each; empty for a single one."""
        return tuple(self.words.shape[:-1])

    def require_one(self, what: str) -> None:
        """Raises OperandError for several masks, if ``what`` is one."""
        if self.lead:
            several = " × ".join(map(str, self.lead))
            raise OperandError(
                f"mask: {what} is one, and these are {several}; take one of them, such as mask[0]"
            )

    def __getitem__(self, index: Any) -> BlockMaskTensor:
        """One of several masks, or some, by the dimensions in front; shares their memory."""
        places = index if isinstance(index, tuple) else (index,)
        chosen = sum(place is not Ellipsis for place in places)
        if chosen > len(self.lead):
            raise OperandError(f"mask[{index}]: there are {len(self.lead)} dimensions in front to choose by")
        if chosen < len(places):
            places = (*places, slice(None))  # an ellipsis stands for dimensions in front, not for the words
        return BlockMaskTensor(self.shape, self.block, self.words[places], self.density, self.longest)

    def __or__(self, other: BlockMaskTensor) -> BlockMaskTensor:
        """Union of two masks of one shape and block; leading dimensions broadcast."""
        self._require_alike(other)
        return self._joined(other, min(1.0, self.density + other.density), unites=True)

    def __and__(self, other: BlockMaskTensor) -> BlockMaskTensor:
        """Intersection of two masks of one shape and block; leading dimensions broadcast."""
        self._require_alike(other)
        return self._joined(other, min(self.density, other.density), unites=False)

    def _joined(self, other: BlockMaskTensor, density: float, *, unites: bool) -> BlockMaskTensor:
        words = pack_both(self.words, other.words, self.layout.rows, self.layout.columns, unites)
        return BlockMaskTensor(self.shape, self.block, words, density)

    def _require_alike(self, other: Any) -> None:
        arguments.instance(other, BlockMaskTensor, "mask", OperandError)
        if (self.shape, self.block) != (other.shape, other.block):
            raise OperandError(f"masks of one shape and block can be put together, not {self} and {other}")
        if self.words.device != other.words.device:
            raise OperandError(f"mask: expected it on {self.words.device}, got {other.words.device}")
        try:
            torch.broadcast_shapes(self.lead, other.lead)
        except RuntimeError as error:
            raise OperandError(
                f"masks whose numbers broadcast can be put together, not {self} and {other}"
            ) from error

    def __repr__(self) -> str:
        return f"<BlockMaskTensor: {self}, on {self.words.device}>"

    def __str__(self) -> str:
        (rows, columns), (p, q) = self.shape, self.block
        several = "".join(f"{size} × " for size in self.lead)
        return f"a mask of {several}{rows} × {columns} places in blocks of {p} × {q}"

    @property
    def layout(self) -> BlockMaskLayout:
        return grid(self.shape, self.block)

    def blocks(self) -> Tensor:
        """bool, ... × rows × columns of blocks, on the mask's device."""
        return blocks_of(self.words, self.layout)

    def expand(self) -> Tensor:
        """bool, one for each element, ... × rows × columns, on the mask's device."""
        return expanded(self.blocks(), self.block, self.shape)

    def transposed(self) -> BlockMaskTensor:
        """The mask of the transpose: the halves of the buffer swapped."""
        at = self.layout.column_bits_at
        words = self.words.view(torch.int64)
        turned = torch.cat((words[..., at:], words[..., :at]), dim=-1).view(torch.uint64)
        shape, block = (self.shape[1], self.shape[0]), (self.block[1], self.block[0])
        return BlockMaskTensor(shape, block, turned, self.density)


def sizes_of(
    blocks: Tensor, block: int | tuple[int, int], shape: tuple[int, int] | None
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shape and block of masks with a value for each block, ... × rows × columns of blocks.

    Args:
        shape: shape in elements; by default that of whole blocks.

    Raises:
        MatrixError: a shape or a block that is none, or as many blocks as the shape does not have.
    """
    block = arguments.sides(block, "block", MatrixError)
    rows, columns = blocks.shape[-2:]
    shape, block = checked_blocks((rows * block[0], columns * block[1]) if shape is None else shape, block)
    layout = grid(shape, block)
    if (rows, columns) != (layout.rows, layout.columns):
        raise MatrixError(
            f"{shape[0]} × {shape[1]} elements in blocks of {block[0]} × {block[1]} are {layout.rows} × "
            f"{layout.columns} blocks, got {rows} × {columns}"
        )
    return shape, block


def check_mask(mask: BlockMaskTensor) -> None:
    """Raises OperandError for anything but a mask."""
    if isinstance(mask, Tensor):
        raise OperandError(
            "mask: a tensor is no BlockMaskTensor; its from_blocks makes one of bools of blocks"
        )
    arguments.instance(mask, BlockMaskTensor, "mask", OperandError)


def _of_signed(
    shape: tuple[int, int], block: tuple[int, int], words: Tensor, density: float, longest: float = 0.0
) -> BlockMaskTensor:
    """The mask of a pickle."""
    return BlockMaskTensor(shape, block, words.view(torch.uint64), density, longest)


def draw_block_mask(
    shape: tuple[int, int],
    block: int | tuple[int, int],
    p: float,
    drawn: Drawn | str = Drawn.BERNOULLI,
    *,
    device: torch.device | str | None = None,
    state: Tensor | None = None,
) -> BlockMaskTensor:
    """A random mask, drawn on its device in one launch, which waits for nothing and which CUDA graphs capture.

    With a state, it is drawn while the kernel before on the stream may still run, and stored when that has ended
    (programmatic dependent launch, on Hopper).

    Args:
        shape: rows and columns of elements.
        block: rows and columns of a block, or one number for both.
        p: the share of blocks to drop, in [0, 1).
        drawn: ``bernoulli``, ``exact_rows`` or ``exact_whole``; see `sparsegen.masks.Drawn`.
        state: int64, a seed and a step, on a device: the mask is the one that they name on every device
            (`sparsegen.matrix.block_mask_draw`), and one is added to the step. By default both are drawn by PyTorch's
            generator of ``device``, so that `torch.manual_seed`, checkpoints and CUDA graphs do as with its dropout.

    Raises:
        MatrixError: p, shape, block or ``drawn`` out of range.
        OperandError: a state that is none, or a device that PyTorch cannot use.
    """
    shape, block = checked_blocks(shape, block)
    draw = MaskDraw(p, drawn)  # type: ignore[arg-type]  # it checks words itself
    if state is None:
        return mask_of(new_state(checked_device(device)), shape, block, draw, early=False)
    require_tensors(state=state)
    return mask_of(state, shape, block, draw, early=True)


def mask_of(
    state: Tensor, shape: tuple[int, int], block: tuple[int, int], draw: MaskDraw, *, early: bool
) -> BlockMaskTensor:
    """The mask that a state names; one is added to the state's step.

    Args:
        early: true if the state is older than the kernel before; see `BlockMaskMaker.bind_draw`. The mask is the same.
    """
    if may_run_at_once(state):
        what = mask_of, shape, block, draw.p, draw.drawn, early
        drawn = calls.target(what, (state,), _drawing, (state, shape, block, draw, early))
        mask: BlockMaskTensor = drawn(state)
        torch.autograd.graph.increment_version(state)
        return mask
    layout = grid(shape, block)
    words = torch.ops.sparsegen.draw_block_mask(
        state, layout.rows, layout.columns, draw.p, str(draw.drawn), early
    )
    return BlockMaskTensor.unchecked(shape, block, words, draw.density(layout))


def _drawing(
    state: Tensor, shape: tuple[int, int], block: tuple[int, int], draw: MaskDraw, early: bool
) -> Callable[[Tensor], BlockMaskTensor]:
    """Returns the function that draws masks like this; layout and density take longer to work out than a launch."""
    _check_state(state)
    layout = grid(shape, block)
    density, launch = draw.density(layout), launch_draw(state, layout, draw, early=early)
    return lambda state: BlockMaskTensor.unchecked(shape, block, launch(state), density)


# --- custom operators ---


@torch.library.custom_op(
    "sparsegen::draw_block_mask",
    mutates_args=("state",),
    schema="(Tensor(a!) state, SymInt rows, SymInt columns, float p, str drawn, bool early=False) -> Tensor",
)
def _draw(state: Tensor, rows: int, columns: int, p: float, drawn: str, early: bool = False) -> Tensor:
    _check_state(state)
    return launch_draw(state, BlockMaskLayout(rows, columns), MaskDraw(p, Drawn(drawn)), early=early)(state)


def _check_state(state: Tensor) -> None:
    if state.dtype != torch.int64 or tuple(state.shape) != (2,):
        raise OperandError(
            f"a state is a seed and a step: 2 × torch.int64, got {state.dtype} of shape {tuple(state.shape)}"
        )


@_draw.register_fake
def _(state: Tensor, rows: int, columns: int, *_: object) -> Tensor:
    return state.new_empty(BlockMaskLayout(rows, columns).words, dtype=torch.uint64)


def _remember(ctx: Context, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, state, *ctx.rest = inputs
    ctx.save_for_backward(state)


def _drop_backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
    """The same blocks of dY are dropped: the product is one with a diagonal matrix."""
    (state,) = ctx.saved_tensors
    return drop_blocks(dy, state, *ctx.rest), *[None] * 4


drop_blocks = LaunchedOperator(
    "block_dropout",
    "(Tensor x, Tensor state, float p, int block_rows, int block_columns) -> Tensor",
    launch_drop,
    fake=lambda x, *_: x.new_empty(x.shape),
    tensors=2,
    backward=_drop_backward,
    remember=_remember,
)
"""X, a matrix, without the blocks that the mask of a state drops, and the others divided by 1 - p."""
