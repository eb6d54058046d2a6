"""Loads the model beside this file with PyTorch alone: ``model = runpy.run_path("FOLDER/load.py")["load"]()``.

It runs the source of the program, ``program.py``, with the tensors of ``model.pt2``, without `torch.export.load`, which
imports Dynamo and Inductor. Programs that are more than a row of operations have no source.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

FOLDER = Path(__file__).parent


def load() -> Callable[..., Any]:
    """The model, which takes tensors of the example inputs' shapes; ``torch.compile`` takes it too."""
    namespace = json.loads((FOLDER / "shipped.json").read_text(encoding="utf-8"))["namespace"]
    if not torch._C._dispatch_has_kernel(f"{namespace}::linear"):  # a copy of the library may be loaded
        torch.ops.load_library(FOLDER / "kernels.so")
    if not (source := FOLDER / "program.py").is_file():
        return torch.export.load(FOLDER / "model.pt2").module()
    program = globals()  # of this file: Dynamo looks into functions of others only where they are modules
    exec(compile(source.read_text(encoding="utf-8"), source, "exec"), program)
    archive = torch._C.PyTorchFileReader(str(FOLDER / "model.pt2"))
    tensors = [tensor(archive, *one) for one in program["TENSORS"]]
    names = json.loads(json.loads(program["TAKES"])[1]["children_spec"][1]["context"])
    forward, inputs, results = program["forward"], program["INPUTS"], pytree.treespec_loads(program["GIVES"])

    def model(*args: Any, **kwargs: Any) -> Any:
        given = pytree.tree_leaves((args, {name: kwargs[name] for name in names}))
        if [kind(one) for one in given] != inputs:
            raise RuntimeError(f"the program takes inputs as in the example inputs: {inputs}")
        return pytree.tree_unflatten(forward(None, *tensors, *given), results)

    return model


def tensor(
    archive: Any, record: str, dtype: torch.dtype, sizes: Any, strides: Any, first: int, device: str
) -> Any:
    """A tensor whose storage is a record of the archive."""
    made, data = torch.empty(0, dtype=dtype), bytearray(archive.get_record(record))
    if data:
        made.set_(torch.frombuffer(data, dtype=torch.uint8).untyped_storage())
    return made.as_strided(sizes, strides, first).to(device)


def kind(one: Any) -> Any:
    """Sizes and dtype of a tensor; another input is itself."""
    return (one.shape, one.dtype) if isinstance(one, torch.Tensor) else one
