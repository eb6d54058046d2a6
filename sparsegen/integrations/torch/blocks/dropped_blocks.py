"""A tensor without the blocks that a mask drops, as a dense product behind structured dropout takes it."""

from __future__ import annotations

from torch import Tensor

from sparsegen.integrations.torch.blocks.block_masks import drop_blocks
from sparsegen.integrations.torch.blocks.mask_launches import launch_factors
from sparsegen.integrations.torch.calls.direct import Asked, asked
from sparsegen.integrations.torch.calls.launches import calls
from sparsegen.integrations.torch.calls.prepared import is_capturing

# Elements up to which a gradient in Python takes the host longer than two more passes over them take the device: what
# runs in the thread of backward finds none of its objects in its caches. PyTorch's gradient of a product needs none.
HOST_BOUND = 1 << 24

_factors = calls.of(2, launch_factors)


def dropped(x: Tensor, state: Tensor, p: float, block: tuple[int, int]) -> Tensor:
    """X, each block set to zero with probability p and the others divided by what is left, by the mask of a state.

    Args:
        x: any number of leading dimensions, which together are rows.
        state: a seed and a step; both stay as they are.
    """
    if not x.numel():
        return x
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    result: Tensor
    if rows.numel() <= HOST_BOUND and asked(rows, state) is Asked.GRADIENT and not is_capturing(rows):
        result = rows * _factors(rows, state, p, *block)
    else:
        result = drop_blocks(rows, state, p, *block)
    return result if x.dim() == 2 else result.reshape(x.shape)
