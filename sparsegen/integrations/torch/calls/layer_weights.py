"""The weight and bias that a layer's next call would take, and what else of a dense layer a sparse one takes over.

Either may be a parameter, or made of others before each call: by the hooks of ``torch.nn.utils.prune``,
``weight_norm`` and ``spectral_norm``, or by a parametrization. What the attribute ``weight`` of a hooked layer holds is
of the last call, and is stale after a checkpoint was loaded or an optimizer took a step.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from sparsegen.errors import OperandError

# Hooks of calls; hooks of state dicts know the parameters that a layer had.
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
UNITS = 1024  # unit vectors in a product
OWN_FORWARD = "give it back its own (accelerate.hooks.remove_hook_from_module) before it becomes sparse"


def current_weight(layer: nn.Module) -> Tensor:
    """The weight as the forward pass would take it now, detached; one of low bits as full numbers.

    Raises:
        OperandError: it has no data: on the meta device, or of a lazy layer.
    """
    for parameter in layer.parameters():
        if is_lazy(parameter):
            raise OperandError("the weight is not initialized yet: call the lazy layer once, then convert it")
        if parameter.is_meta:
            raise OperandError(
                "the weight is on the meta device and has no data: load it first (load_state_dict with assign=True)"
            )
    weight = _current(layer, "weight")
    assert weight is not None
    return _full(weight) if low_bits_of(layer) else weight


def low_bits_of(layer: nn.Module) -> str:
    """The type of a dense weight of low bits, as torchao's, whose products are its own; empty of a plain weight."""
    weight = layer._parameters.get("weight")
    if weight is None:
        return ""
    kind = type(weight)
    return kind.__name__ if hasattr(weight, "qdata") or kind.dequantize is not Tensor.dequantize else ""


def _full(weight: Tensor) -> Tensor:
    """The numbers that a weight of low bits stands for; of one that does not tell them, by products of unit vectors."""
    with contextlib.suppress(NotImplementedError, TypeError):
        return weight.dequantize()
    units = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
    return torch.cat([linear(some, weight) for some in units.split(UNITS)]).T.contiguous()


def current_bias(layer: nn.Module) -> Tensor | None:
    """The bias as the forward pass would take it now, detached; None of a layer without one."""
    return _current(layer, "bias")


def _current(layer: nn.Module, name: str) -> Tensor | None:
    with torch.no_grad():
        for hook in layer._forward_pre_hooks.values():
            if _hooked_name(hook) != name:
                continue
            made: Any = hook
            if isinstance(hook, BasePruningMethod):
                return made.apply_mask(layer).detach()
            if isinstance(hook, SpectralNorm):
                return made.compute_weight(layer, do_power_iteration=False).detach()
            return made.compute_weight(layer).detach()
        found: Any = getattr(layer, name)
        return None if found is None else found.detach()


def trains(layer: nn.Module, name: str) -> bool:
    """True if the weight or bias, or the parameter that it is made of, requires a gradient."""
    original: Any = getattr(layer, f"{name}_orig", None)
    return bool((getattr(layer, name) if original is None else original).requires_grad)


def own_parameters(layer: nn.Module) -> tuple[nn.Parameter, Any]:
    """The weight's and the bias's own parameters, shared; of one that is made of others a new one that starts with it.

    The bias is None of a layer without one.
    """
    weight, bias = (own_parameter(layer, name) for name in ("weight", "bias"))
    assert weight is not None
    return weight, bias


def own_parameter(layer: nn.Module, name: str) -> nn.Parameter | None:
    """The parameter of this name, shared; for one that is made of others a new one that starts with it; or None."""
    parameter: Any = layer._parameters.get(name)
    if isinstance(parameter, nn.Parameter):
        return parameter
    made = _current(layer, name)
    return None if made is None else nn.Parameter(made.clone(), requires_grad=trains(layer, name))


def conv_options(conv: nn.Conv2d) -> dict[str, Any]:
    """The arguments of a convolution like this one, but for its channels, filter size, device and dtype."""
    return {
        "stride": conv.stride,
        "padding": conv.padding,
        "dilation": conv.dilation,
        "groups": conv.groups,
        "bias": conv.bias is not None,
        "padding_mode": conv.padding_mode,
    }


def is_made_of_others(layer: nn.Module) -> str | None:
    """Returns why a layer is more than a parameter, masked at most, in words; None if it is not."""
    if "forward" in vars(layer):
        return f"its method forward was replaced, as accelerate does to move weights: {OWN_FORWARD}"
    if parametrize.is_parametrized(layer):
        return "its weight is parametrized: torch.nn.utils.parametrize.remove_parametrizations makes it a plain one"
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            return "its weight is made anew by weight_norm: torch.nn.utils.remove_weight_norm makes it a plain one"
        if isinstance(hook, SpectralNorm):
            return "its weight is made anew by spectral_norm: torch.nn.utils.remove_spectral_norm makes it a plain one"
    return None


def keep_hooks(dense: nn.Module, made: nn.Module) -> None:
    """Have the hooks of a dense layer's calls on another layer, but for those that make its weight.

    Both share them, so that a handle removes one from both.

    Raises:
        OperandError: the dense layer's method ``forward`` was replaced, and what it does cannot be taken over.
    """
    if "forward" in vars(dense):
        raise OperandError(f"the layer's method forward was replaced by another: {OWN_FORWARD}")
    for name in _HOOKS:
        hooks: Any = getattr(dense, name)
        if any(_hooked_name(hook) is not None for hook in hooks.values()):
            hooks = type(hooks)((key, hook) for key, hook in hooks.items() if _hooked_name(hook) is None)
        setattr(made, name, hooks)
    made._is_full_backward_hook = dense._is_full_backward_hook


def has_own_hooks(layer: nn.Module) -> bool:
    """True if a layer has hooks besides those that make its weight."""
    pre = [hook for hook in layer._forward_pre_hooks.values() if _hooked_name(hook) is None]
    return bool(layer._forward_hooks or layer._backward_hooks or layer._backward_pre_hooks or pre)


def is_called_with_more(layer: nn.Module) -> bool:
    """True if a call of a layer runs more than its class's forward: hooks of any kind, or a forward of its own."""
    return "forward" in vars(layer) or any(getattr(layer, name) for name in _HOOKS)


def _hooked_name(hook: object) -> str | None:
    """The tensor that a hook of `torch.nn.utils` makes; None of every other hook."""
    if isinstance(hook, BasePruningMethod):
        return str(hook._tensor_name)
    return str(hook.name) if isinstance(hook, WeightNorm | SpectralNorm) else None
