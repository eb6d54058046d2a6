"""Partial blocks of masks as PyTorch tensors: bits for the places of blocks that live in part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegen.errors import OperandError
from sparsegen.integrations.torch.blocks.place_operators import mark_places
from sparsegen.integrations.torch.blocks.plain_places import packed_bits
from sparsegen.integrations.torch.calls.tensor_checks import require_tensors
from sparsegen.matrix.block_mask import checked_blocks, grid
from sparsegen.matrix.partial_blocks import FULL, words_of_block
from sparsegen.system.integers import ceil_div

LEAST_ROOM, MOST_PARTIAL = 16, 1 << 24
Sees = Callable[
    [Tensor, Tensor, Tensor, Tensor], Tensor
]  # of items, heads, queries and keys, as FlexAttention's


@dataclass(frozen=True, slots=True, eq=False)
class PartialBlocks:
    """Places of the partial blocks of a mask, or of several, beside which all other live blocks are full.

    Attributes:
        shape: queries and keys that the mask lies over.
        block: queries and keys of a block.
        numbers: int32, ... × rows × columns of blocks: -1 for a full block, else which of the bits are its own.
        bits: uint64, partial blocks × words of a block: bit q · keys + k of its words says if its query q sees its
            key k. There may be more than are used.
    """

    shape: tuple[int, int]
    block: tuple[int, int]
    numbers: Tensor
    bits: Tensor

    def __post_init__(self) -> None:
        """
        Raises:
            MatrixError: a shape or a block that is none.
            OperandError: tensors of other sizes or types, or on two devices.
        """
        shape, block = checked_blocks(self.shape, self.block)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "block", block)
        require_tensors(numbers=self.numbers, bits=self.bits)
        layout = grid(shape, block)
        if self.numbers.dtype != torch.int32 or self.numbers.shape[-2:] != (layout.rows, layout.columns):
            raise OperandError(
                f"numbers: expected torch.int32, ... × {layout.rows} × {layout.columns} blocks, got "
                f"{self.numbers.dtype} of shape {tuple(self.numbers.shape)}"
            )
        words = words_of_block(block)
        if self.bits.dtype != torch.uint64 or self.bits.dim() != 2 or self.bits.shape[1] != words:
            raise OperandError(
                f"bits: expected torch.uint64, partial blocks × {words} words, got {self.bits.dtype} of shape "
                f"{tuple(self.bits.shape)}"
            )
        if self.bits.device != self.numbers.device:
            raise OperandError(f"bits: expected them on {self.numbers.device}, got {self.bits.device}")

    @classmethod
    def of_bools(cls, elements: Tensor, block: tuple[int, int]) -> tuple[Tensor, PartialBlocks]:
        """All blocks in which some place lives (bool, ... × rows × columns), and the bits of those that live in part.

        Args:
            elements: bool, ... × queries × keys. There is room for the bits of all blocks: a bit for each place.
        """
        shape = int(elements.shape[-2]), int(elements.shape[-1])
        live, numbers, bits = mark_places(elements, *block, True)
        return live, cls(shape, block, numbers, bits)

    @classmethod
    def of_function(
        cls,
        sees: Sees,
        partial: Tensor,
        shape: tuple[int, int],
        block: tuple[int, int],
        room: int | None = None,
    ) -> PartialBlocks:
        """The bits of the blocks that a mask calls partial, where a function says which places live.

        Args:
            sees: takes items, heads, queries and keys as integers that broadcast, and gives bools.
            partial: bool, items × heads × rows × columns of blocks.
            room: most partial blocks. By default as many as there are, for whose number this waits for the device, in
                powers of two; else a larger number of them is an error on the device.
        """
        shape, block = checked_blocks(shape, block)
        flat, place = partial.reshape(-1), partial.device
        if room is None:
            room = 1 << (max(LEAST_ROOM, int(flat.sum())) - 1).bit_length()
        else:
            torch._assert_async((flat.sum() <= room).reshape(()), f"more than {room} blocks are partial")
        order = flat.cumsum(0) - 1
        slots = torch.where(flat, order, room).clamp_(max=room)
        listed = torch.zeros(room + 1, dtype=torch.int64, device=place)
        listed = listed.scatter(0, slots, torch.arange(flat.numel(), device=place))[:room]
        (rows, columns), heads = grid_sides(partial), partial.shape[1]
        item, rest = listed // (heads * rows * columns), listed % (heads * rows * columns)
        head, rest = rest // (rows * columns), rest % (rows * columns)
        q = (rest // columns * block[0])[:, None] + torch.arange(block[0], device=place)
        k = (rest % columns * block[1])[:, None] + torch.arange(block[1], device=place)
        q, k = q.clamp_(max=shape[0] - 1), k.clamp_(max=shape[1] - 1)
        found = sees(item[:, None, None], head[:, None, None], q[:, :, None], k[:, None, :])
        numbers = torch.where(flat, order, FULL).to(torch.int32).view(partial.shape)
        return cls(shape, block, numbers, packed_bits(found.expand(room, *block)))

    def rows(self, item: int, head: int, queries: slice) -> Tensor:
        """bool, some queries × keys: what the blocks of a mask let live; all of full ones.

        Args:
            item, head: of ``numbers``, items × heads × rows × columns, where 1 stands for all.
        """
        first, last = queries.start // self.block[0], ceil_div(queries.stop, self.block[0])
        of_item = self.numbers[item if self.numbers.shape[0] > 1 else 0]
        numbers = of_item[head if of_item.shape[0] > 1 else 0, first:last].long()
        places = _unpacked(self.bits.view(torch.int64)[numbers.clamp(min=0)], self.block)
        places = places | (numbers == FULL)[..., None, None]
        whole = places.transpose(1, 2).flatten(2).flatten(0, 1)
        start = first * self.block[0]
        return whole[queries.start - start : queries.stop - start, : self.shape[1]]


def grid_sides(blocks: Tensor) -> tuple[int, int]:
    """Rows and columns of blocks, of a bool or a number for each."""
    return int(blocks.shape[-2]), int(blocks.shape[-1])


def _unpacked(words: Tensor, block: tuple[int, int]) -> Tensor:
    """bool, ... × queries × keys, of int64, ... × words of a block."""
    shifts = torch.arange(64, device=words.device)
    return (words[..., None] >> shifts & 1).bool().reshape(*words.shape[:-1], *block)
