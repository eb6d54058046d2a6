"""Tunes what the pruned layers of a model compute in one call of it, and decides in it which become sparse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from sparsegen import arguments
from sparsegen.dispatch.pruned_times import LayerTime, layer_time
from sparsegen.errors import OperandError, PruningError
from sparsegen.integrations.torch.calls.activations import Activation, epilogue_of
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device
from sparsegen.integrations.torch.calls.example_inputs import arguments_of
from sparsegen.integrations.torch.calls.layer_weights import current_weight
from sparsegen.integrations.torch.models.arrangement import Arranger
from sparsegen.integrations.torch.models.candidates import kind_of, obstacles
from sparsegen.integrations.torch.models.conversion import conversion_report
from sparsegen.integrations.torch.models.conversion_report import ConversionReport, DenseLayer
from sparsegen.integrations.torch.models.in_situ import decide
from sparsegen.integrations.torch.models.model_trace import Run, Trace, trace
from sparsegen.integrations.torch.pattern.linear import SparseLinear
from sparsegen.integrations.torch.pattern.quantized_linear import QuantizedLinear
from sparsegen.kernels.base import Device
from sparsegen.operators import Layout, Quantization, ScaleGroup, ValueType, member
from sparsegen.pruning.pruned_layers import LEAST_SPARSITY, PrunedLayer, pruned_layers
from sparsegen.pruning.torch_weights import TorchWeights
from sparsegen.settings import Settings
from sparsegen.system.json_object import Json
from sparsegen.tuning.engines.dealing import Watch
from sparsegen.tuning.engines.engine import Engine, SetUp
from sparsegen.tuning.engines.local import LocalEngine
from sparsegen.tuning.model import (
    LayerProblem,
    SearchOutcome,
    SearchState,
    product_with,
    run_searches,
    share,
)
from sparsegen.tuning.report import Budget, Effort
from sparsegen.tuning_db.layers import Layers
from sparsegen.tuning_db.seeds_reader import seeds
from sparsegen.tuning_db.store import Store

JOINT = " + "  # between the names of layers that may share a launch


@dataclass(frozen=True, slots=True)
class InSituTuning:
    """The end of `tune_model`.

    Attributes:
        searches: searches for products of single layers, and of layers together that read one tensor.
        report: outcome for the model; None if the searches were interrupted, which leaves it as it was.
    """

    searches: tuple[SearchOutcome, ...]
    report: ConversionReport | None

    @property
    def was_interrupted(self) -> bool:
        """True if Ctrl-C ended it; the same call goes on from there."""
        return self.report is None

    @property
    def failed(self) -> tuple[SearchOutcome, ...]:
        return tuple(outcome for outcome in self.searches if outcome.state is SearchState.FAILED)

    def __repr__(self) -> str:
        outcome = "interrupted" if self.report is None else self.report.summary
        return f"<InSituTuning: {len(self.searches)} searches, {outcome}>"

    def __str__(self) -> str:
        tried = sum(outcome.tried for outcome in self.searches)
        said = f"{len(self.searches)} searches, {tried} variants known; "
        return said + ("interrupted: the same call goes on" if self.report is None else str(self.report))

    def to_dict(self) -> Json:
        """JSON values."""
        return {
            "searches": [outcome.to_dict() for outcome in self.searches],
            "model": None if self.report is None else self.report.to_dict(),
            "interrupted": self.was_interrupted,
        }


def tune_model(
    model: nn.Module,
    example_inputs: object,
    *,
    min_sparsity: float = LEAST_SPARSITY,
    exclude: Sequence[str] = (),
    fuse: bool = True,
    capture: bool = True,
    effort: Effort | str = Effort.NORMAL,
    trials: int | None = None,
    seconds: float | None = None,
    again: bool = False,
    baselines: bool = True,
    value_type: ValueType | str | None = None,
    group: ScaleGroup | str | int | None = None,
    symmetric: bool = True,
    db: str | Path | None = None,
) -> InSituTuning:
    """Tune a pruned model for what it computes with example inputs, and make it sparse where it gets faster, in place.

    One call shows how many tokens each pruned linear layer gets, what activation follows, and which layers read one
    tensor. For each such product the fastest variant is searched, alone and in the forms that `convert` tries, on the
    device where the model is; like layers share a search, and finished searches are not begun again. Then it is
    decided inside the model which layers become sparse, as `convert` does with ``example_inputs``.

    Args:
        model: a model with weights that are pruned already.
        example_inputs: a tensor, a tuple of positional arguments, or a dict of named ones, where the model is.
        min_sparsity: share of zeros from which on a layer counts as pruned.
        exclude: globs of the names of modules that stay dense.
        fuse: let launches be shared and activations be part of layers.
        capture: time the model as a CUDA graph, else call it from Python.
        effort, trials, seconds: limits of each search, see `sparsegen.tune`.
        again: search also where that was finished.
        baselines: also time dense and vendor routines in each search.
        value_type, group, symmetric: round the weights to codes and scales, as `convert` does; no launches are then
            shared.
        db: database to record in, and for the layers' look-ups; default SPARSEGEN_DB, else the user's own.

    Raises:
        PruningError: no layer of the model is pruned.
        OperandError: example inputs that are none, or no kernel runs where the model is.
        MachineError, DatabaseError: see `sparsegen.tune`. Errors of the model are passed on.
        KeyboardInterrupt: Ctrl-C; all that was measured is recorded, the model is as it was, and the same call goes on
            from there.
    """
    arguments.instance(model, nn.Module, "model", PruningError)
    budget = Budget(trials, seconds, member(Effort, effort, "effort"))
    place = str(Settings.from_environment().db if db is None else arguments.location(db, "db"))
    plan = ModelPlan(
        model,
        example_inputs,
        least_sparsity=arguments.number(min_sparsity, "min_sparsity", PruningError),
        exclude=arguments.texts(exclude, "exclude", PruningError),
        fuse=arguments.flag(fuse, "fuse", PruningError),
        capture=arguments.flag(capture, "capture", PruningError),
        rounding=Quantization.parse(value_type, group, symmetric),
    )
    anew, compares = arguments.flag(again, "again"), arguments.flag(baselines, "baselines")
    with closing(LocalEngine([plan.device], SetUp(place))) as engine, Store.open(place) as store:
        found = plan.tune(engine, store, place, budget=budget, again=anew, baselines=compares)
    if found.was_interrupted:
        raise KeyboardInterrupt
    return found


class ModelPlan:
    """Plan to tune a pruned model with example inputs: the products to search for, and the decision that follows.

    Attributes:
        device: the device that runs the kernels.
        layers: the pruned ones, and those that may share a launch once more together.
        searches: one for each of their products.
    """

    def __init__(
        self,
        model: nn.Module,
        example_inputs: object,
        *,
        least_sparsity: float = LEAST_SPARSITY,
        exclude: Sequence[str] = (),
        fuse: bool = True,
        capture: bool = True,
        rounding: Quantization | None = None,
    ) -> None:
        """See `tune_model`, whose errors these are."""
        positional, named = arguments_of(example_inputs)
        self._rounding = rounding
        self._model, self._inputs = model, example_inputs
        self._fuse, self._capture = fuse, capture
        self._left = {
            name: DenseLayer(name, kind_of(module), why) for name, module, why in obstacles(model, exclude)
        }
        linears = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and name and name not in self._left
        }
        if not linears:
            raise PruningError("no linear layer of this model can be sparse")
        own = pruned_layers(_weights(linears), least_sparsity=least_sparsity)
        for other in own.others:
            self._left[other.name] = DenseLayer(
                other.name, kind_of(linears[other.name]), f"not pruned: {other.reason}"
            )
        self._dense = {layer.name: linears[layer.name] for layer in own.layers}
        self.device = _device_of(self._dense)
        self._seen = _traced(model, self._dense, lambda: model(*positional, **named))
        sparse = {name: SparseLinear.from_dense(layer) for name, layer in self._dense.items()}
        arranger = Arranger(model, self._dense, sparse, self._seen.sites, self._seen.shared)
        shared = arranger.shared if fuse and rounding is None else ()
        self._activations = {n: s.activation for s in arranger.sites for n in s.layers} if fuse else {}
        self._weights = _weights(self._dense, shared)
        self.layers = pruned_layers(self._weights, least_sparsity=0.0).layers
        self.searches = share(self._products())

    def _products(self) -> Iterator[tuple[PrunedLayer, LayerProblem]]:
        """Yields all products of the model, in all forms that are tried."""
        for layer in self.layers:
            first, *_ = names = layer.name.split(JOINT)
            has_bias = any(self._dense[name].bias is not None for name in names)
            dtype = DTYPES[self._dense[first].weight.dtype]
            kinds = (Activation.NONE, self._activations.get(first, Activation.NONE))
            for epilogue in dict.fromkeys(epilogue_of(kind, has_bias=has_bias) for kind in kinds):
                for n in dict.fromkeys(self._seen.tokens.get(first, ())):
                    if n:
                        yield layer, product_with(layer, n, dtype, Layout.COLUMN, epilogue, self._rounding)

    def tune(
        self,
        engine: Engine,
        store: Store,
        place: str,
        *,
        budget: Budget | None = None,
        again: bool = False,
        baselines: bool = True,
        watch: Watch | None = None,
    ) -> InSituTuning:
        """Run the searches and decide; see `tune_model`.

        Args:
            engine: it writes into the database.
            store, place: the database.
        """
        outcomes, was_interrupted = run_searches(
            self._weights,
            self.searches,
            engine=engine,
            store=store,
            budget=budget,
            again=again,
            baselines=baselines,
            watch=watch,
        )
        if was_interrupted:
            return InSituTuning(outcomes, None)
        sparse = {name: SparseLinear.from_dense(layer, db=place) for name, layer in self._dense.items()}
        if self._rounding is not None:
            sparse = {name: QuantizedLinear.from_sparse(la, self._rounding) for name, la in sparse.items()}
        found = decide(self._model, self._dense, sparse, self._inputs, fuse=self._fuse, capture=self._capture)
        tokens = tuple(dict.fromkeys(n for counts in self._seen.tokens.values() for n in counts if n))
        report = conversion_report(self._model, sparse, self._left, tokens, self._times(store, tokens), found)
        return InSituTuning(outcomes, report)

    def _times(self, store: Store, tokens: Sequence[int]) -> dict[str, tuple[LayerTime, ...]]:
        """Returns the times known so far of each layer's own product."""
        database, found = Layers([store, seeds()]), {}
        for layer in self.layers:
            dense = self._dense.get(layer.name)
            if dense is not None:
                epilogue = epilogue_of(Activation.NONE, has_bias=dense.bias is not None)
                dtype = DTYPES[dense.weight.dtype]
                found[layer.name] = tuple(
                    layer_time(
                        layer,
                        product_with(layer, n, dtype, Layout.COLUMN, epilogue, self._rounding),
                        self.device,
                        database,
                    )
                    for n in tokens
                )
        return found


def _weights(layers: Mapping[str, nn.Linear], shared: Sequence[Sequence[str]] = ()) -> TorchWeights:
    """The weights of layers by their names, and those of layers that may share a launch below each other."""
    tensors = {name: current_weight(layer) for name, layer in layers.items()}
    for names in shared:
        tensors[JOINT.join(names)] = torch.cat([tensors[name] for name in names])
    return TorchWeights(tensors)


def _device_of(layers: Mapping[str, nn.Linear]) -> Device:
    """
    Raises:
        OperandError: no kernel runs for such layers where they are, or they are in several places.
    """
    found = {kernel_device(layer.weight) for layer in layers.values()}
    device = found.pop()
    if device is None or found:
        where = ", ".join(sorted({f"{la.weight.dtype} on {la.weight.device}" for la in layers.values()}))
        raise OperandError(
            f"the layers are {where}: move the model to one GPU in float32, float16 or bfloat16 (or set "
            "SPARSEGEN_DEVICE=emulator for the CPU)"
        )
    return device


def _traced(model: nn.Module, layers: Mapping[str, nn.Linear], run: Run) -> Trace:
    was_training = model.training
    try:
        model.eval()
        with torch.no_grad():
            return trace(model, layers, run)
    finally:
        model.train(was_training)
