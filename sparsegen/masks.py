"""Masks for users: of sparse attention, of blocks of matrices, of spatial blocks of images, and kernel maps of points.

Those of attention are patterns of nonzeros; `BlockMask` is what block-masked products take; the functions from
`reduce_mask` on make masks for convolutions, of NumPy arrays and of PyTorch tensors where they lie. `kernel_map` is
what submanifold convolutions take.
"""

from sparsegen.matrix.block_mask import BlockMask
from sparsegen.matrix.block_mask_draw import Drawn, MaskDraw
from sparsegen.matrix.kernel_map import kernel_map
from sparsegen.matrix.masks import band, blocks, sliding_window, strided
from sparsegen.matrix.spatial_mask import (
    Pool,
    Reach,
    dilate,
    from_blocks,
    from_boxes,
    from_difference,
    pyramid,
    reduce_mask,
    resize,
    words_of,
)

__all__ = [
    "BlockMask",
    "Drawn",
    "MaskDraw",
    "Pool",
    "Reach",
    "band",
    "blocks",
    "dilate",
    "from_blocks",
    "from_boxes",
    "from_difference",
    "kernel_map",
    "pyramid",
    "reduce_mask",
    "resize",
    "sliding_window",
    "strided",
    "words_of",
]
