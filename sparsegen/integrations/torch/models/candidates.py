"""The layers of a model that may become sparse: pruned, timed, and left out one after the other, each with a reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from sparsegen import api
from sparsegen.dispatch.dense_or_sparse import Faster
from sparsegen.dispatch.pruned_times import LayerTime, TimeSource
from sparsegen.errors import PruningError
from sparsegen.integrations.torch.calls.devices import DTYPES
from sparsegen.integrations.torch.calls.layer_weights import (
    current_weight,
    is_made_of_others,
    low_bits_of,
)
from sparsegen.integrations.torch.convolution.depthwise import is_depthwise
from sparsegen.integrations.torch.models.conversion_report import DenseLayer
from sparsegen.integrations.torch.pattern.linear import SparseLinear
from sparsegen.integrations.torch.pattern.pointwise import Convertible, is_convertible
from sparsegen.integrations.torch.pattern.sparse_conv import by_taps, is_sparse_convolution
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.pruning.groups import Scope
from sparsegen.pruning.pruned_layers import LEAST_SPARSITY
from sparsegen.pruning.pruner import pruned_matrices
from sparsegen.pruning.report import PruneReport
from sparsegen.pruning.request import PatternName, PruneRequest

READS_WEIGHTS = (nn.TransformerEncoderLayer,)  # modules that read their layers' weights, besides calling them


@dataclass(frozen=True, slots=True, eq=False)
class PrunedCandidates:
    """The weights of all candidates, before and after they were pruned.

    Attributes:
        weights, zeros: the weights before, and the share of zeros of those that were pruned already.
        matrices: the weights after.
    """

    weights: Mapping[str, Tensor]
    zeros: Mapping[str, float]
    matrices: Mapping[str, CsrMatrix]
    report: PruneReport

    def is_pruned_again(self, name: str) -> bool:
        """True if a layer was pruned already, and lost further weights."""
        kept = self.matrices[name].nnz
        return name in self.zeros and kept < int(torch.count_nonzero(self.weights[name]))


class Candidates:
    """The layers of a model that may become sparse, and those that stay dense.

    Attributes:
        layers: the candidates, by name.
        depthwise: convolutions of one filter for each channel, which are not pruned: another kernel may compute them.
        left: the layers that stay dense, by name, each with the reason.
    """

    def __init__(self, model: nn.Module, exclude: Sequence[str], *, convolves: bool = False) -> None:
        """Find them.

        Args:
            exclude: globs of the names of modules that stay dense.
            convolves: take convolutions of larger filters too, and depthwise ones.

        Raises:
            PruningError: there is none, or one has no data.
        """
        self.left = {
            name: DenseLayer(name, kind_of(m), why) for name, m, why in obstacles(model, exclude, convolves)
        }
        self.layers: dict[str, Convertible] = {
            name: module
            for name, module in model.named_modules()
            if _counts(module, convolves) and name and name not in self.left
        }
        self.depthwise: dict[str, nn.Conv2d] = {
            name: module
            for name, module in model.named_modules()
            if convolves and is_depthwise(module) and name and name not in self.left
        }
        if not self.layers:
            raise PruningError(
                "no linear layer or convolution of this model can be sparse"
                + _advice(model, list(self.left.values()))
            )
        _require_data(self.layers)

    def leave(self, name: str, reason: str) -> None:
        """Have a candidate stay dense."""
        self.left[name] = DenseLayer(name, kind_of(self.layers.pop(name)), reason)

    def pruned(
        self,
        pattern: PatternName | str,
        sparsity: float | None,
        *,
        scope: Scope | str | None,
        block: tuple[int, int] | None,
        nm: tuple[int, ...] | None,
    ) -> PrunedCandidates:
        """Prune copies of the weights, and leave the layers that cannot be pruned or would be empty.

        Without a sparsity, weights keep their own zeros, and layers with too few of them are left.

        Raises:
            PruningError: a request that cannot be met, or no layer is pruned already where that was expected.
            MatrixError: NaN or infinity in a weight.
        """
        keeps = sparsity is None and pattern == PatternName.UNSTRUCTURED
        if keeps and (scope, block, nm) != (None, None, None):
            raise PruningError("scope, block and nm say how to prune: give a sparsity too, or none of them")
        if scope is None and not (isinstance(pattern, str) and pattern == PatternName.NM):
            scope = Scope.LAYER
        weights = {name: _weight_of(module) for name, module in self.layers.items()}
        shares = {name: _zeros(weight) for name, weight in weights.items()}
        zeros = {name: share for name, share in shares.items() if share >= LEAST_SPARSITY}
        request = PruneRequest.parse(pattern, 0.0 if keeps else sparsity, scope=scope, block=block, nm=nm)
        matrices, report = pruned_matrices(weights, request)
        for copied in report.copied:
            self.leave(copied.name, f"cannot be pruned: {copied.reason}")
        if keeps:
            for name in self.layers.keys() - zeros.keys():
                self.leave(name, f"it is not pruned: {shares[name]:.1%} of its weights are zeros")
            if not self.layers:
                raise PruningError(
                    "no linear layer or convolution of this model is pruned "
                    f"({LEAST_SPARSITY:.0%} zeros or more): give a sparsity to prune"
                    + _listed(list(self.left.values()))
                )
        empty = {layer.name for layer in report.layers if layer.size and not layer.kept}
        for name in self.layers.keys() & empty:
            self.leave(name, "nothing of it would be left")
        return PrunedCandidates(weights, zeros, matrices, report)

    def times(
        self, report: PruneReport, tokens: Sequence[int], device: Device | str | None, db: str | Path | None
    ) -> dict[str, tuple[LayerTime, ...]]:
        """Returns the known times of the product with each layer, by name: one for each number of tokens.

        Those of dense products are of 16 bits and more: layers whose dense weights are of low bits have none, nor have
        convolutions of larger filters, which PyTorch computes otherwise.
        """
        found: dict[str, tuple[LayerTime, ...]] = {}
        for torch_dtype in {layer.weight.dtype for layer in self.layers.values()} & DTYPES.keys():
            dtype = DTYPES[torch_dtype]
            for n in tokens:
                times = api.pruned_times(report, n=n, dtype=dtype, layout="column", device=device, db=db)
                for t in times.layers:
                    layer = self.layers.get(t.layer)
                    if layer is None or low_bits_of(layer) or is_sparse_convolution(layer):
                        continue
                    if layer.weight.dtype is torch_dtype:
                        found[t.layer] = (*found.get(t.layer, ()), t)
        return found

    def leave_low_bits(self) -> None:
        """Leave out layers whose dense weights are of low bits, as no estimate tells their times."""
        for name in [name for name, layer in self.layers.items() if low_bits_of(layer)]:
            self.leave(name, "its weight is of low bits: give example_inputs to time it beside a sparse one")

    def leave_slower(self, times: Mapping[str, Sequence[LayerTime]], tokens: Sequence[int]) -> None:
        """Leave the layers whose dense product is faster for all numbers of tokens."""
        for name in self.layers.keys() & times.keys():
            if why := _why_dense(times[name], tokens):
                self.leave(name, why)


def kind_of(module: nn.Module) -> str:
    """Names a layer's type, and that of its weight if it is one of low bits."""
    return type(module).__name__ + (f" of {kind}" if (kind := low_bits_of(module)) else "")


