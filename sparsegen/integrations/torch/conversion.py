"""Whole models: which of their layers become sparse, and why the others stay dense."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch import nn

from sparsegen import api, arguments
from sparsegen.dispatch.pruned_times import Grounds, LayerTime
from sparsegen.errors import PruningError
from sparsegen.integrations.torch.linear import SparseLinear
from sparsegen.integrations.torch.pattern import DTYPES
from sparsegen.kernels.base import Device
from sparsegen.pruning.groups import Scope
from sparsegen.pruning.pruner import prune
from sparsegen.pruning.report import PruneReport
from sparsegen.pruning.request import PatternName

READS_WEIGHTS = (nn.TransformerEncoderLayer,)  # of the layers in it, beside calling them


@dataclass(frozen=True, slots=True)
class ConvertedLayer:
    """A layer that became sparse.

    Attributes:
        shape: (out, in) features.
        time: of one product, as far as it was measured; None without a number of tokens.
    """

    name: str
    shape: tuple[int, int]
    nonzeros: int
    time: LayerTime | None

    @property
    def sparsity(self) -> float:
        size = self.shape[0] * self.shape[1]
        return 1 - self.nonzeros / size if size else 0.0


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A layer with a matrix of weights that stayed as it was, and the reason in a few words."""

    name: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What `convert` did.

    Attributes:
        tokens: the number that products were looked up for; None if none was given.
        converted, dense: in the model's order.
    """

    tokens: int | None
    converted: tuple[ConvertedLayer, ...]
    dense: tuple[DenseLayer, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.converted)} sparse, {len(self.dense)} left dense"]
        for layer in self.converted:
            out_features, in_features = layer.shape
            lines.append(
                f"  {layer.name}: {out_features} × {in_features}, {layer.sparsity:.1%} sparse{self._said(layer.time)}"
            )
        lines += [f"  {layer.name} ({layer.kind}) stays dense: {layer.reason}" for layer in self.dense]
        return "\n".join(lines)

    def _said(self, time: LayerTime | None) -> str:
        if time is None:
            return ""
        if time.sparse_us is None:
            return "; its time was not measured"
        dense = "" if time.dense_us is None else f", dense {time.dense_us:.1f} µs"
        return f"; {time.sparse_us:.1f} µs{dense} for {self.tokens} tokens ({time.grounds})"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "tokens": self.tokens,
            "converted": [
                {
                    "name": layer.name,
                    "shape": list(layer.shape),
                    "nonzeros": layer.nonzeros,
                    "sparsity": layer.sparsity,
                    "time": None if layer.time is None else layer.time.to_dict(),
                }
                for layer in self.converted
            ],
            "dense": [{"name": d.name, "kind": d.kind, "reason": d.reason} for d in self.dense],
        }


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
    device: Device | str | None = None,
    db: str | Path | None = None,
) -> ConversionReport:
    """Prune a model's linear layers and replace them, in place, by sparse ones; nothing is run.

    A layer stays dense where its weight belongs to another module too, where the module that holds it reads the weight
    itself, where it cannot be pruned or nothing of it would be left, and, given ``tokens``, where the tuning database
    knows a dense product to be faster on this pattern or one that is near. What was never measured is converted, and
    the report says so: `sparsegen.tune` with ``layout="column"`` and the pruned weight measures it.

    Args:
        model: not itself a linear layer; for one there is `SparseLinear.from_dense`.
        pattern, sparsity, scope, block, nm: of `sparsegen.prune`, but the default scope is ``"layer"``: weights of
            layers with different numbers of inputs differ in size from the start, and one cut could empty a layer.
        exclude: globs of the names of modules that stay dense.
        tokens: rows of the activations (batch times sequence) that the layers will mostly see.
        device, db: of `sparsegen.prepare`, for the times.

    Raises:
        PruningError: a request that cannot be met, or a model without a linear layer that could be sparse.
        MatrixError: NaN or infinity in a weight that is to be pruned. The model is then as it was.
    """
    arguments.instance(model, nn.Module, "model", PruningError)
    exclude = arguments.texts(exclude, "exclude", PruningError)
    tokens = None if tokens is None else arguments.whole(tokens, "tokens", PruningError, least=1)
    dense = {name: DenseLayer(name, type(m).__name__, why) for name, m, why in _obstacles(model, exclude)}
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name and name not in dense
    }
    if not layers:
        raise PruningError("no linear layer of this model can be sparse" + _listed(list(dense.values())))
    if scope is None and not (isinstance(pattern, str) and pattern == PatternName.NM):
        scope = Scope.LAYER
    weights = {name: module.weight for name, module in layers.items()}
    pruned = prune(weights, pattern=pattern, sparsity=sparsity, scope=scope, block=block, nm=nm)
    for copied in pruned.report.copied:
        dense[copied.name] = DenseLayer(copied.name, "Linear", f"cannot be pruned: {copied.reason}")
    for name in pruned.report.emptied:
        dense[name] = DenseLayer(name, "Linear", "nothing of it would be left")
    times = {} if tokens is None else _times(pruned.report, layers, tokens, device, db)
    for name, time in times.items():
        if time.sparse_us is not None and time.dense_us is not None and time.dense_us <= time.sparse_us:
            why = (
                f"dense is faster for {tokens} tokens: {time.dense_us:.1f} µs, sparse {time.sparse_us:.1f} µs"
            )
            near = "" if time.grounds is Grounds.EXACT else " on a pattern that is near"
            dense[name] = DenseLayer(name, "Linear", why + near)
    ready = {
        name: SparseLinear.from_dense(module, pruned.weights[name])
        for name, module in layers.items()
        if name not in dense
    }
    converted = []
    for name, layer in ready.items():
        holder, _, own_name = name.rpartition(".")
        setattr(model.get_submodule(holder), own_name, layer)
        converted.append(ConvertedLayer(name, layer.pattern.shape, layer.pattern.nnz, times.get(name)))
    order = {name: i for i, (name, _) in enumerate(model.named_modules())}
    return ConversionReport(
        tokens, tuple(converted), tuple(sorted(dense.values(), key=lambda d: order[d.name]))
    )


def _obstacles(model: nn.Module, exclude: Sequence[str]) -> Iterator[tuple[str, nn.Module, str]]:
    """The modules with a matrix of weights that cannot be sparse, and why."""
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(name)
    for name, module in model.named_modules():
        matrices = [p for p in module.parameters(recurse=False) if p.dim() > 1]
        if not matrices:
            continue
        others = sorted({owner for p in matrices for owner in owners[id(p)]} - {name})
        if type(module) is not nn.Linear:
            yield name, module, "not a plain torch.nn.Linear"
        elif any(fnmatchcase(name, glob) for glob in exclude):
            yield name, module, "left out by name"
        elif others:
            yield name, module, f"its weight belongs to {', '.join(others)} too"
        elif isinstance(holder := model.get_submodule(name.rpartition(".")[0]), READS_WEIGHTS):
            yield name, module, f"{type(holder).__name__} reads its weight itself"


def _times(
    report: PruneReport,
    layers: dict[str, nn.Linear],
    tokens: int,
    device: Device | str | None,
    db: str | Path | None,
) -> dict[str, LayerTime]:
    """What is known of the product with each layer, by name."""
    found: dict[str, LayerTime] = {}
    for torch_dtype in {layer.weight.dtype for layer in layers.values()} & DTYPES.keys():
        times = api.pruned_times(
            report, n=tokens, dtype=DTYPES[torch_dtype], layout="column", device=device, db=db
        )
        found |= {t.layer: t for t in times.layers if layers[t.layer].weight.dtype is torch_dtype}
    return found


def _listed(layers: Sequence[DenseLayer]) -> str:
    return "".join(f"; {layer.name}: {layer.reason}" for layer in layers)
