"""A pruned model in a folder that plain PyTorch runs: another process loads it without sparsegen.

python examples/shipped_model.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from sparsegen.integrations.torch import convert, ship

LOADS = """
import runpy, sys, torch
sys.modules["sparsegen"] = None  # what would import it, fails
model = runpy.run_path("model/load.py")["load"]()
x, y = torch.load("example.pt")
with torch.no_grad():
    print("equal bits without sparsegen:", torch.equal(model(x), y))
"""

torch.manual_seed(0)
where = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 128)).eval().to(where)
convert(model, "unstructured", 0.9, dense="never")
x = torch.randn(16, 256, device=where)

with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    shipped = ship(model, x, f"{folder}/model", program="exported")  # "compiled": by AOTInductor
    print(f"{len(shipped.launches)} launches, {', '.join(p.name for p in sorted(shipped.folder.iterdir()))}")
    torch.save((x, model(x)), Path(folder, "example.pt"))
    subprocess.run([sys.executable, "-c", LOADS], cwd=folder, check=True)
