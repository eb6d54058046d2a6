"""Layers that read one tensor, as one launch: the same results, and each layer alone wherever that cannot be."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from cuda_graphs import captured  # noqa: E402
from torch import nn  # noqa: E402

from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import SparseLinear  # noqa: E402
from sparsegen.integrations.torch.calls.activations import Activation  # noqa: E402
from sparsegen.integrations.torch.pattern import shared_input  # noqa: E402
from sparsegen.integrations.torch.pattern.shared_input import SharedInput, SharedPart  # noqa: E402

SIZES = (16, 24, 8)


class Attention(nn.Module):
    """Three layers on one tensor; the second has no bias."""

    def __init__(self) -> None:
        super().__init__()
        for name, size, has_bias in zip("qkv", SIZES, (True, False, True), strict=True):
            dense = nn.Linear(32, size, bias=has_bias)
            setattr(self, name, SparseLinear.from_dense(dense, sparsity=0.75, run_dense="never"))

    def forward(self, x: Any) -> Any:
        return self.q(x), self.k(x), self.v(x)

    @property
    def layers(self) -> list[SparseLinear]:
        return [self.q, self.k, self.v]

    def share(self) -> SharedInput:
        together = SharedInput(self.layers)
        for number, layer in enumerate(self.layers):
            layer.shares(SharedPart(together, number))
        return together


@pytest.fixture
def model() -> Attention:
    torch.manual_seed(0)
    model = Attention()
    model.share()
    return model


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The rows of each product that shared inputs make."""
    seen: list[int] = []
    real = shared_input.linear_at_once

    def linear_at_once(x: Any, values: Any, bias: Any, pattern: Any, *rest: Any, **given: Any) -> Any:
        seen.append(pattern.shape[0])
        return real(x, values, bias, pattern, *rest, **given)

    monkeypatch.setattr(shared_input, "linear_at_once", linear_at_once)
    yield seen


def expected(model: Attention, x: Any) -> list[Any]:
    return [layer.activation.of(layer.to_dense()(x)) for layer in model.layers]


def check(found: Any, wanted: Any) -> None:
    for ours, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("activation", Activation)
def test_one_launch_gives_what_the_layers_give(
    place: str, model: Attention, launches: list[int], activation: Activation
) -> None:
    for layer in model.layers:
        layer.activation = activation
    x = torch.randn(2, 3, 32)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            q, k, v = model(x)
            check((q, k, v), expected(model, x))
            assert q._base is v._base and k.shape == (2, 3, 24), "views of one result"
    assert launches == [sum(SIZES)] * 2


def test_new_values_and_patterns_are_followed(model: Attention, launches: list[int]) -> None:
    model.requires_grad_(False)
    x = torch.randn(5, 32)
    with torch.no_grad():
        check(model(x), expected(model, x))
        model.k.values.mul_(2)
        model.q.bias.add_(1)
        check(model(x), expected(model, x))
        torch.manual_seed(7)
        model.load_state_dict(Attention().state_dict())
        check(model(x), expected(model, x))
        model.double()
        check(model(x.double()), expected(model, x.double()))
    assert len(launches) == 4


def test_gradients_are_each_layers_own(model: Attention, launches: list[int]) -> None:
    x = torch.randn(5, 32)
    sum(y.square().sum() for y in model(x)).backward()
    assert not launches
    for layer in model.layers:
        dense = layer.to_dense()
        dense(x).square().sum().backward()
        rows, columns, _ = layer.pattern.places(x.device)
        torch.testing.assert_close(layer.values.grad, dense.weight.grad[rows, columns], rtol=1e-3, atol=1e-3)


def test_another_order_tensor_or_state_is_computed_alone(model: Attention, launches: list[int]) -> None:
    model.requires_grad_(False)
    x, other = torch.randn(5, 32), torch.randn(5, 32)
    q, k, v = model.layers
    with torch.no_grad():
        check([k(x), q(x), v(x), k(x)], [layer.to_dense()(x) for layer in (k, q, v, k)])
        check([q(x), k(other), v(x)], [q.to_dense()(x), k.to_dense()(other), v.to_dense()(x)])
        first = q(x)
        x.add_(1)
        check([k(x)], [k.to_dense()(x)])
        assert not torch.equal(first, q(x))
        q(x)
        k.values.mul_(3)
        check([k(x)], [k.to_dense()(x)])
        q(x)
    y = k(x.clone().requires_grad_())
    assert y.requires_grad
    assert set(launches) == {sum(SIZES)}


def test_autocast_is_that_of_the_calls(place: str, model: Attention) -> None:
    x = torch.randn(4, 32)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(x)
    assert {y.dtype for y in found} == {torch.bfloat16}
    for ours, right in zip(found, expected(model, x), strict=True):
        torch.testing.assert_close(ours.float(), right, rtol=5e-2, atol=5e-2)


def test_copies_pickles_and_state_dicts(model: Attention, launches: list[int]) -> None:
    assert set(model.state_dict()) == set(Attention().state_dict())
    x = torch.randn(5, 32)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            other.q.values.mul_(2)
            check(other(x), expected(other, x))
            check(model(x), expected(model, x))
        assert other.q.one_launch_with == tuple(other.layers)
    assert len(launches) == 4


def test_what_stands_in_the_place_of_values_is_multiplied_by_its_layer(
    model: Attention, launches: list[int]
) -> None:
    model.requires_grad_(False)
    values, x = model.k._parameters.pop("values"), torch.randn(5, 32)
    with torch.no_grad():
        for factor in (2, 3):
            model.k.values = factor * values
            check(model(x), expected(model, x))
    assert not launches


def test_new_values_lie_where_the_old_ones_did(model: Attention) -> None:
    """A captured graph reads there, and a compiled model's first call makes no tensor in the memory of its graph."""
    model.requires_grad_(False)
    together, x = model.q.part.shared, torch.randn(5, 32)
    with torch.no_grad():
        model(x)
        _, values, bias = together._stacked
        model.k.values.mul_(2)
        check(model(x), expected(model, x))
        assert together._stacked[1] is values and together._stacked[2] is bias
        model.k.values.requires_grad_(True)
        model.k.values.data.mul_(2)
        check(model(x), expected(model, x))
        assert together._stacked[1] is values, "of values that train nothing is kept"


def test_only_layers_that_fit_share() -> None:
    make = SparseLinear.from_dense
    one, wider = make(nn.Linear(8, 8), sparsity=0.5), make(nn.Linear(16, 8), sparsity=0.5)
    active = make(nn.Linear(8, 8), sparsity=0.5)
    active.activation = Activation.RELU
    for layers in ((one,), (one, wider), (one, active)):
        with pytest.raises(OperandError, match="two or more"):
            SharedInput(layers)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_captured_graph_has_one_launch_for_all(dtype: Any, model: Attention, launches: list[int]) -> None:
    model.to("cuda", dtype).requires_grad_(False)
    x = torch.randn(8, 32, device="cuda", dtype=dtype)
    with torch.no_grad():
        graph, found = captured(lambda: model(x))
        x.mul_(2)
        graph.replay()
        for ours, right in zip(found, expected(model, x), strict=True):
            torch.testing.assert_close(ours, right, rtol=5e-2, atol=5e-2)
    assert launches == [sum(SIZES)] * 4
