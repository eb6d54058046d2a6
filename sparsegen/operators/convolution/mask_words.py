"""The mask of spatial blocks that a call brings, as kernels take it."""

from __future__ import annotations

import math
import sys
from typing import Any

from sparsegen.errors import OperandError


def as_mask_words(mask: Any, shape: tuple[int, ...]) -> Any:
    """A mask as unsigned words, in the shape that the problem asks for.

    Args:
        mask: the words of one, flat, or as `sparsegen.masks.words_of` makes them; anything else is left as it is.
        shape: words, or with a batch images × words.

    Raises:
        OperandError: blocks, in the place of their words.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(mask, torch.Tensor) and mask.dtype == torch.int64:
        mask = mask.view(torch.uint64)
    given = getattr(mask, "shape", shape)
    if given != shape and _is_row_after_row(given, shape):
        return mask.reshape(shape)
    if len(given) == 3:
        raise OperandError("mask: expected the words of its blocks: pass sparsegen.masks.words_of(mask)")
    return mask


def _is_row_after_row(given: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """True if words of shape ``given`` are those of all images, one row of blocks after the other."""
    if math.prod(given) != math.prod(shape):
        return False
    return len(given) == 1 or (len(given) == 2 and shape[-1] % given[1] == 0)
