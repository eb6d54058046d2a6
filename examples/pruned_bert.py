"""A BERT-like encoder is pruned and converted: which layers become sparse, which stay dense and why.

python examples/pruned_bert.py
"""

import torch
from torch import nn

from sparsegen.integrations.torch import convert

WIDTH, TOKENS = 64, 32


class Block(nn.Module):
    """Attention, then the MLP that has most of the weights, as in BERT: normalised behind the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.transpose(1, 2) for t in self.qkv(x).unflatten(-1, (3, 4, -1)).unbind(2))
        seen = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.out(seen))
        return self.norms[1](x + self.mlp(x))


torch.manual_seed(0)
where = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Embedding(1000, WIDTH), Block(), Block(), nn.Linear(WIDTH, 2)).eval().to(where)
words = torch.randint(0, 1000, (1, TOKENS), device=where)
with torch.no_grad():
    report = convert(model, "unstructured", 0.9, exclude=["3"], tokens=TOKENS, dense="never")
    print(report)
    print("output", tuple(model(words).shape))
