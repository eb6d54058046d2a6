"""A vision transformer's MLPs, pruned to blocks of 16 × 16 and trained on: gradients of the weights that are left.

python examples/pruned_vit.py
"""

import torch
from torch import nn

from sparsegen.integrations.torch import convert

SIDE, PATCH, WIDTH = 32, 8, 64


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head((x + self.mlp(x)).mean(1))


torch.manual_seed(0)
where = "cuda" if torch.cuda.is_available() else "cpu"
model = VisionTransformer().to(where)
print(convert(model, "block", 0.75, block=(16, 16), exclude=["patches", "head"], dense="never").summary)

images, labels = torch.randn(8, 3, SIDE, SIDE, device=where), torch.randint(0, 10, (8,), device=where)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(3):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}")
print(model.mlp[0])
