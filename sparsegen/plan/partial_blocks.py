"""Blocks of places found on a device: which live, and the bits of those that do in part; of documents, bools, trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparsegen.backends.executor import Executor
from sparsegen.errors import MatrixError
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.block_mask import grid
from sparsegen.plan.block_masks import MOST_MASKS, may_start_early
from sparsegen.plan.plain_launcher import plain_launchers

THREADS = 256  # as in partial_blocks.cu


@dataclass(frozen=True, slots=True)
class DocumentBlocks:
    """Ids of queries and keys, by blocks.

    Attributes:
        items: number of batch elements, each with ids of its own.
        is_wide: true for ids of 64 bits, false for 32.
    """

    shape: tuple[int, int]
    block: tuple[int, int]
    items: int
    is_wide: bool


def bind_document_blocks(executor: Executor, what: DocumentBlocks) -> Callable[..., None]:
    """``bound(stream, query_ids, key_ids, live, numbers, bits)``, addresses all.

    Live blocks are rows of 64-bit words in their own order (`sparsegen.matrix.bits`). A block's number is its place
    among all blocks of all items if it is partial, and its bits are written there; -1 if it is full; and behind all
    others, where the bits are zeros, if it is dead.
    """
    layout = grid(what.shape, what.block)
    work = (2 * layout.row_words, layout.rows, what.items)  # 32 columns of blocks each
    entry = f"documents_int{64 if what.is_wide else 32}"
    return _bind(executor, entry, work, *what.shape, *what.block, None, None, None, None, None)


def bind_places(
    executor: Executor, shape: tuple[int, int], block: tuple[int, int], items: int
) -> Callable[..., None]:
    """``bound(stream, places, live, numbers, bits)``, addresses all: of items × queries × keys, bytes of 0 or 1.

    Live blocks are bytes too. Addresses of 0 stand for no numbers and bits, which are those of all blocks.
    """
    layout = grid(shape, block)
    work = (layout.columns, layout.rows, items)
    return _bind(executor, "mark_places", work, *shape, *block, None, None, None, None)


def bind_branches(executor: Executor, tokens: int, context: int, items: int) -> Callable[..., None]:
    """``bound(stream, parents, places)``: int64, items × drafted tokens; bytes, items × these × (context and these)."""
    return _bind(executor, "mark_branches", (tokens, items, 1), tokens, context, None, None)


def _bind(
    executor: Executor, entry: str, work: tuple[int, int, int], *arguments: int | None
) -> Callable[..., None]:
    """
    Raises:
        MatrixError: more items or rows than a launch takes.
        CompileError, DeviceUnavailableError: the kernel cannot be compiled.
    """
    if max(work[1:]) > MOST_MASKS:
        raise MatrixError(
            f"a launch takes at most {MOST_MASKS} rows of blocks and masks, got {work}; pass parts"
        )
    (kernel,) = plain_launchers(executor, "partial_blocks.cu", entry)
    return kernel.bind(Launch(work, (THREADS, 1, 1), starts_early=may_start_early(executor)), *arguments)
