"""Whole models: which of their layers become sparse, and why the others stay dense."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sparsegen import arguments
from sparsegen.dispatch.options import Dense
from sparsegen.dispatch.pruned_times import LayerTime
from sparsegen.errors import OperandError, PruningError
from sparsegen.integrations.torch.calls.replacement import Replacement
from sparsegen.integrations.torch.convolution.depthwise import DepthwiseConv2d
from sparsegen.integrations.torch.models.arrangement import Arranger, Form, sites_in_sequences
from sparsegen.integrations.torch.models.candidates import Candidates, kind_of
from sparsegen.integrations.torch.models.conversion_report import ConversionReport, ConvertedLayer, DenseLayer
from sparsegen.integrations.torch.models.folding import folded
from sparsegen.integrations.torch.models.in_situ import InSitu, decide
from sparsegen.integrations.torch.models.model_clock import CompileMode
from sparsegen.integrations.torch.pattern.linear import SparseLinear
from sparsegen.integrations.torch.pattern.pattern import SparsePattern
from sparsegen.integrations.torch.pattern.pointwise import (
    Convertible,
    PointwiseConv2d,
)
from sparsegen.integrations.torch.pattern.quantized_linear import QuantizedLinear
from sparsegen.integrations.torch.pattern.sparse_conv import SparseConv2d, is_sparse_convolution
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import Quantization, ScaleGroup, ValueType
from sparsegen.pruning.groups import Scope
from sparsegen.pruning.request import PatternName

log = logging.getLogger(__name__)

ASSUMED_TOKENS = (16, 128, 512)  # without a number: a layer stays dense if dense wins for all


def convert(
    model: nn.Module,
    pattern: PatternName | str = PatternName.UNSTRUCTURED,
    sparsity: float | None = None,
    *,
    scope: Scope | str | None = None,
    block: tuple[int, int] | None = None,
    nm: tuple[int, ...] | None = None,
    exclude: Sequence[str] = (),
    tokens: int | None = None,
    dense: Dense | str = Dense.AUTO,
    example_inputs: object = None,
    fuse: bool = True,
    fold_norms: bool = False,
    capture: bool = True,
    compile_mode: CompileMode | str | None = None,
    value_type: ValueType | str | None = None,
    group: ScaleGroup | str | int | None = None,
    symmetric: bool = True,
    device: Device | str | None = None,
    db: str | Path | None = None,
) -> ConversionReport:
    """Prune a model's linear layers and convolutions and replace them, in place, by sparse ones.

    Nothing is run without example inputs. Convolutions of larger filters than 1 × 1 are taken (`SparseConv2d`) where
    example inputs decide, or ``dense="never"``, and so are depthwise ones, with all their weights (`DepthwiseConv2d`);
    others of groups stay as they are.

    For a model that is pruned already, leave the sparsity out: its weights keep their zeros, no others are made, and
    layers whose share of zeros is below `LEAST_SPARSITY` stay dense.

    A layer stays dense if its weight belongs to another module too, if the module that holds it reads the weight
    itself, if it cannot be pruned or nothing of it would be left, and if a dense product is known or estimated to be
    faster: for ``tokens``, or without them for each of `ASSUMED_TOKENS`. If estimates do not tell, the layer becomes
    sparse, and decides at its first call by timing both (`SparsePattern.run_dense`).

    A layer whose dense weight is of low bits, as torchao makes it, is raced as it is inside the model, if there are
    example inputs, and stays dense without; what becomes sparse of it starts with the numbers that it stands for.

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
            weights that do not train. So a converted model is never slower than the dense one was. The database keeps
            the times: an equal model is not timed again. Layers whose variants are pinned become sparse. Layers that
            read one tensor, such as Q, K and V, then share a launch where the model is faster so.
        fuse: ReLU and exact GELU modules that get the result of a sparse layer and nothing else become part of it
            (`SparseLinear.activation`), and ``torch.nn.Identity`` takes their places: those right behind it in a
            ``torch.nn.Sequential``, and with example inputs all that a call shows, where the model is faster so.
            Without ``fuse`` none do, and no launch is shared.
        fold_norms: make batch norms part of the convolutions before them first, by `fold_batch_norms` with the example
            inputs, whether convolutions become sparse or not; for a model in evaluation. Where no layer can be sparse,
            or the request is refused otherwise, none is folded.
        capture: time the model as a CUDA graph with the example inputs. Without, calls from Python are timed, in which
            a layer's time on the host counts too: for models that will be called so.
        compile_mode: mode of `torch.compile` in which the model will run, such as ``"reduce-overhead"``. In the end
            both models are compiled in it, which takes its time, and called from Python; the model stays dense if it is
            not faster so: a compiler makes other layers faster, too.
        value_type, group, symmetric: round the linear layers' weights to codes and scales (`QuantizedLinear`), for
            inference; see `sparsegen.quantize`. Layers keep their dtype: codes are multiplied in 16 bits alone. 1 × 1
            convolutions keep their weights. Without example inputs no estimate leaves a layer dense: each races its
            codes, the unquantised values and a dense product at its first call with a number of tokens.
        device, db: see `sparsegen.prepare`, for the times; the layers look into this database too.

    Raises:
        PruningError: a request that cannot be met, or a model without a linear layer that could be sparse.
        MatrixError: NaN or infinity in a weight that is to be pruned. The model is then as it was.
        OperandError: example inputs that are none of these, or with another ``dense`` than ``"auto"``; a mode that is
            none, or without example inputs; norms to fold in a model that trains.
        ConfigError: an unknown type of codes or group, or scales that a layer's dtype does not hold.
    """
    arguments.instance(model, nn.Module, "model", PruningError)
    exclude = arguments.texts(exclude, "exclude", PruningError)
    tokens = None if tokens is None else arguments.whole(tokens, "tokens", PruningError, least=1)
    policy = Dense.parse(dense)
    fuses = arguments.flag(fuse, "fuse", PruningError)
    captures = arguments.flag(capture, "capture", PruningError)
    if example_inputs is not None and policy is not Dense.AUTO:
        raise OperandError(f"example_inputs decide between dense and sparse, and dense = {policy} is decided")
    mode = CompileMode.parse(compile_mode)
    if mode is not None and example_inputs is None:
        raise OperandError("compile_mode says how the model is timed: give example_inputs to time it with")
    rounding = Quantization.parse(value_type, group, symmetric)
    folds = arguments.flag(fold_norms, "fold_norms", PruningError)
    with ExitStack() as undone:  # where anything is refused, the model is as it was
        for fold in folded(model, example_inputs) if folds else ():
            undone.callback(fold.undo, model)
        convolves = example_inputs is not None or policy is Dense.NEVER
        candidates = Candidates(model, exclude, convolves=convolves)
        pruned = candidates.pruned(pattern, sparsity, scope=scope, block=block, nm=nm)
        # Example inputs say by themselves what the layers see.
        assumed = ASSUMED_TOKENS if example_inputs is None else ()
        asked = assumed if tokens is None else (tokens,)
        times = candidates.times(pruned.report, asked, device, db)
        if policy is Dense.AUTO and example_inputs is None:
            candidates.leave_low_bits()
            if rounding is None:
                candidates.leave_slower(times, asked)
        ready: dict[str, Replacement] = {}
        holders: dict[str, nn.Module] = {}
        for name, module in candidates.layers.items():
            matrix = pruned.matrices[name]
            if is_sparse_convolution(module):
                holder = SparseConv2d.from_dense(module, _mask(module, matrix), run_dense=policy, db=db)
                ready[name], holders[name] = holder.product, holder
            else:
                places = SparsePattern(matrix, run_dense=policy, db=db)
                ready[name] = _on_pattern(module, places, torch.tensor(matrix.values), rounding)
        for name, module in candidates.depthwise.items():
            ready[name] = DepthwiseConv2d.from_dense(module, run_dense=policy)
        undone.pop_all()
    dense_layers = {**candidates.layers, **candidates.depthwise}
    found = None
    if example_inputs is None:
        sites = tuple(sites_in_sequences(model, dense_layers)) if fuses else ()
        arranger = Arranger(model, dense_layers, ready, sites, holders=holders)
        arranger.arrange(dict.fromkeys(ready, Form(fused=True)))
    else:
        found = decide(
            *(model, dense_layers, ready, example_inputs),
            fuse=fuses,
            capture=captures,
            compile_mode=mode,
            holders=holders,
        )
    again = tuple(name for name in candidates.layers if pruned.is_pruned_again(name))
    return conversion_report(
        *(model, ready, candidates.left, asked, times, found),
        assumes_tokens=tokens is None and example_inputs is None,
        pruned_again=again,
    )


def conversion_report(
    model: nn.Module,
    ready: Mapping[str, Replacement],
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
            left[name] = DenseLayer(name, kind_of(model.get_submodule(name)), _why_not(name, found))
    order = {name: i for i, (name, _) in enumerate(model.named_modules())}
    ready = {name: ready[name] for name in sorted(ready, key=lambda name: order[name])}
    together = _together({name: layer for name, layer in ready.items() if name not in left})
    converted = tuple(
        ConvertedLayer(
            name,
            *layer.size(),
            times.get(name, ()),
            layer.activation,
            together[name],
            layer.rounding,
            layer.rounding_error,
        )
        for name, layer in ready.items()
        if name not in left
    )
    dense_layers = tuple(sorted(left.values(), key=lambda d: order[d.name]))
    wide = tuple(
        layer.name
        for layer in converted
        if isinstance(of := ready[layer.name], QuantizedLinear) and not of.takes_codes
    )
    report = ConversionReport(
        tuple(tokens), assumes_tokens, converted, dense_layers, found, pruned_again, wide
    )
    log.info("%s", report.summary)
    for warning in filter(None, (report.said_of_pruning, report.said_of_wide)):
        log.warning("%s", warning)
    return report


def _mask(module: nn.Conv2d, matrix: CsrMatrix) -> Tensor:
    """The places of a matrix of filters × (taps · channels), as a convolution's weight has them."""
    filters, channels, *sizes = module.weight.shape
    kept = torch.from_numpy(matrix.with_values(np.ones(matrix.nnz, np.float32)).to_dense())
    return kept.reshape(filters, *sizes, channels).permute(0, 3, 1, 2)


