"""Dense products of codes: what other libraries' products are given, with stand-ins that read it as those do."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from sparsegen.operators import Quantization, ScaleGroup, ValueType

torch = pytest.importorskip("torch")

from sparsegen.integrations.torch import QuantizedLinear, SparseLinear  # noqa: E402
from sparsegen.integrations.torch.pattern import dense_codes  # noqa: E402

CUDA = torch.device("cuda")


def layer_of(rounding: Quantization, dtype: torch.dtype, *, bias: bool) -> QuantizedLinear:
    torch.manual_seed(0)
    dense = torch.nn.Linear(256, 32, bias=bias, dtype=dtype)
    sparse = SparseLinear.from_dense(dense, sparsity=0.5)
    sparse.activation = sparse.activation.RELU
    return QuantizedLinear.from_sparse(sparse, rounding)


def bits_of(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unsigned numbers in rows of words, the first in the lowest bits."""
    shifts = torch.arange(0, 32, bits)
    return (words[..., None] >> shifts & (1 << bits) - 1).flatten(-2)


class HummingLayer(torch.nn.Module):
    """Reads tensors as humming's `dequantize_weight` does, and multiplies by the full weight."""

    def __init__(
        self, shape_n: int, shape_k: int, weight_config: Any, torch_dtype: Any, has_bias: bool
    ) -> None:
        super().__init__()
        self.shape, self.config, self.dtype = (shape_n, shape_k), weight_config, torch_dtype
        self.has_bias, self.humming_config = has_bias, "config"

    def load_from_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        kind, scales = self.config["dtype"], tensors["weight_scale"].float()
        bits = 4 if kind == "int4" else 8
        codes = bits_of(tensors["weight"], bits)
        assert codes.shape == self.shape and tensors["weight"].dtype is torch.int32
        group = self.config["group_size"] or self.shape[1]
        assert scales.shape == (self.shape[0], self.shape[1] // group)
        if kind == "float8e4m3":
            numbers = codes.to(torch.uint8).view(torch.float8_e4m3fn).float()
        elif self.config["has_zero_point"]:
            points = bits_of(tensors["zero_point"].T.contiguous(), bits).T
            numbers = codes.float() - points.repeat_interleave(group, 1)
        else:
            numbers = codes.float() - (1 << bits - 1)
        self.full, self.bias = numbers * scales.repeat_interleave(group, 1), tensors.get("bias")
        assert (self.bias is not None) == self.has_bias

    def transform(self) -> None:
        self.full = self.full.to(self.dtype)

    def forward(self, x: torch.Tensor, tuning_config: str) -> torch.Tensor:
        assert tuning_config == "[[0, 4]]"  # for up to 4 tokens
        return torch.nn.functional.linear(x, self.full, self.bias)


@pytest.fixture
def humming(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {name: ModuleType(name) for name in ("humming", "humming.layer", "humming.tune")}
    found: dict[str, Any] = vars(parts["humming.layer"])
    found["HummingLayer"] = HummingLayer
    found = vars(parts["humming.tune"])
    found["get_heuristics_config"] = lambda config: [[0, 4], [4, 9]]
    for name, part in parts.items():
        monkeypatch.setitem(sys.modules, name, part)
    monkeypatch.setattr(dense_codes, "find_spec", lambda name: parts.get(name))


@pytest.mark.usefixtures("humming")
@pytest.mark.parametrize(
    "rounding",
    [
        Quantization(ValueType.INT4, ScaleGroup.OF_128),
        Quantization(ValueType.INT4, ScaleGroup.OF_32, symmetric=False),
        Quantization(ValueType.INT8),
        Quantization(ValueType.E4M3, ScaleGroup.OF_64),
    ],
    ids=str,
)
def test_humming_has_the_same_weight(rounding: Quantization) -> None:
    layer = layer_of(rounding, torch.float16, bias=rounding.symmetric)
    way = dense_codes.way_of(rounding, layer.pattern.shape, torch.float16, CUDA)
    assert way is not None and way[0] == "humming"
    x = torch.randn(4, 256).half()
    dense = dense_codes.DenseProduct(way[1], layer._dense_codes, layer._unquantised)
    with torch.no_grad():
        torch.testing.assert_close(dense(x), layer._unquantised(x), rtol=1e-2, atol=1e-2)


def test_pytorchs_own_product_has_the_same_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    def packed(pairs: torch.Tensor, slots: int) -> torch.Tensor:
        whole = torch.stack((pairs >> 4, pairs & 15), dim=2).flatten(1).int()  # the first in the upper half
        return torch._convert_weight_to_int4pack_for_cpu(whole, slots)

    monkeypatch.setattr(dense_codes, "find_spec", lambda name: None)
    monkeypatch.setattr(torch, "_convert_weight_to_int4pack", packed)
    monkeypatch.setattr(torch, "_weight_int4pack_mm", torch._weight_int4pack_mm_for_cpu)
    rounding = Quantization(ValueType.INT4, ScaleGroup.OF_64)
    layer = layer_of(rounding, torch.bfloat16, bias=True)
    way = dense_codes.way_of(rounding, layer.pattern.shape, torch.bfloat16, CUDA)
    assert way is not None and way[0] == "torch._weight_int4pack_mm"
    x = torch.randn(3, 256).bfloat16()
    dense = dense_codes.DenseProduct(way[1], layer._dense_codes, layer._unquantised)
    with torch.no_grad():
        torch.testing.assert_close(dense(x), layer._unquantised(x), rtol=2e-2, atol=2e-2)


def test_other_codes_have_no_dense_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_codes, "find_spec", lambda name: None)
    of_64 = Quantization(ValueType.INT4, ScaleGroup.OF_64)
    for rounding, shape, dtype, place in (
        (of_64, (32, 256), torch.float16, CUDA),
        (of_64, (32, 256), torch.bfloat16, torch.device("cpu")),
        (of_64, (32, 192), torch.bfloat16, CUDA),
        (Quantization(ValueType.INT4), (32, 256), torch.bfloat16, CUDA),
        (Quantization(ValueType.INT8, ScaleGroup.OF_64), (32, 256), torch.bfloat16, CUDA),
        (Quantization(ValueType.INT4, ScaleGroup.OF_64, symmetric=False), (32, 256), torch.bfloat16, CUDA),
    ):
        assert dense_codes.way_of(rounding, shape, dtype, place) is None
