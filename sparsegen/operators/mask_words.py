"""The words of a mask as operators take them."""

from __future__ import annotations

import sys
from typing import Any


def as_mask_words(mask: Any) -> Any:
    """A mask as unsigned words."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(mask, torch.Tensor) and mask.dtype == torch.int64:
        return mask.view(torch.uint64)
    return mask
