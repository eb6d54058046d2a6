"""`QuantizedLinear`: its products, its state, what it falls back to, and what it says of that."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import sparsegen
from sparsegen.dispatch.decision import Decision
from sparsegen.errors import ConfigError, OperandError
from sparsegen.operators import Quantization, ScaleGroup, ValueType

torch = pytest.importorskip("torch")
nn = torch.nn
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._functorch.aot_autograd import make_boxed_func  # noqa: E402

from sparsegen.integrations.torch import QuantizedLinear, SparseLinear, SparsePattern  # noqa: E402
from sparsegen.integrations.torch.pattern import quantized_linear  # noqa: E402
from sparsegen.integrations.torch.pattern.dense_codes import DenseCodes  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_emulator")
ROUNDINGS = [
    Quantization(ValueType.INT4, ScaleGroup.OF_32),
    Quantization(ValueType.INT8),
    Quantization(ValueType.E4M3, ScaleGroup.OF_64),
    Quantization(ValueType.INT4, ScaleGroup.OF_128, symmetric=False),
]


def sparse(
    dtype: torch.dtype = torch.float16, *, bias: bool = True, activation: str = "none"
) -> SparseLinear:
    torch.manual_seed(0)
    layer = SparseLinear.from_dense(nn.Linear(96, 40, bias=bias, dtype=dtype), sparsity=0.5)
    layer.activation = sparsegen.integrations.torch.Activation.parse(activation)
    return layer.eval()


def expected(layer: QuantizedLinear, x: torch.Tensor) -> torch.Tensor:
    """The product in float64 of the matrix that codes and scales stand for."""
    weight = torch.from_numpy(layer.matrix().dequantized().to_dense()).double()
    y = x.double() @ weight.T + (0 if layer.bias is None else layer.bias.double())
    return layer.activation.of(y).to(x.dtype)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=str)
@pytest.mark.parametrize(
    ("dtype", "bias", "activation"),
    [(torch.float16, True, "relu"), (torch.bfloat16, False, "gelu"), (torch.float16, False, "none")],
)
def test_products_of_few_and_of_many_tokens(
    rounding: Quantization, dtype: torch.dtype, bias: bool, activation: str
) -> None:
    layer = QuantizedLinear.from_sparse(sparse(dtype, bias=bias, activation=activation), rounding)
    for shape in ((2, 3, 96), (70, 96), (96,)):
        x = torch.randn(shape, dtype=dtype)
        with torch.no_grad():
            y = layer(x)
        assert y.shape == (*shape[:-1], 40) and y.dtype is dtype
        torch.testing.assert_close(y, expected(layer, x), rtol=2e-2, atol=2e-2)
    assert layer.why(6).startswith("the codes: there is no GPU")
    assert "70 tokens are more than 64" in layer.why(70)
    assert f"{rounding}, unquantised for 70 tokens" in repr(layer)
    given = sparse(dtype).values.detach().double().numpy()
    changed = np.linalg.norm(layer.matrix().dequantized().values - given)
    assert layer.rounding_error == pytest.approx(changed / np.linalg.norm(given))


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=str)
def test_many_tokens_have_an_expanded_weight(rounding: Quantization) -> None:
    layer = QuantizedLinear.from_sparse(sparse(torch.bfloat16, activation="relu"), rounding)
    layer.expands = True
    x = torch.randn(2, 40, 96, dtype=torch.bfloat16)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(layer(x), expected(layer, x), rtol=2e-2, atol=2e-2)
        assert torch.equal(layer._full_weight(), layer.to_dense().weight)
        assert layer.why(80).startswith("the full weight, which each call expands from the codes: 80 tokens")
        assert copy.deepcopy(layer).expands


def test_the_race_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def lost(task: Any, problem: Any, device: Any, enter: Any, *rest: Any) -> Decision:
        ours, unquantised = enter().pair(None)
        torch.testing.assert_close(ours(), unquantised(), rtol=1e-2, atol=1e-2)
        asked.append(problem)
        return Decision.always(False, "9 µs, unquantised 5 µs")

    monkeypatch.setattr(quantized_linear, "decide", lost)
    layer, x = QuantizedLinear.from_sparse(sparse(), ROUNDINGS[0]), torch.randn(4, 96, dtype=torch.float16)
    with torch.no_grad():
        first = layer(x)
        plain = SparseLinear.on_pattern(layer.to_dense(), layer.pattern, layer.values)
        assert torch.equal(first, plain(x))
    assert layer.why(4) == "the unquantised values: 9 µs, unquantised 5 µs"
    assert {problem.value_type for problem in asked} == {ValueType.INT4}


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=str)
@pytest.mark.parametrize("ours_wins", [True, False])
def test_dense_codes_race(rounding: Quantization, ours_wins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    made: list[DenseCodes] = []

    def by_peer(weight: DenseCodes, tokens: int) -> Any:
        made.append(weight)
        kind, codes = weight.rounding.value_type, weight.codes
        numbers = codes.view(torch.float8_e4m3fn).float() if kind == "e4m3" else codes.float() + kind.smallest
        zero = 0 if weight.zero_points is None else weight.zero_points.float() + kind.smallest
        size = weight.rounding.group.size(codes.shape[1])
        scales, zero = (
            each.repeat_interleave(size, dim=1)[:, :96] if isinstance(each, torch.Tensor) else each
            for each in (weight.scales.float(), zero)
        )
        full = ((numbers - zero) * scales).to(weight.scales.dtype)
        return lambda x: weight.activation.of(nn.functional.linear(x, full, weight.bias))

    def decided(*args: Any) -> Decision:
        name = args[-1]
        if name:
            ours, dense = args[3]().pair(None)
            torch.testing.assert_close(dense(), ours(), rtol=2e-2, atol=2e-2)
        asked.append(name)
        return Decision.always(not name or ours_wins, "5 µs, 9 µs")

    monkeypatch.setattr(quantized_linear, "way_of", lambda *_: ("peer", by_peer))
    monkeypatch.setattr(quantized_linear, "decide", decided)
    layer, x = QuantizedLinear.from_sparse(sparse(), rounding), torch.randn(4, 96).half()
    with torch.no_grad():
        y = layer(x)
    torch.testing.assert_close(y, expected(layer, x), rtol=2e-2, atol=2e-2)
    assert set(asked) == {"", "dense codes by peer"} and len(made) == 1
    says = (
        "the codes: 5 µs, 9 µs; not the dense codes by peer: 5 µs, 9 µs"
        if ours_wins
        else "the dense codes by peer: 5 µs, 9 µs"
    )
    assert layer.why(4) == says


@pytest.mark.parametrize("result", [None, 0.0])
def test_peers_that_fail_or_differ_are_left_out(
    result: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_peer(weight: DenseCodes, tokens: int) -> Any:
        if result is None:
            raise AssertionError("no such kernel")
        return lambda x: x.new_full((len(x), len(weight.codes)), result)

    def decided(*args: Any) -> Decision:
        for run in args[3]().pair(None):
            run()
        return Decision.always(True, "")

    monkeypatch.setattr(quantized_linear, "way_of", lambda *_: ("peer", by_peer))
    monkeypatch.setattr(quantized_linear, "decide", decided)
    layer, x = QuantizedLinear.from_sparse(sparse(), ROUNDINGS[0]), torch.randn(4, 96).half()
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected(layer, x), rtol=2e-2, atol=2e-2)
    assert layer.why(4).startswith("the codes")


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=str)
def test_state_pickles_and_copies(rounding: Quantization) -> None:
    layer, x = QuantizedLinear.from_sparse(sparse(), rounding), torch.randn(3, 96, dtype=torch.float16)
    with torch.no_grad():
        y = layer(x)
        empty = QuantizedLinear(SparsePattern(np.eye(40, 96)), rounding)
        assert not empty(x).any()
        empty.load_state_dict(layer.state_dict())
        for other in (empty, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(other(x), y) and other.why(3)
        layer.scales.mul_(2)
        torch.testing.assert_close(layer(x), expected(layer, x), rtol=1e-2, atol=1e-2)
        assert not torch.equal(layer(x), y)
    of_other_codes = {"int4": "int8", "int8": "e4m3", "e4m3": "int8"}[rounding.value_type]
    unlike = Quantization(ValueType(of_other_codes), rounding.group) if rounding.symmetric else ROUNDINGS[0]
    other = QuantizedLinear(layer.pattern, unlike)
    with pytest.raises(RuntimeError, match="codes: expected the format"):
        other.load_state_dict(layer.state_dict())


def test_a_matrix_from_a_file_and_a_layer_for_one_number_of_tokens() -> None:
    of_sparse = QuantizedLinear.from_sparse(sparse(), ROUNDINGS[0])
    layer = QuantizedLinear.from_matrix(of_sparse.matrix(), of_sparse.bias)
    x = torch.randn(5, 96, dtype=torch.float16)
    with torch.no_grad():
        assert torch.equal(layer(x), of_sparse(x))
        assert torch.equal(layer.prepared(5)(x), layer(x))
    assert layer.prepared(5, value_type="int4", group=32).operator.problem.value_type is ValueType.INT4
    with pytest.raises(ConfigError, match="the layer has codes of int4"):
        layer.prepared(5, value_type="int8")
    with pytest.raises(OperandError, match="bias: expected 40 values"):
        QuantizedLinear.from_matrix(of_sparse.matrix(), torch.zeros(3))
    with pytest.raises(OperandError, match="float16 or bfloat16"):
        layer.float().matrix()
    with torch.no_grad():
        torch.testing.assert_close(layer(x.float()), of_sparse(x).float(), rtol=1e-2, atol=1e-2)
    assert "codes are multiplied in 16 bits" in layer.why(5)


def test_inputs_have_gradients() -> None:
    layer = QuantizedLinear.from_sparse(sparse(torch.float32), ROUNDINGS[0])
    x = torch.randn(2, 96, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.to_dense().weight.sum(0).expand(2, -1))
    assert not any(p.requires_grad for p in layer.parameters())


def test_a_trace_has_the_unquantised_values() -> None:
    layer, x = QuantizedLinear.from_sparse(sparse(), ROUNDINGS[0]), torch.randn(2, 96, dtype=torch.float16)
    program = torch.export.export(layer, (x,), strict=False).module()
    with torch.no_grad():
        torch.testing.assert_close(program(x), layer(x), rtol=1e-2, atol=1e-2)
        assert torch.equal(layer(x), layer(x))


def compiled(layer: nn.Module) -> tuple[Any, list[list[str]]]:
    """The layer by a compiler that makes no code, and the operators of each graph that this has seen."""
    seen: list[list[str]] = []

    def compiler(module: Any, _: Any) -> Any:
        seen.append([str(node.target) for node in module.graph.nodes if node.op == "call_function"])
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    return torch.compile(layer, backend=aot_autograd(fw_compiler=compiler)), seen


@pytest.mark.parametrize("rounding", ROUNDINGS[2:], ids=str)
def test_compiled_models_multiply_by_codes(rounding: Quantization) -> None:
    layer = QuantizedLinear.from_sparse(sparse(), rounding)
    call, seen = compiled(layer)
    for shape in ((3, 96), (2, 3, 96), (70, 96)):
        x = torch.randn(shape).half()
        with torch.no_grad():
            assert torch.equal(call(x), layer(x))
    assert {tuple(graph) for graph in seen} == {("sparsegen.layer_product.default",)}
    assert layer.why(6).startswith("the codes") and "70 tokens are more than 64" in layer.why(70)
    layer.scales.mul_(2)  # scales are data
    with torch.no_grad():
        torch.testing.assert_close(call(x), expected(layer, x), rtol=2e-2, atol=2e-2)


def test_compiled_copies_are_layers_of_their_own() -> None:
    layer, x = QuantizedLinear.from_sparse(sparse(), ROUNDINGS[0]), torch.randn(3, 96).half()
    other, read = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
    assert len({layer.handle, other.handle, read.handle}) == 3
    other.scales.mul_(2)
    del layer
    with torch.no_grad():
        for one in (other, read):
            torch.testing.assert_close(compiled(one)[0](x), expected(one, x), rtol=2e-2, atol=2e-2)


def test_compiled_layers_give_gradients_by_their_values() -> None:
    layer, x = QuantizedLinear.from_sparse(sparse(), ROUNDINGS[0]), torch.randn(3, 96).half()
    call, seen = compiled(layer)
    call(x.requires_grad_()).sum().backward()
    assert x.grad is not None and not any("sparsegen.layer_product.default" in graph for graph in seen)


@pytest.mark.parametrize("rounded", [False, True])
def test_compiled_models_have_prepared_layers_as_one_operator(rounded: bool) -> None:
    layer: SparseLinear = sparse(activation="relu")
    prepared = (QuantizedLinear.from_sparse(layer, ROUNDINGS[0]) if rounded else layer).prepared(6)
    call, seen = compiled(prepared)
    for shape in ((6, 96), (2, 3, 96)):
        x = torch.randn(shape).half()
        assert torch.equal(call(x), prepared(x)) and not call(x.requires_grad_()).requires_grad
    assert {tuple(graph) for graph in seen} == {("sparsegen.layer_product.default",)}
    with pytest.raises(OperandError, match="expected 6 tokens"):
        call(torch.randn(5, 96).half())
