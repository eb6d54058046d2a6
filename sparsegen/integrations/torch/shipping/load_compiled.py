"""Loads the model beside this file with PyTorch alone: ``model = runpy.run_path("FOLDER/load.py")["load"]()``.

It calls PyTorch's loader of compiled packages as ``torch._inductor.aoti_load_package`` does, past that function: it
imports all of Inductor and compiles programs to see which instructions the CPU has, which takes seconds and a compiler.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

FOLDER = Path(__file__).parent


def load(*, run_single_threaded: bool = False) -> Callable[..., Any]:
    """The model, which takes tensors of the example inputs' shapes.

    Args:
        run_single_threaded: for models that a CUDA graph captures, which one thread at a time may call.
    """
    namespace = json.loads((FOLDER / "shipped.json").read_text(encoding="utf-8"))["namespace"]
    if not torch._C._dispatch_has_kernel(f"{namespace}::linear"):  # a copy of the library may be loaded
        torch.ops.load_library(FOLDER / "kernels.so")
    path = str(FOLDER / "model.pt2")
    loader = torch._C._aoti.AOTIModelPackageLoader(path, "model", run_single_threaded, 1, -1)
    takes, gives = loader.get_call_spec()
    named = json.loads(takes)[1]["children_spec"][1]  # positional inputs, named ones
    names, results = json.loads(named["context"]), pytree.treespec_loads(gives)

    def model(*args: Any, **kwargs: Any) -> Any:
        given = pytree.tree_leaves((args, {name: kwargs[name] for name in names}))
        tensors = [one for one in given if isinstance(one, torch.Tensor)]
        return pytree.tree_unflatten(loader.boxed_run(tensors), results)

    return model
