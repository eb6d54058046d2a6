"""The MLP of a LLaMA block in decode: one token at a time, with weights that keep their nonzeros alone.

python examples/llama_decode.py
"""

import torch
from torch import nn

from sparsegen.integrations.torch import SparseLinear

WIDTH, HIDDEN, SPARSITY = 128, 344, 0.8


class GatedMlp(nn.Module):
    """down(silu(gate(x)) · up(x)), as in LLaMA."""

    def __init__(self, linear: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.gate, self.up = linear(WIDTH, HIDDEN, bias=False), linear(WIDTH, HIDDEN, bias=False)
        self.down = linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


torch.manual_seed(0)
where = "cuda" if torch.cuda.is_available() else "cpu"
mlp = GatedMlp().to(where, torch.float16).eval()
dense = sum(p.numel() * p.element_size() for p in mlp.parameters())
for name, layer in list(mlp.named_children()):
    sparse = SparseLinear.from_dense(layer, sparsity=SPARSITY)
    setattr(mlp, name, sparse.prepared(tokens=1))  # keeps the packed weight, for this number of tokens
    print(name, getattr(mlp, name))

x = torch.randn(1, WIDTH, device=where, dtype=torch.float16)
with torch.no_grad():
    for _ in range(3):
        x = nn.functional.rms_norm(x + mlp(x), (WIDTH,))
print(f"{dense / 1000:.0f} kB of dense weights; output {tuple(x.shape)}, finite: {bool(x.isfinite().all())}")
