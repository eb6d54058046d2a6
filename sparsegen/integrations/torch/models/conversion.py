"""Whole models: which of their layers become sparse, and why the others stay dense."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from sparsegen import api, arguments
from sparsegen.dispatch.dense_or_sparse import Faster
from sparsegen.dispatch.options import Dense
from sparsegen.dispatch.pruned_times import LayerTime, TimeSource
from sparsegen.errors import OperandError, PruningError
from sparsegen.integrations.torch.calls.devices import DTYPES
from sparsegen.integrations.torch.models.arrangement import Arranger, Form, sites_in_sequences
from sparsegen.integrations.torch.models.conversion_report import ConversionReport, ConvertedLayer, DenseLayer
from sparsegen.integrations.torch.models.in_situ import InSitu, decide
from sparsegen.integrations.torch.pattern.layer_weights import current_weight, is_made_of_others
from sparsegen.integrations.torch.pattern.linear import SparseLinear
from sparsegen.integrations.torch.pattern.pattern import SparsePattern
from sparsegen.integrations.torch.pattern.pointwise import (
    Convertible,
    PointwiseConv2d,
    is_convertible,
    is_pointwise,
)
from sparsegen.kernels.base import Device
from sparsegen.pruning.groups import Scope
from sparsegen.pruning.pruned_layers import LEAST_SPARSITY
from sparsegen.pruning.pruner import pruned_matrices
from sparsegen.pruning.report import PruneReport
from sparsegen.pruning.request import PatternName, PruneRequest

log = logging.getLogger(__name__)

ASSUMED_TOKENS = (
    16,
    128,
    512,
)  # assumed if no number is given: a layer stays dense if dense wins for all
READS_WEIGHTS = (nn.TransformerEncoderLayer,)  # modules that read their layers' weights, besides calling them


def convert(
    model: nn.Module,
    pattern: PatternName | str = PatternName.UNSTRUCTURED,
    sparsity: float | None = None,
    *,
    scope: Scope | str | None = None,
    block: tuple[int, int] | None = None,
    nm: tuple[int, int] | None = None,
    exclude: Sequence[str] = (),
    tokens: int | None = None,
    dense: Dense | str = Dense.AUTO,
    example_inputs: Any = None,
    fuse: bool = True,
    capture: bool = True,
    device: Device | str | None = None,
    db: str | Path | None = None,
) -> ConversionReport:
    """Prune a model's linear layers and 1 × 1 convolutions and replace them, in place, by sparse ones.

    Nothing is run without example inputs. Convolutions of larger filters and depthwise ones stay as they are; to make
    batch norms part of convolutions, call `fold_batch_norms` before.

    For a model that is pruned already, leave the sparsity out: its weights keep their zeros, no others are made, and
    layers whose share of zeros is below `LEAST_SPARSITY` stay dense.

    A layer stays dense if its weight belongs to another module too, if the module that holds it reads the weight
    itself, if it cannot be pruned or nothing of it would be left, and if a dense product is known or estimated to be
    faster: for ``tokens``, or without them for each of `ASSUMED_TOKENS`. If estimates do not tell, the layer becomes
    sparse, and decides at its first call by timing both (`SparsePattern.run_dense`).

    Args:
        model: not itself a linear layer; for one there is `SparseLinear.from_dense`.
        pattern, sparsity, scope, block, nm: see `sparsegen.prune`, but the default scope is ``"layer"``: weights of
            layers with different numbers of inputs differ in size from the start, and one cut could empty a layer.
        exclude: globs of the names of modules that stay dense.
        tokens: rows of the activations (batch times sequence) that the layers will mostly see.
        dense: ``"auto"`` as said above; ``"never"``: what can be sparse is, and no dense product ever runs in it;
            ``"always"``: the pruned layers run dense products alone.
        example_inputs: a tensor, a tuple of positional arguments, or a dict of named ones, to call the model with. Then
            it is decided inside the model which layers become sparse, in place of single products' times (`in_situ`):
            like layers together, where the whole model gets faster with them, on a GPU as a captured CUDA graph, with
            weights that do not train. So a converted model is never slower than the dense one was. Layers that read
            one tensor, such as Q, K and V, then share a launch where the model is faster so.
        fuse: ReLU and exact GELU modules that get the result of a sparse layer and nothing else become part of it
            (`SparseLinear.activation`), and ``torch.nn.Identity`` takes their places: those right behind it in a
            ``torch.nn.Sequential``, and with example inputs all that a call shows, where the model is faster so.
            Without ``fuse`` none do, and no launch is shared.
        capture: time the model as a CUDA graph with the example inputs. Without, calls from Python are timed, in which
            a layer's time on the host counts too: for models that will be called so.
        device, db: see `sparsegen.prepare`, for the times; the layers look into this database too.

    Raises:
        PruningError: a request that cannot be met, or a model without a linear layer that could be sparse.
        MatrixError: NaN or infinity in a weight that is to be pruned. The model is then as it was.
        OperandError: example inputs that are none of these, or with ``dense="always"``.
    """
    arguments.instance(model, nn.Module, "model", PruningError)
    exclude = arguments.texts(exclude, "exclude", PruningError)
    tokens = None if tokens is None else arguments.whole(tokens, "tokens", PruningError, least=1)
    policy = Dense.parse(dense)
    fuses = arguments.flag(fuse, "fuse", PruningError)
    captures = arguments.flag(capture, "capture", PruningError)
    if example_inputs is not None and policy is Dense.ALWAYS:
        raise OperandError("example_inputs decide between dense and sparse, and dense = always is decided")
    left = {name: DenseLayer(name, type(m).__name__, why) for name, m, why in obstacles(model, exclude)}
    layers = {
        name: module
        for name, module in model.named_modules()
        if is_convertible(module) and name and name not in left
    }
    if not layers:
        raise PruningError(
            "no linear layer or 1 × 1 convolution of this model can be sparse"
            + _advice(model, list(left.values()))
        )
    _require_data(layers)
    keeps = sparsity is None and pattern == PatternName.UNSTRUCTURED
    if keeps and (scope, block, nm) != (None, None, None):
        raise PruningError("scope, block and nm say how to prune: give a sparsity too, or none of them")
    if scope is None and not (isinstance(pattern, str) and pattern == PatternName.NM):
        scope = Scope.LAYER
    weights = {name: current_weight(module) for name, module in layers.items()}
    before = {name: share for name, weight in weights.items() if (share := _zeros(weight)) >= LEAST_SPARSITY}
    request = PruneRequest.parse(pattern, 0.0 if keeps else sparsity, scope=scope, block=block, nm=nm)
    matrices, pruned = pruned_matrices(weights, request)
    for copied in pruned.copied:
        left[copied.name] = DenseLayer(
            copied.name, _kind(layers[copied.name]), f"cannot be pruned: {copied.reason}"
        )
    for name in (layers.keys() - before.keys() - left.keys()) if keeps else ():
        share = _zeros(weights[name])
        left[name] = DenseLayer(
            name, _kind(layers[name]), f"it is not pruned: {share:.1%} of its weights are zeros"
        )
    if keeps and not layers.keys() - left.keys():
        raise PruningError(
            f"no linear layer or 1 × 1 convolution of this model is pruned ({LEAST_SPARSITY:.0%} zeros or more): "
            "give a sparsity to prune" + _listed(list(left.values()))
        )
    for name in pruned.emptied:
        left[name] = DenseLayer(name, _kind(layers[name]), "nothing of it would be left")
    asked = ASSUMED_TOKENS if tokens is None else (tokens,)
    times = _times(pruned, layers, asked, device, db)
    asks = policy is Dense.AUTO and example_inputs is None
    for name in times.keys() - left.keys() if asks else ():
        if why := _why_dense(times[name], asked):
            left[name] = DenseLayer(name, _kind(layers[name]), why)
    ready = {
        name: _on_pattern(
            module,
            SparsePattern(matrices[name], run_dense=policy, db=db),
            torch.tensor(matrices[name].values),
        )
        for name, module in layers.items()
        if name not in left
    }
    candidates, found = {name: layers[name] for name in ready}, None
    if example_inputs is None:
        sites = tuple(sites_in_sequences(model, candidates)) if fuses else ()
        Arranger(model, candidates, ready, sites).arrange(dict.fromkeys(ready, Form(fused=True)))
    else:
        found = decide(model, candidates, ready, example_inputs, fuse=fuses, capture=captures)
    again = tuple(n for n in before if n in ready and ready[n].pattern.nnz < torch.count_nonzero(weights[n]))
    return conversion_report(
        model, ready, left, asked, times, found, assumes_tokens=tokens is None, pruned_again=again
    )


def conversion_report(
    model: nn.Module,
    ready: Mapping[str, SparseLinear],
    left: Mapping[str, DenseLayer],
    tokens: Sequence[int],
    times: Mapping[str, tuple[LayerTime, ...]],
    found: InSitu | None,
    *,
    assumes_tokens: bool = False,
    pruned_again: tuple[str, ...] = (),
) -> ConversionReport:
    """Reports the conversion of a model.

    Args:
        ready: the layers that were to be sparse; all are but those in ``left``.
        left: the layers that stay dense, by name.
        tokens, times, found, pruned_again: see `ConversionReport`.
    """
    left = dict(left)
    if found is not None:
        for name in ready.keys() - set(found.kept):
            left[name] = DenseLayer(name, _kind(model.get_submodule(name)), _why_not(name, found))
    together = _together(model, ready.keys() - left.keys())
    converted = tuple(
        ConvertedLayer(
            name,
            layer.pattern.shape,
            layer.pattern.nnz,
            times.get(name, ()),
            layer.activation,
            together.get(name, ()),
        )
        for name, layer in ready.items()
        if name not in left
    )
    order = {name: i for i, (name, _) in enumerate(model.named_modules())}
    dense_layers = tuple(sorted(left.values(), key=lambda d: order[d.name]))
    report = ConversionReport(tuple(tokens), assumes_tokens, converted, dense_layers, found, pruned_again)
    log.info("%s", report.summary)
    if pruned_again:
        log.warning("%s", report.said_of_pruning)
    return report


def _together(model: nn.Module, names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The layers that share a launch, by each one's name."""
    of_layer = {id(model.get_submodule(name)): name for name in names}
    found = {}
    for name in names:
        layer = model.get_submodule(name)
        assert isinstance(layer, SparseLinear)
        if layer.one_launch_with:
            found[name] = tuple(of_layer[id(other)] for other in layer.one_launch_with)
    return found