def obstacles(
    model: nn.Module, exclude: Sequence[str], convolves: bool = False
) -> Iterator[tuple[str, nn.Module, str]]:
    """The modules with a matrix of weights that cannot be sparse, and why; see `Candidates`."""
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(name)
    for name, module in model.named_modules():
        if isinstance(module, parametrize.ParametrizationList):
            continue  # part of the layer
        holder = model.get_submodule(name.rpartition(".")[0])
        if why := _obstacle(name, module, holder, owners, exclude, convolves):
            yield name, module, why


def _obstacle(
    name: str,
    module: nn.Module,
    holder: nn.Module,
    owners: Mapping[int, list[str]],
    exclude: Sequence[str],
    convolves: bool,
) -> str:
    """Explains why a module's weight cannot be sparse; empty where it can, and where there is no matrix."""
    own = list(module.parameters(recurse=False))
    if any(is_lazy(p) for p in own):
        return "its weight is not initialized yet: call the model once"
    matrices, bias = [p for p in own if p.dim() > 1], module._parameters.get("bias")
    if (matrices or parametrize.is_parametrized(module)) and (why := is_made_of_others(module)) is not None:
        return why
    if not matrices:
        return ""
    if not _counts(module, convolves) and not (convolves and is_depthwise(module)):
        return _why_not_convertible(module)
    if any(fnmatchcase(name, glob) for glob in exclude):
        return "left out by name"
    if others := sorted({owner for p in matrices for owner in owners[id(p)]} - {name}):
        return f"its weight belongs to {', '.join(others)} too"
    if bias is not None and (others := sorted({*owners[id(bias)]} - {name})):
        return f"its bias belongs to {', '.join(others)} too"
    return f"{type(holder).__name__} reads its weight itself" if isinstance(holder, READS_WEIGHTS) else ""


def _counts(module: nn.Module, convolves: bool) -> TypeGuard[Convertible]:
    return is_convertible(module) or (convolves and is_sparse_convolution(module))


def _weight_of(module: Convertible) -> Tensor:
    """A layer's weight as the product that takes its place has it."""
    weight = current_weight(module)
    return by_taps(weight) if is_sparse_convolution(module) else weight


def _why_not_convertible(module: nn.Module) -> str:
    if type(module) is not nn.Conv2d:
        return "not a plain torch.nn.Linear"
    if module.groups > 1:
        depthwise = ": give example_inputs to time it beside a kernel of ours" if is_depthwise(module) else ""
        return f"a convolution of {module.groups} groups{depthwise}"
    kind = f"a convolution of {' × '.join(map(str, module.kernel_size))}"
    if is_sparse_convolution(module):
        return f"{kind}: give example_inputs to time it beside a sparse one"
    return f"{kind}, padded by other than as many zeros on each side"


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


def _advice(model: nn.Module, left: Sequence[DenseLayer]) -> str:
    """Advises on a model without a layer to convert, with the reasons."""
    if isinstance(model, nn.Linear):
        return ": it is one itself, which SparseLinear.from_dense converts"
    if any(isinstance(module, SparseLinear) for module in model.modules()):
        return ": others are sparse already" + _listed(left)
    return _listed(left)


def _listed(layers: Sequence[DenseLayer]) -> str:
    return "".join(f"; {layer.name}: {layer.reason}" for layer in layers)
