"""Every product of a pruned PyTorch model tuned where the model calls it, by its own example inputs.

python examples/tuned_model.py
"""

import tempfile

import torch
from torch import nn

from sparsegen.integrations.torch import tune_model

torch.manual_seed(0)
where = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 96), nn.ReLU()).eval().to(where)
with torch.no_grad():
    model[0].weight *= torch.rand_like(model[0].weight) < 0.1

with tempfile.TemporaryDirectory() as folder:
    found = tune_model(model, torch.randn(8, 64, device=where), trials=2, db=f"{folder}/tuning.db")
    print(found)