def _why_not(name: str, found: InSitu) -> str:
    """Explains why a layer stays dense that was tried inside the model."""
    if name in found.uncalled:
        return "the example inputs do not reach it"
    step = next(step for step in found.steps if name in step.layers)
    return f"the model is no faster with it sparse: {step.sparse_us:.1f} µs, dense {step.dense_us:.1f} µs"


def _why_dense(times: Sequence[LayerTime], tokens: Sequence[int]) -> str:
    """Explains why a layer stays dense, if dense is faster for all numbers of tokens; else empty."""
    if any(time.faster is not Faster.DENSE for time in times):
        return ""
    said = []
    for n, time in zip(tokens, times, strict=True):
        if time.sparse_us is None or time.dense_us is None:
            said.append(f"{n} tokens (by estimates)")
        else:
            near = "" if time.source is TimeSource.EXACT else " on a pattern that is near"
            said.append(f"{n} tokens: {time.dense_us:.1f} µs, sparse {time.sparse_us:.1f} µs{near}")
    return f"dense is faster for {'; for '.join(said)}"


def obstacles(model: nn.Module, exclude: Sequence[str]) -> Iterator[tuple[str, nn.Module, str]]:
    """The modules with a matrix of weights that cannot be sparse, and why."""
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(name)
    for name, module in model.named_modules():
        if isinstance(module, parametrize.ParametrizationList):
            continue  # part of the layer
        if any(is_lazy(p) for p in module.parameters(recurse=False)):
            yield name, module, "its weight is not initialized yet: call the model once"
            continue
        if (why := is_made_of_others(module)) is not None:
            yield name, module, why
            continue
        matrices = [p for p in module.parameters(recurse=False) if p.dim() > 1]
        if not matrices:
            continue
        others = sorted({owner for p in matrices for owner in owners[id(p)]} - {name})
        if not is_convertible(module):
            yield name, module, _why_not_convertible(module)
        elif any(fnmatchcase(name, glob) for glob in exclude):
            yield name, module, "left out by name"
        elif others:
            yield name, module, f"its weight belongs to {', '.join(others)} too"
        elif isinstance(holder := model.get_submodule(name.rpartition(".")[0]), READS_WEIGHTS):
            yield name, module, f"{type(holder).__name__} reads its weight itself"


