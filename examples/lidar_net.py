"""A network for LiDAR: submanifold convolutions at the points of two generated scans; both layers share one map.

python examples/lidar_net.py
"""

import torch
from torch import nn

from sparsegen.integrations.torch import KernelMap, SubmanifoldConv3d

torch.manual_seed(0)
where = "cuda" if torch.cuda.is_available() else "cpu"


def scan(batch: int) -> torch.Tensor:
    """Voxels that rings of a scanner meet: batch, z, y, x."""
    angle = torch.rand(400) * 2 * torch.pi
    ring = torch.randint(1, 6, (400,))
    x, y = (16 + 3 * ring * torch.cos(angle)).int(), (16 + 3 * ring * torch.sin(angle)).int()
    return torch.stack([torch.full_like(x, batch), (ring // 2).int(), y, x], dim=1)


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SubmanifoldConv3d(4, 16), SubmanifoldConv3d(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, features: torch.Tensor, points: KernelMap) -> torch.Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.first(features, points)), points)))


coordinates = torch.cat([scan(0), scan(1)]).unique(dim=0).int().to(where)
points = KernelMap.of(coordinates)
model = Segmenter().to(where)
features = torch.randn(len(coordinates), 4, device=where)
loss = nn.functional.cross_entropy(model(features, points), coordinates[:, 1].long())
loss.backward()
print(f"{len(coordinates)} points of 2 scans; loss {loss.item():.2f}")
print(f"gradient of the first layer: {model.first.weight.grad.abs().mean():.1e}")
