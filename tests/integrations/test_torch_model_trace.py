"""Trace of one call of a model: shared inputs and activations, and all that must not be taken for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from sparsegen.integrations.torch.calls.activations import Activation, recognized  # noqa: E402
from sparsegen.integrations.torch.models.model_trace import Trace, trace  # noqa: E402


class Model(nn.Module):
    """Layers of 8 features, and a forward pass that a test gives."""

    def __init__(self, forward: Callable[[Any, Any], Any], **modules: nn.Module) -> None:
        super().__init__()
        for name in "abc":
            setattr(self, name, nn.Linear(8, 8))
        self.gelu, self.relu = nn.GELU(), nn.ReLU()
        for name, module in modules.items():
            setattr(self, name, module)
        self._forward = forward

    def forward(self, x: Any) -> Any:
        return self._forward(self, x)


class Wrapped(nn.Module):
    """A module that calls a function, as Hugging Face's GELUActivation does."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def seen(forward: Callable[[Any, Any], Any], **modules: nn.Module) -> Trace:
    model = Model(forward, **modules).eval()
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    with torch.no_grad():
        found = trace(model, layers, lambda: model(torch.randn(3, 8)))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()), "hooks are taken away"
    return found


def sites(forward: Callable[[Any, Any], Any], **modules: nn.Module) -> dict[str, tuple[Any, tuple[str, ...]]]:
    return {s.names[0]: (s.activation, s.layers) for s in seen(forward, **modules).sites}


def test_layers_that_read_one_tensor() -> None:
    assert seen(lambda m, x: m.a(x) + m.b(x) + m.c(x)).shared == (("a", "b", "c"),)
    assert seen(lambda m, x: m.c(m.a(x) + m.b(x))).shared == (("a", "b"),)
    twice = seen(lambda m, x: (y := m.b(x) + m.a(x), m.b(y) + m.a(y))[1])
    assert twice.shared == (("b", "a"),) and twice.tokens == {"a": (3, 3), "b": (3, 3)}
    assert seen(lambda m, x: m.a(x) + m.b(input=x)).shared == (("a", "b"),)


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.a(x) + m.b(x.clone()),
        lambda m, x: m.a(x) + m.b(x.add_(1)),
        lambda m, x: m.a(x) + m.b(x) + m.a(x),
        lambda m, x: (y := x + 1, m.a(x) + m.a(y) + m.b(x) + m.b(y))[1],
        lambda m, x: m.b(m.a(x)),
    ],
    ids=["a copy", "changed between", "more often", "not in turn", "one after the other"],
)
def test_layers_that_do_not(forward: Callable[[Any, Any], Any]) -> None:
    assert seen(forward).shared == ()


def test_activations_behind_layers() -> None:
    found = sites(lambda m, x: m.relu(m.b(m.gelu(m.a(x)))))
    assert found == {"gelu": (Activation.GELU, ("a",)), "relu": (Activation.RELU, ("b",))}
    assert sites(lambda m, x: m.gelu(m.a(x)) + m.gelu(m.b(x))) == {"gelu": (Activation.GELU, ("a", "b"))}
    assert sites(lambda m, x: m.relu(m.a(x)) + 1, relu=nn.ReLU(inplace=True)) == {
        "relu": (Activation.RELU, ("a",))
    }
    assert sites(lambda m, x: m.act(m.a(x)), act=Wrapped(functional.gelu)) == {
        "act": (Activation.GELU, ("a",))
    }

    def looks(model: Any, x: Any) -> Any:
        y = model.a(x)
        assert y.shape[-1] == 8 and y.size(0) == 3 and y.dtype is torch.float32
        return model.gelu(y)

    assert sites(looks) == {"gelu": (Activation.GELU, ("a",))}, "a shape is no use of a tensor"
    sequence = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    assert sites(lambda m, x: m.more(x), more=sequence) == {"more.1": (Activation.RELU, ("more.0",))}


class Keeps(nn.Module):
    def forward(self, x: Any) -> Any:
        self.kept = x
        return torch.relu(x)


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: (y := m.a(x), m.gelu(y) + y)[1],
        lambda m, x: (y := m.a(x), (m.gelu(y), y))[1],
        lambda m, x: m.gelu(m.a(x)) + m.gelu(x),
        lambda m, x: m.gelu(m.a(x)) + m.a(x + 1),
        lambda m, x: m.gelu(m.a(x) * 2),
        lambda m, x: functional.gelu(m.a(x)),
        lambda m, x: m.tanh(m.a(x)),
        lambda m, x: m.more(m.a(x)),
        lambda m, x: m.keeps(m.a(x)),
        lambda m, x: (y := m.a(x), y.sum(), m.inplace(y))[2],
        lambda m, x: m.weighted(m.a(x)),
    ],
    ids=[
        "read again",
        "returned too",
        "of another tensor too",
        "only now and then",
        "something between",
        "no module",
        "another gelu",
        "more than that",
        "kept by the module",
        "read before it changes",
        "a module with weights",
    ],
)
def test_no_activation_that_could_go(forward: Callable[[Any, Any], Any]) -> None:
    weighted = Wrapped(functional.gelu)
    weighted.weight = nn.Parameter(torch.zeros(1))
    modules = {
        "tanh": nn.GELU(approximate="tanh"),
        "more": Wrapped(lambda x: torch.relu(x) + 1),
        "keeps": Keeps(),
        "inplace": nn.ReLU(inplace=True),
        "weighted": weighted,
    }
    assert sites(forward, **modules) == {}


def test_what_a_model_raises_is_passed_on() -> None:
    def fails(model: Any, x: Any) -> Any:
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        seen(fails)


def test_functions_that_kernels_compute() -> None:
    x = torch.randn(2)
    assert recognized(torch.relu, (x,), {}) == (Activation.RELU, False)
    assert recognized(functional.relu, (x, True), {}) == (Activation.RELU, True)
    assert recognized(functional.gelu, (x,), {"approximate": "tanh"}) == (Activation.NONE, False)
    assert recognized(torch.sigmoid, (x,), {}) == (Activation.NONE, False)
