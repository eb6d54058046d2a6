"""Loads the model beside this file with PyTorch alone: ``model = runpy.run_path("FOLDER/load.py")["load"]()``."""

import json
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent


def load() -> Any:
    """The model, which takes tensors of the example inputs' shapes; ``torch.compile`` takes it too."""
    namespace = json.loads((FOLDER / "shipped.json").read_text(encoding="utf-8"))["namespace"]
    if not torch._C._dispatch_has_kernel(f"{namespace}::linear"):  # a copy of the library may be loaded
        torch.ops.load_library(FOLDER / "kernels.so")
    return torch.export.load(FOLDER / "model.pt2").module()
