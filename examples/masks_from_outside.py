"""Masks of Wanda or SparseGPT come in: a model that was pruned elsewhere keeps exactly its zeros.

python examples/masks_from_outside.py
"""

import torch
from torch import nn

from sparsegen.integrations.torch import convert

torch.manual_seed(0)
where = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to(where)
calibration = torch.randn(32, 64, device=where) * torch.logspace(-1, 1, 64, device=where)


@torch.no_grad()
def prune_by_wanda(layer: nn.Linear, x: torch.Tensor, sparsity: float) -> None:
    """Zero in each row the weights with the smallest |weight| · ‖activation‖ (Sun et al. 2024)."""
    scores = layer.weight.abs() * x.norm(dim=0)
    smallest = scores.argsort(dim=1)[:, : int(sparsity * layer.in_features)]
    layer.weight.scatter_(1, smallest, 0.0)  # SparseGPT would also repair the weights that stay


prune_by_wanda(model[0], calibration, 0.8)
prune_by_wanda(model[2], model[:2](calibration), 0.8)
before = model(calibration)
report = convert(model, dense="never")  # no pattern, no sparsity: the zeros that are there
print(report)
print(f"largest difference: {(model(calibration) - before).abs().max():.1e}")
