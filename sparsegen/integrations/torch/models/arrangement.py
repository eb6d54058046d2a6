"""Arrangement of a model's sparse layers: which are sparse and in what form, put into the model and taken out again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from torch import nn

from sparsegen.integrations.torch.calls.activations import Activation
from sparsegen.integrations.torch.calls.layer_weights import has_own_hooks
from sparsegen.integrations.torch.calls.replacement import Replacement
from sparsegen.integrations.torch.models.model_trace import ActivationSite
from sparsegen.integrations.torch.pattern.linear import SparseLinear
from sparsegen.integrations.torch.pattern.shared_input import SharedInput, SharedPart


@dataclass(frozen=True, slots=True)
class Form:
    """Form in which sparse layers run.

    Attributes:
        fused: their activations are part of them.
        one_launch: those that read one tensor are one launch.
    """

    fused: bool = False
    one_launch: bool = False


PLAIN = Form()


class Arranger:
    """A model, the layers that may be sparse in it, and what may be done with them.

    Attributes:
        model: it is changed in place.
        sparse: layers by name.
        sites: activations that may become part of layers.
        shared: layers that may share a launch.
    """

    def __init__(
        self,
        model: nn.Module,
        dense: Mapping[str, nn.Module],
        sparse: Mapping[str, Replacement],
        sites: Sequence[ActivationSite] = (),
        shared: Sequence[Sequence[str]] = (),
        holders: Mapping[str, nn.Module] = MappingProxyType({}),
    ) -> None:
        """
        Args:
            dense: what stands in the model where a layer is dense.
            holders: modules that stand there in the place of sparse layers, and call them.
        """
        self.model, self.sparse = model, sparse
        self._holders = {**sparse, **holders}
        self.sites = tuple(
            site
            for site in sites
            if all(name in sparse and sparse[name].takes(site.activation) for name in site.layers)
        )
        of_layer = {name: site for site in self.sites for name in site.layers}
        self.shared = tuple(
            names
            for group in shared
            for names in _alike([name for name in group if self._is_plain(name)], of_layer)
            if len(names) > 1
        )
        self._dense = dense
        # Before any trial, so that equal models have equal handles, which name code in Inductor's cache.
        linear: Mapping[str, Any] = sparse
        self._together = {names: SharedInput([linear[name] for name in names]) for names in self.shared}
        self._modules = {site.names: model.get_submodule(site.names[0]) for site in self.sites}

    def may_share(self, names: Sequence[str]) -> bool:
        """True if some of these layers may share a launch."""
        return any(set(names) & set(group) for group in self.shared)

    def _is_plain(self, name: str) -> bool:
        """True of a linear layer, which reads the very tensor that it is called with."""
        return name in self.sparse and type(self._holders[name]) is SparseLinear

    def arrange(self, forms: Mapping[str, Form]) -> None:
        """Have these layers sparse in these forms, all others dense.

        An activation is fused where all layers before it are to be, and layers share a launch where all that read the
        tensor are to.
        """
        for name, layer in self.sparse.items():
            layer.activation = Activation.NONE
            layer.shares(None)
            module = self._holders[name] if name in forms else self._dense[name]
            _put(self.model, name, module)
        for site in self.sites:
            fuses = all(forms.get(name, PLAIN).fused for name in site.layers)
            behind = nn.Identity() if fuses else self._modules[site.names]
            for name in site.names:
                _put(self.model, name, behind)
            for name in site.layers if fuses else ():
                self.sparse[name].activation = site.activation
        for names, together in self._together.items():
            has_one_activation = len({layer.activation for layer in together.layers}) == 1
            if has_one_activation and all(forms.get(name, PLAIN).one_launch for name in names):
                for number, name in enumerate(names):
                    self.sparse[name].shares(SharedPart(together, number))


def _alike(names: Sequence[str], sites: Mapping[str, ActivationSite]) -> Iterator[tuple[str, ...]]:
    """Layers with equal activations, in order: an epilogue is one of the whole launch."""
    kinds: dict[Activation, list[str]] = {}
    for name in names:
        kinds.setdefault(sites[name].activation if name in sites else Activation.NONE, []).append(name)
    return map(tuple, kinds.values())


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    holder, _, own_name = name.rpartition(".")
    setattr(model.get_submodule(holder), own_name, module)


_KINDS = {nn.ReLU: Activation.RELU, nn.GELU: Activation.GELU}


def sites_in_sequences(model: nn.Module, layers: Mapping[str, nn.Module]) -> Iterator[ActivationSite]:
    """Activations right behind these layers in an `nn.Sequential`, found without a call; `nn.Identity`, as in the place
    of a folded norm, does not count.
    """
    names: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
    for name, sequence in model.named_modules():
        if type(sequence) is not nn.Sequential:
            continue
        children = [child for child in sequence.named_children() if not _is_nothing(child[1])]
        for (first, layer), (second, activation) in pairwise(children):
            kind = _KINDS.get(type(activation))
            own, behind = (f"{name}.{child}" if name else child for child in (first, second))
            if kind is None or own not in layers or layer is not layers[own]:
                continue
            if isinstance(activation, nn.GELU) and activation.approximate != "none":
                continue
            alone = names[id(layer)] == [own] and names[id(activation)] == [behind]
            if alone and not has_own_hooks(layer) and not has_own_hooks(activation):
                yield ActivationSite(kind, (behind,), (own,))


def _is_nothing(module: nn.Module) -> bool:
    """True if a module gives back what it gets, and has no hooks."""
    return type(module) is nn.Identity and not has_own_hooks(module)
