"""An exported program as Python's source, which runs with PyTorch alone and without its compilers.

`torch.export.load` imports Dynamo and Inductor, which takes seconds. The source calls the program's operations one
after the other; its tensors are the records of ``model.pt2``, so that weights are there once.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils._pytree import tree_leaves, treespec_dumps

from sparsegen.integrations.torch.shipping.load_exported import tensor

HEAD = '''"""The program of `model.pt2`, operation by operation; `load.py` runs it."""

from math import inf, nan

import torch
from torch import device
'''
_CONSTANTS = (bool, int, str, type(None))  # of an input that is no tensor


def program_source(exported: ExportedProgram, archive: Path) -> str | None:
    """The source, or None of a program that only `torch.export.load` can run.

    Such are those with programs inside (autocast, loops), and those that write to their inputs or buffers.

    Args:
        archive: where it was saved.
    """
    tensors, inputs = _tensors(exported, archive), _inputs(exported)
    outputs = exported.graph_signature.output_specs
    if tensors is None or inputs is None or any(one.kind != OutputKind.USER_OUTPUT for one in outputs):
        return None
    if not all(_is_plain(node) for node in exported.graph.nodes):
        return None
    takes, gives = (treespec_dumps(one) for one in (exported.call_spec.in_spec, exported.call_spec.out_spec))
    parts = [
        HEAD,
        "# Records of the archive, with dtype, sizes, strides, first element and device.",
        _listed("TENSORS", tensors),
        "# Sizes and dtype of each input, or the value of one that is no tensor.",
        _listed("INPUTS", inputs),
        "# How inputs and results are nested, as `torch.utils._pytree` writes it.",
        f"TAKES = {takes!r}\nGIVES = {gives!r}\n",
        exported.graph.python_code("self").src.strip(),
    ]
    return "\n".join(parts) + "\n"


def _is_plain(node: fx.Node) -> bool:
    """True of a placeholder, the result, an operation of PyTorch's or of a library, and a choice among results."""
    is_operation = isinstance(node.target, OpOverload) or node.target is operator.getitem
    return node.op in ("placeholder", "output") or (node.op == "call_function" and is_operation)


def _inputs(exported: ExportedProgram) -> list[str] | None:
    """Source of what stands for each input."""
    args, kwargs = exported.example_inputs or ((), {})
    found: list[str] = []
    for one in tree_leaves((args, kwargs)):
        if not isinstance(one, (Tensor, *_CONSTANTS)):
            return None
        found.append(f"({tuple(one.shape)}, {one.dtype})" if isinstance(one, Tensor) else repr(one))
    return found


def _tensors(exported: ExportedProgram, archive: Path) -> list[str] | None:
    """Source of what each tensor of the program is, in the order of the graph's placeholders."""
    reader = torch._C.PyTorchFileReader(str(archive))
    records, state = dict(_records(reader)), {**exported.state_dict, **exported.constants}
    found: list[str] = []
    for spec in exported.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            continue
        value, record = state.get(str(spec.target)), records.get(str(spec.target))
        if not isinstance(value, Tensor) or record is None:
            return None
        if len(reader.get_record(record)) != value.untyped_storage().nbytes():
            return None  # it is a part of the storage
        layout = tuple(value.shape), value.stride(), int(value.storage_offset())
        if not torch.equal(tensor(reader, record, value.dtype, *layout, str(value.device)), value):
            return None
        found.append(repr((record, value.dtype, *layout, str(value.device))))
    return found


def _records(reader: Any) -> Iterator[tuple[str, str]]:
    """Names of an archive's tensors, and of the records with their bytes."""
    for name in reader.get_all_records():
        folder, _, file = name.rpartition("/")
        if file.endswith(("_weights_config.json", "_constants_config.json")):
            for tensor, facts in json.loads(reader.get_record(name))["config"].items():
                if not facts["use_pickle"]:
                    yield tensor, f"{folder}/{facts['path_name']}"


def _listed(name: str, values: list[str]) -> str:
    return "\n".join([f"{name} = [", *(f"    {value}," for value in values), "]", ""])
