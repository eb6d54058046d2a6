"""Blocks of queries and keys of one document, found on a device: which live, and the bits of those that do in part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparsegen.backends.executor import Executor
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.block_mask import grid
from sparsegen.plan.block_masks import may_start_early
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
    among all blocks of all items if it is partial, and its bits are written there; else -1.
    """
    (kernel,) = plain_launchers(executor, "partial_blocks.cu", f"documents_int{64 if what.is_wide else 32}")
    layout = grid(what.shape, what.block)
    work = (2 * layout.row_words, layout.rows, what.items)  # 32 columns of blocks each
    launch = Launch(work, (THREADS, 1, 1), starts_early=may_start_early(executor))
    return kernel.bind(launch, *what.shape, *what.block, None, None, None, None, None)
