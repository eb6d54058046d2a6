"""The products of layers' calls as exported programs compute them: by a library's operator, or dense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sparsegen.errors import DeviceUnavailableError
from sparsegen.integrations.torch.calls.activations import Activation, epilogue_of
from sparsegen.integrations.torch.calls.dense_products import DensePrepared
from sparsegen.integrations.torch.pattern.pattern import Product
from sparsegen.integrations.torch.pattern.prepared_linear import PreparedLinear
from sparsegen.integrations.torch.pattern.quantized_linear import QuantizedLinear
from sparsegen.integrations.torch.shipping.layer_calls import Compute, LayerCall
from sparsegen.kernels.base import Device
from sparsegen.operators import QuantizedSpmmProblem, SpmmProblem
from sparsegen.plan.shipping.launches import ShippedLaunch, shipped_launch
from sparsegen.plan.variant_launcher import variant_launcher


@dataclass(frozen=True, slots=True, eq=False)
class ShippedProduct:
    """The product of a call.

    Attributes:
        launch: None where a dense product takes less time.
        weight: the packed weight, or the dense one.
        bias: in the product's dtype.
        activation: what the kernel leaves out of the layer's.
    """

    launch: ShippedLaunch | None
    weight: Tensor
    bias: Tensor | None
    activation: Activation
    dtype: torch.dtype

    def computed_by(self, namespace: str, number: int) -> Compute:
        """The function that computes it in a program.

        Args:
            namespace: of the library's operator.
            number: of the launch in the library.
        """
        if self.launch is None:
            return partial(self._compute, functional.linear)
        operator = getattr(torch.ops, namespace).linear
        return partial(self._compute, lambda x, weight, bias: operator(x, weight, bias, number))

    @property
    def shape_alone(self) -> Compute:
        """The function that gives a tensor of the result's shape and dtype, without its numbers."""
        width = self.weight.shape[0]
        if self.launch is not None:  # whose weight is packed
            assert isinstance(self.launch.problem, SpmmProblem | QuantizedSpmmProblem)
            width = self.launch.problem.m
        return lambda x: x.new_empty((*x.shape[:-1], width), dtype=self.dtype)

    def _compute(self, linear: Any, x: Tensor) -> Tensor:
        x = x if x.dtype == self.dtype else x.to(self.dtype)  # as autocast did
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])  # each operation of a program takes time
        y = self.activation.of(linear(rows, self.weight, self.bias))
        return y if x.dim() == 2 else y.reshape(*x.shape[:-1], y.shape[-1])


def shipped_products(
    calls: Sequence[LayerCall], devices: Sequence[Device]
) -> Mapping[LayerCall, ShippedProduct]:
    """The products of calls that this process has run, by the very variants.

    Args:
        devices: see `shipped_launch`.

    Raises:
        DeviceUnavailableError: no kernel ran for a call.
        ConfigError, CompileError: see `shipped_launch`.
    """
    found: dict[LayerCall, ShippedProduct] = {}
    together: dict[tuple[Any, ...], ShippedProduct] = {}
    for call in calls:
        if call.together is None:
            found[call] = _product(call, devices)
        else:
            key = call.together, call.tokens, call.dtype
            if key not in together:
                together[key] = _product(call, devices)
            found[call] = together[key]
    return found


def _product(call: LayerCall, devices: Sequence[Device]) -> ShippedProduct:
    layer = call.layer
    if isinstance(layer, QuantizedLinear) and (codes := layer.of_codes(call.tokens, call.dtype)) is not None:
        return _product_of_codes(call, codes, devices)
    pattern = layer.pattern
    values: Tensor = layer.values
    bias: Tensor | None = layer.bias
    if call.together is not None:
        pattern = call.together.pattern
        values, bias = call.together.stacked()
    like = values.new_empty(0, dtype=call.dtype)
    epilogue = epilogue_of(layer.activation, has_bias=bias is not None)
    prepared = pattern.prepared(Product.FORWARD, call.tokens, like, epilogue=epilogue)
    if prepared is None:
        raise DeviceUnavailableError(
            f"{layer}: no kernel runs for {call.dtype} on {values.device}: move the model to a GPU with .cuda(), in "
            "float32, float16 or bfloat16 (or set SPARSEGEN_DEVICE=emulator, to try on the CPU what is shipped)"
        )
    added = None if bias is None else bias.detach().to(call.dtype).clone()
    if isinstance(prepared, DensePrepared):
        with prepared.weight.turn:
            prepared.weight.follow(values)
            weight = prepared.weight.tensor.detach().clone()
        return ShippedProduct(None, weight, added, layer.activation, call.dtype)
    with prepared.turn:
        prepared.follower.follow(values)
        launch = shipped_launch(variant_launcher(prepared.operator), devices)
    packed = torch.from_numpy(launch.packed).to(values.device)
    left = layer.activation if bias is None else Activation.NONE
    return ShippedProduct(launch, packed, added, left, call.dtype)


def _product_of_codes(call: LayerCall, prepared: PreparedLinear, devices: Sequence[Device]) -> ShippedProduct:
    """The product of a call that multiplies by codes; scales and zero points are part of the weight."""
    operator, bias = prepared.operator, call.layer.bias
    launch = shipped_launch(variant_launcher(operator), devices)
    packed = torch.from_numpy(launch.packed).to(call.layer.row_offsets.device)
    added = None if bias is None else bias.detach().clone()
    left = call.layer.activation if bias is None else Activation.NONE
    return ShippedProduct(launch, packed, added, left, call.dtype)
