"""A CNN whose filters are pruned, and one whose images are empty in large parts: two kinds of sparse convolution.

python examples/sparse_cnn.py
"""

import torch
from torch import nn

from sparsegen.integrations.torch import MaskedConv2d, SparseConv2d
from sparsegen.masks import reduce_mask

torch.manual_seed(0)
where = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.zeros(1, 16, 32, 32, device=where).to(memory_format=torch.channels_last)
x[..., 8:16, 8:16] = torch.rand(8, 8, device=where)

dense = nn.Conv2d(16, 32, 3, padding=1).to(where)
pruned = SparseConv2d.from_dense(dense, sparsity=0.9)  # the weights are sparse, the image is not
print(pruned, tuple(pruned(x).shape))

masked = MaskedConv2d.from_dense(
    dense, mask_block=16, density=0.25
)  # the image is sparse, the weights are not
live = reduce_mask(x.abs().amax(1), 16, 0.0)
y = masked(x, live)
print(masked, tuple(y.shape))
inside = (y - dense(x))[..., :16, :16].abs().max().item()
print(f"largest difference from the dense layer in live blocks: {inside:.1e}")