def _on_pattern(module: Convertible, pattern: SparsePattern, values: Tensor) -> SparseLinear:
    if isinstance(module, nn.Conv2d):
        return PointwiseConv2d.on_convolution(module, pattern, values)
    return SparseLinear.on_pattern(module, pattern, values)


def _why_not_convertible(module: nn.Module) -> str:
    if type(module) is nn.Conv2d:
        if module.groups > 1:
            return f"a convolution of {module.groups} groups"
        return f"a convolution of {' × '.join(map(str, module.kernel_size))}: SparseConv2d takes such"
    return "not a plain torch.nn.Linear"


def _kind(module: nn.Module) -> str:
    return type(module).__name__


def _require_data(layers: Mapping[str, Convertible]) -> None:
    """Raises PruningError where the weights are not there yet."""
    without = [name for name, layer in layers.items() if any(p.is_meta for p in layer.parameters())]
    if without:
        raise PruningError(
            f"the weights of {', '.join(without[:3])} are on the meta device and have no data: load them first "
            "(load_state_dict with assign=True), then convert the model"
        )


def _zeros(weight: Tensor) -> float:
    """The share of a weight's elements that are zero."""
    return 1 - int(torch.count_nonzero(weight)) / weight.numel() if weight.numel() else 0.0


def _times(
    report: PruneReport,
    layers: Mapping[str, Convertible],
    tokens: Sequence[int],
    device: Device | str | None,
    db: str | Path | None,
) -> dict[str, tuple[LayerTime, ...]]:
    """Returns the known times of the product with each layer, by name: one for each number of tokens."""
    found: dict[str, tuple[LayerTime, ...]] = {}
    for torch_dtype in {layer.weight.dtype for layer in layers.values()} & DTYPES.keys():
        dtype = DTYPES[torch_dtype]
        for n in tokens:
            times = api.pruned_times(report, n=n, dtype=dtype, layout="column", device=device, db=db)
            for t in times.layers:
                if layers[t.layer].weight.dtype is torch_dtype:
                    found[t.layer] = (*found.get(t.layer, ()), t)
    return found


def _advice(model: nn.Module, left: Sequence[DenseLayer]) -> str:
    """Advises on a model without a layer to convert, with the reasons."""
    if isinstance(model, nn.Linear):
        return ": it is one itself, which SparseLinear.from_dense converts"
    has_convolutions = any(
        isinstance(module, nn.Conv2d) and not is_pointwise(module) for module in model.modules()
    )
    hint = (
        ", and larger convolutions are those of convert_convolutions and SparseConv2d"
        if has_convolutions
        else ""
    )
    return hint + _listed(left)


def _listed(layers: Sequence[DenseLayer]) -> str:
    return "".join(f"; {layer.name}: {layer.reason}" for layer in layers)
