"""State dicts of converted models, loaded into models that were not converted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sparsegen import arguments
from sparsegen.dispatch.options import Dense
from sparsegen.errors import MatrixError, OperandError
from sparsegen.integrations.torch.calls.layer_weights import keep_hooks, trains
from sparsegen.integrations.torch.calls.reach import reach_of
from sparsegen.integrations.torch.pattern.linear import SparseLinear
from sparsegen.integrations.torch.pattern.pattern import SparsePattern
from sparsegen.integrations.torch.pattern.pointwise import Convertible, PointwiseConv2d, is_convertible
from sparsegen.integrations.torch.pattern.sparse_conv import SparseConv2d, is_sparse_convolution

PARTS = ("values", "row_offsets", "column_indices")  # a sparse layer's entries in a state dict


def load(
    model: nn.Module,
    state_dict: Mapping[str, object],
    *,
    run_dense: Dense | str = Dense.AUTO,
    db: str | Path | None = None,
) -> tuple[str, ...]:
    """Load the state dict of a model that `convert` changed into the model as it was before.

    The linear layers and convolutions that are sparse in the state dict become so on the patterns that it holds;
    all else is loaded as ``load_state_dict`` does. An activation that was part of a sparse layer stays the model's own
    module, and computes the same.

    Args:
        model: made as the converted one was; layers that are sparse already take their patterns over. It is changed in
            place. Where something does not fit, its layers stay dense; what fits may have been loaded, as
            ``load_state_dict`` does.
        state_dict: result of ``converted.state_dict()``.
        run_dense, db: see `SparsePattern`.

    Returns:
        The names of the layers that became sparse.

    Raises:
        OperandError: no module or state dict, or names, shapes or patterns that do not fit the model.
    """
    arguments.instance(model, nn.Module, "model", OperandError)
    state_dict = arguments.by_name(state_dict, "state_dict", OperandError)
    policy = Dense.parse(run_dense, "run_dense")
    made: dict[str, tuple[nn.Module, nn.Module]] = {}
    for name, module in model.named_modules():
        if is_convertible(module) and f"{name}.codes" in state_dict:
            raise OperandError(
                f"the state dict has codes of {name}: convert the model with the same value_type, and take its own "
                "load_state_dict"
            )
        parts = [state_dict.get(f"{name}.{part}" if name else part) for part in PARTS]
        if is_convertible(module) and all(isinstance(part, Tensor) for part in parts):
            if not name:
                raise OperandError(
                    "the model is a linear layer itself: use SparseLinear and its load_state_dict"
                )
            made[name] = module, _sparse(name, module, parts, policy, db)
        columns = state_dict.get(f"{name}.columns")
        parts = [state_dict.get(f"{name}.product.{part}") for part in PARTS]
        are_tensors = all(isinstance(part, Tensor) for part in parts)
        if is_sparse_convolution(module) and isinstance(columns, Tensor) and are_tensors:
            made[name] = module, _sparse_convolution(name, module, columns, parts, policy, db)
    has_no_data = any(parameter.is_meta for parameter in model.parameters())
    try:
        for name, (_, layer) in made.items():
            model.set_submodule(name, layer)
        model.load_state_dict(dict(state_dict), assign=has_no_data)
    except RuntimeError as error:
        for name, (dense, _) in made.items():
            model.set_submodule(name, dense)
        raise OperandError(f"the state dict does not fit the model: {error}") from error
    return tuple(made)


def _sparse_convolution(
    name: str, dense: nn.Conv2d, columns: Tensor, parts: list[Any], run_dense: Dense, db: str | Path | None
) -> SparseConv2d:
    bias = dense.bias is not None
    rows = nn.Linear(len(columns), dense.out_channels, bias, dense.weight.device, dense.weight.dtype)
    rows.weight.requires_grad_(trains(dense, "weight"))
    if rows.bias is not None:
        rows.bias.requires_grad_(trains(dense, "bias"))
    product = _sparse(f"{name}.product", rows, parts, run_dense, db)
    layer = SparseConv2d(product, columns.to(product.values.device), dense.in_channels, reach_of(dense))
    keep_hooks(dense, layer)
    return layer.train(dense.training)


def _sparse(
    name: str, dense: Convertible, parts: list[Any], run_dense: Dense, db: str | Path | None
) -> SparseLinear:
    values, offsets, columns = parts
    try:
        shape = (dense.weight.shape[0], dense.weight.shape[1])
        pattern = SparsePattern.of_csr(shape, offsets, columns, run_dense=run_dense, db=db)
    except MatrixError as error:
        raise OperandError(f"{name}: the pattern does not fit the layer: {error}") from error
    weight = dense.weight
    device = values.device if weight.is_meta else weight.device
    kind = PointwiseConv2d if isinstance(dense, nn.Conv2d) else SparseLinear
    layer = kind(pattern, bias=dense.bias is not None, device=device, dtype=weight.dtype)
    if isinstance(dense, nn.Conv2d) and isinstance(layer, PointwiseConv2d):
        layer.stride = (int(dense.stride[0]), int(dense.stride[1]))
    layer.values.requires_grad_(trains(dense, "weight"))
    if layer.bias is not None:
        layer.bias.requires_grad_(trains(dense, "bias"))
    keep_hooks(dense, layer)
    return layer.train(dense.training)