def _together(layers: Mapping[str, Replacement]) -> dict[str, tuple[str, ...]]:
    """The layers that share a launch, by each one's name; none of one that has its own."""
    of_layer = {id(layer): name for name, layer in layers.items()}
    return {
        name: tuple(of_layer[id(other)] for other in layer.one_launch_with) for name, layer in layers.items()
    }


def _why_not(name: str, found: InSitu) -> str:
    """Explains why a layer stays dense that was tried inside the model."""
    if name in found.uncalled:
        return "the example inputs do not reach it"
    if name in found.slower:
        return "dense is faster: measured, or by estimates that leave no doubt"
    step = next(step for step in found.steps if name in step.layers)
    times = f"{step.sparse_us:.1f} µs, dense {step.dense_us:.1f} µs"
    why = f"it seemed to pay ({times}), but all that did were not faster together" if step.dropped else times
    return f"the model is no faster with it sparse: {why}"


def _on_pattern(
    module: Convertible, pattern: SparsePattern, values: Tensor, rounding: Quantization | None
) -> SparseLinear:
    if isinstance(module, nn.Conv2d):
        return PointwiseConv2d.on_convolution(module, pattern, values)
    layer = SparseLinear.on_pattern(module, pattern, values)
    return layer if rounding is None else QuantizedLinear.from_sparse(layer, rounding)
