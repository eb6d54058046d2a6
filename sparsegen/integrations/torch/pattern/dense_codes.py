"""Dense products of low-bit codes: by the library humming where it is installed, else by PyTorch's own of 4 bits.

Products of 8-bit activations (`torch._scaled_mm`, `torch._int_mm`) are none of these, as they round what they get.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from sparsegen.errors import OperandError
from sparsegen.integrations.torch.calls.activations import Activation
from sparsegen.integrations.torch.calls.either import Compute
from sparsegen.operators import Quantization, ScaleGroup, ValueType
from sparsegen.plan.lasting_tensors import lasting

TOLERANCE = 0.02  # of the largest element of a result
SLOTS = 8  # tiles of 16 columns that PyTorch packs together
TYPES = {ValueType.INT4: "int4", ValueType.INT8: "int8", ValueType.E4M3: "float8e4m3"}  # in humming's words


@dataclass(frozen=True, eq=False)
class DenseCodes:
    """A weight of codes, its zeros among them.

    Attributes:
        codes: out × in, a byte each, as `QuantizedLinear.codes` has them.
        scales: out × groups.
        zero_points: likewise, the codes that stand for zero; None of symmetric codes.
    """

    codes: Tensor
    scales: Tensor
    zero_points: Tensor | None
    bias: Tensor | None
    activation: Activation
    rounding: Quantization


Make = Callable[[DenseCodes, int], Compute]


class DenseProduct:
    """A dense product of a layer's codes for one number of tokens, made at its first call."""

    def __init__(self, make: Make, weight: Callable[[], DenseCodes], exact: Compute) -> None:
        """Take what makes it.

        Args:
            exact: the same product in another way, whose result the first one must have but for rounding.
        """
        self._make, self._weight, self._exact = make, weight, exact
        self._made: Compute | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Raises OperandError if the first result is off; passes on what the library raises."""
        if self._made is None:
            made = lasting(torch, partial(self._make_for, x.shape[0], x.device), x.device)
            found, expected = made(x).float(), self._exact(x).float()
            if not torch.allclose(found, expected, rtol=0, atol=TOLERANCE * float(expected.abs().max())):
                raise OperandError(f"its result is off by {float((found - expected).abs().max()):.3g}")
            self._made = made
        return self._made(x)

    def _make_for(self, tokens: int, device: torch.device) -> Compute:
        with torch.cuda.device(device if device.type == "cuda" else -1):
            return self._make(self._weight(), tokens)


def way_of(
    rounding: Quantization, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> tuple[str, Make] | None:
    """Returns the way of a dense product with codes, its name first; None if there is none."""
    if device.type != "cuda":
        return None
    if find_spec("humming") is not None:
        return "humming", _by_humming
    m, k = shape
    grouped = rounding.group is not ScaleGroup.ROW and k % rounding.group.size(k) == 0
    is_pytorchs = rounding.value_type is ValueType.INT4 and rounding.symmetric and dtype is torch.bfloat16
    if is_pytorchs and grouped and m % 8 == 0 and k % (16 * SLOTS) == 0:
        return "torch._weight_int4pack_mm", _by_pytorch
    return None


def _by_pytorch(weight: DenseCodes, tokens: int) -> Compute:
    """PyTorch's product of bfloat16 by 4-bit codes in groups."""
    pairs = weight.codes[:, ::2] << 4 | weight.codes[:, 1::2]
    packed = torch._convert_weight_to_int4pack(pairs, SLOTS)
    scales = weight.scales.T
    scales_and_offsets = torch.stack((scales, torch.zeros_like(scales)), dim=2).contiguous()
    group = weight.codes.shape[1] // len(scales)

    def compute(x: Tensor) -> Tensor:
        y = torch._weight_int4pack_mm(x.contiguous(), packed, group, scales_and_offsets)
        return weight.activation.of(y if weight.bias is None else y + weight.bias)

    return compute


def _by_humming(weight: DenseCodes, tokens: int) -> Compute:
    """Product by humming for a number of tokens or fewer: kernels for more would take 20 s to compile."""
    from humming.layer import HummingLayer  # type: ignore[import-not-found]
    from humming.tune import get_heuristics_config  # type: ignore[import-not-found]

    (m, k), bits = weight.codes.shape, weight.rounding.value_type.bits
    groups = weight.scales.shape[1]
    layer = HummingLayer(
        shape_n=m,
        shape_k=k,
        weight_config={
            "dtype": TYPES[weight.rounding.value_type],
            "group_size": 0 if groups == 1 else k // groups,
            "has_zero_point": weight.zero_points is not None,
        },
        torch_dtype=weight.scales.dtype,
        has_bias=weight.bias is not None,
    ).to(weight.codes.device)
    tensors = {"weight": _words(weight.codes, bits), "weight_scale": weight.scales}
    if weight.zero_points is not None:
        tensors["zero_point"] = _words(weight.zero_points.T.contiguous(), bits).T
    if weight.bias is not None:
        tensors["bias"] = weight.bias
    layer.load_from_tensors(tensors)
    layer.transform()
    table = get_heuristics_config(layer.humming_config)
    call = partial(layer, tuning_config=json.dumps([entry for entry in table if entry[0] < tokens]))
    return lambda x: weight.activation.of(call(x.contiguous()))


def _words(codes: Tensor, bits: int) -> Tensor:
    """Rows of codes as words of 32 bits, the first in the lowest."""
    packed = codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4
    return packed.contiguous().view(torch.int32)
