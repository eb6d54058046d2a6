"""Models that ``torch.export.save`` wrote: their weights, and the model itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from sparsegen.errors import MatrixError
from sparsegen.integrations.torch.pattern.linear import SparseLinear
from sparsegen.integrations.torch.pattern.pattern import SparsePattern
from sparsegen.matrix.readers.files import check_readable
from sparsegen.pruning.torch_weights import TorchWeights


class ExportedWeights(TorchWeights):
    """The state dict of a ``.pt2`` file, in memory while this object is."""

    def __init__(self, path: Path) -> None:
        """Load it with PyTorch: do so only with files that you trust.

        Raises:
            MatrixError: it cannot be read, or is no exported program of this version of PyTorch.
        """
        super().__init__(_loaded(path).state_dict)
        self.source = str(path)


def exported_model(path: Path) -> nn.Module:
    """The model of a ``.pt2`` file, with `torch.nn.Linear`, `ReLU` and `GELU` modules where it calls their functions.

    Products of a converted model are `SparseLinear` layers again.

    It takes inputs of the shapes that it was exported for, and runs as it was exported: in evaluation, or in training.
    Load only files that you trust.

    Raises:
        MatrixError: see `ExportedWeights`.
    """
    program = _loaded(path).module()
    assert isinstance(program, fx.GraphModule)
    for name in ("train", "eval"):  # an exported program refuses both; what it does is in its graph
        program.__dict__.pop(name, None)
    model = fx.GraphModule(program, program.graph)
    _with_linears(model)
    _with_sparse_linears(model)
    _with_activations(model)
    model.graph.lint()
    model.recompile()
    return model


def _loaded(path: Path) -> Any:
    check_readable(path)
    try:
        return torch.export.load(path)
    except Exception as error:  # many kinds of errors: from zip files, pickles, schemas
        reason = str(error).strip().partition("\n")[0]
        raise MatrixError(
            f"not a program that this PyTorch ({torch.__version__}) can load: {reason}; export it again with "
            "torch.export.save, or give its weights as .safetensors",
            source=path,
        ) from error


def _with_linears(model: fx.GraphModule) -> None:
    """A module for each weight that linear functions alone read, in the place where the weight was."""
    calls: dict[str, list[fx.Node]] = {}
    refused = set()
    for node in model.graph.nodes:
        if node.op != "get_attr":
            continue
        for user in node.users:
            holder = _holder(user)
            if holder is not None and user.args[1] is node:
                calls.setdefault(holder, []).append(user)
            elif not (node.target.endswith(".bias") and _holder(user) == node.target.removesuffix(".bias")):
                refused.add(node.target.rpartition(".")[0])
    for name, nodes in calls.items():
        if name in refused or len({len(node.args) for node in nodes}) > 1:
            continue
        attributes = {n.target: n for node in nodes for n in node.args[1:] if isinstance(n, fx.Node)}
        weight = model.get_parameter(f"{name}.weight")
        has_bias = len(attributes) > 1
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=has_bias, device="meta", dtype=weight.dtype)
        layer.weight = weight
        if has_bias:
            layer.bias = model.get_parameter(f"{name}.bias")
        for node in nodes:
            _replace(model, node, name)
        for attribute in [n for n in model.graph.nodes if n.op == "get_attr" and n.target in attributes]:
            if not attribute.users:
                model.graph.erase_node(attribute)
        model.set_submodule(name, layer)


def _with_sparse_linears(model: fx.GraphModule) -> None:
    """A `SparseLinear` for each product of a converted model, in the place where its values were."""
    made: dict[str, SparseLinear] = {}
    for node in list(model.graph.nodes):
        if node.op != "call_function" or node.target is not torch.ops.sparsegen.linear_carried.default:
            continue
        _, values, bias, offsets, columns, width, run_dense, db = node.args
        name = values.target.rpartition(".")[0]
        if name not in made:
            arrays = [_tensor(model, one) for one in (offsets, columns)]
            shape = (arrays[0].numel() - 1, width)
            pattern = SparsePattern.of_csr(shape, arrays[0], arrays[1], run_dense=run_dense, db=db)
            kept = model.get_parameter(values.target)
            layer = SparseLinear(pattern, bias=bias is not None, device=kept.device, dtype=kept.dtype)
            layer.values = kept
            layer.bias = None if bias is None else model.get_parameter(bias.target)
            made[name] = layer
        _replace(model, node, name)
    for node in [node for node in model.graph.nodes if node.op == "get_attr" and not node.users]:
        if node.target.rpartition(".")[0] in made:
            model.graph.erase_node(node)
    for name, layer in made.items():
        model.set_submodule(name, layer)


def _tensor(model: fx.GraphModule, node: fx.Node) -> torch.Tensor:
    """The constant that a node reads."""
    holder, _, name = str(node.target).rpartition(".")
    found: torch.Tensor = getattr(model.get_submodule(holder), name)
    return found


def _holder(node: fx.Node) -> str | None:
    """The module whose weight and bias a linear function gets; None for every other node."""
    if node.op != "call_function" or node.target is not torch.ops.aten.linear.default or node.kwargs:
        return None
    names = [a.target if isinstance(a, fx.Node) and a.op == "get_attr" else None for a in node.args[1:]]
    if not names or not isinstance(names[0], str) or not names[0].endswith(".weight"):
        return None
    holder = names[0].removesuffix(".weight")
    fits = len(names) == 1 or names[1] == f"{holder}.bias" or node.args[2] is None
    return holder if fits else None


def _with_activations(model: fx.GraphModule) -> None:
    """A module of its own for each call of an activation."""
    number = 0
    for node in list(model.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is torch.ops.aten.relu.default:
            module: nn.Module = nn.ReLU()
        elif node.target is torch.ops.aten.gelu.default:
            module = nn.GELU(node.kwargs.get("approximate", "none"))
        else:
            continue
        name = f"activation_{number}"
        number += 1
        model.add_submodule(name, module)
        _replace(model, node, name)


def _replace(model: fx.GraphModule, node: fx.Node, module: str) -> None:
    """Call a module with the node's first argument instead."""
    with model.graph.inserting_before(node):
        call = model.graph.create_node("call_module", module, (node.args[0],))
    call.meta = dict(node.meta)
    node.replace_all_uses_with(call)
    model.graph.erase_node(node)
