"""Low bits on a GPU: products of a layer's codes by other libraries, races with them, and models of their layers."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

from sparsegen.integrations.torch import QuantizedLinear, SparseLinear, convert  # noqa: E402
from sparsegen.integrations.torch.pattern import dense_codes  # noqa: E402
from sparsegen.operators import Quantization, ScaleGroup, ValueType  # noqa: E402

OF_128 = Quantization(ValueType.INT4, ScaleGroup.OF_128)
ROUNDINGS = (
    OF_128,
    Quantization(ValueType.INT4, ScaleGroup.OF_128, symmetric=False),
    Quantization(ValueType.INT8),
    Quantization(ValueType.E4M3),
)
OUT, IN, TOKENS = 1024, 2048, 8


def layer_of(rounding: Quantization, dtype: Any) -> QuantizedLinear:
    torch.manual_seed(0)
    dense = torch.nn.Linear(IN, OUT, dtype=dtype, device="cuda")
    return QuantizedLinear.from_sparse(SparseLinear.from_dense(dense, sparsity=0.6), rounding)


def relative_error(found: Any, layer: QuantizedLinear, x: Any) -> float:
    dense = layer.to_dense()
    exact = torch.nn.functional.linear(x.double(), dense.weight.double(), dense.bias.double())
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.skipif(find_spec("humming") is None, reason="humming is not installed")
@pytest.mark.parametrize("rounding", ROUNDINGS, ids=str)
def test_humming_multiplies_the_same_weight_and_races(
    rounding: Quantization, caplog: pytest.LogCaptureFixture
) -> None:
    layer, x = layer_of(rounding, torch.float16), torch.randn(TOKENS, IN, device="cuda").half()
    way = dense_codes.way_of(rounding, layer.pattern.shape, x.dtype, x.device)
    assert way is not None and way[0] == "humming"
    with torch.no_grad():
        alone = dense_codes.DenseProduct(way[1], layer._dense_codes, layer._unquantised)(x)
        assert relative_error(alone, layer, x) < 5e-3
        assert relative_error(layer(x), layer, x) < 5e-3
    assert "does not multiply" not in caplog.text
    assert "humming" in layer.why(TOKENS) or "unquantised" in layer.why(TOKENS)


def test_pytorchs_product_of_four_bits_races(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dense_codes, "find_spec", lambda name: None)
    layer, x = layer_of(OF_128, torch.bfloat16), torch.randn(TOKENS, IN, device="cuda").bfloat16()
    way = dense_codes.way_of(OF_128, layer.pattern.shape, x.dtype, x.device)
    assert way is not None and way[0] == "torch._weight_int4pack_mm"
    with torch.no_grad():
        assert relative_error(layer(x), layer, x) < 2e-2
    assert "does not multiply" not in caplog.text
    assert "int4pack" in layer.why(TOKENS) or "unquantised" in layer.why(TOKENS)


@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_models_of_torchao_are_never_slower(config: str) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(IN, IN), torch.nn.ReLU(), torch.nn.Linear(IN, OUT))
    model = model.cuda().bfloat16().eval()
    for layer in (model[0], model[2]):
        layer.weight.data *= torch.rand_like(layer.weight) > 0.7
    quantization.quantize_(model, getattr(quantization, config)())
    x = torch.randn(TOKENS, IN, device="cuda").bfloat16()
    with torch.no_grad():
        before = model(x).float()
        report = convert(model, example_inputs=x, value_type="int8")
        after = model(x).float()
    assert float((after - before).norm() / before.norm()) < 3e-2
    assert len(report.converted) + len(report.dense) == 2
    assert report.in_situ is not None and report.in_situ.final_us <= report.in_situ.dense_us
