"""Calls beside PyTorch's dispatcher: only if nothing observes them, and with the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import (  # noqa: E402
    SparseLinear,
    SparsePattern,
    linear,
)
from sparsegen.integrations.torch.calls.direct import Asked, asked, may_run_at_once  # noqa: E402

WEIGHT = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, -1.0]])
X = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.0, -1.0]])


class Listening(TorchDispatchMode):
    """Names every operator that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class Tagged(torch.Tensor):
    """A subclass, which may change what is done with it."""


def answers(*tensors: Any) -> list[bool]:
    """Returns the answers inside a function that a transform calls."""
    found: list[bool] = []

    def ask(x: Any) -> Any:
        found.append(may_run_at_once(x, *tensors))
        return x * 1

    torch.vmap(ask)(X)
    torch.func.grad(lambda x: ask(x).sum())(X)
    torch.func.jvp(ask, (X,), (X,))
    return found


def test_plain_tensors_without_gradients_may() -> None:
    weight = torch.nn.Parameter(WEIGHT)
    assert may_run_at_once(X, None)
    assert not may_run_at_once(X, weight)
    with torch.no_grad():
        assert may_run_at_once(X, weight)
    with torch.inference_mode():
        assert may_run_at_once(X, weight)
    assert may_run_at_once(X, torch.nn.Parameter(WEIGHT, requires_grad=False))


def test_whoever_looks_is_not_passed_by() -> None:
    assert answers() == [False, False, False]
    with torch.no_grad():
        assert not may_run_at_once(X.as_subclass(Tagged)) and not may_run_at_once(X.to("meta"))
        with Listening():
            assert not may_run_at_once(X)
        with torch.device("cpu"):
            assert not may_run_at_once(X)
        with forward_ad.dual_level():
            assert not may_run_at_once(X)
        with torch.autograd.profiler.profile():
            assert not may_run_at_once(X)
        assert may_run_at_once(X)


def test_a_mode_sees_the_operator() -> None:
    layer = SparseLinear.from_dense(dense()).requires_grad_(False)
    with Listening() as mode:
        layer(X)
    assert any("sparsegen.linear" in name for name in mode.seen)


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_results_are_the_same(context: Callable[[], Any]) -> None:
    layer = SparseLinear.from_dense(dense())
    expected = dense()(X).detach()
    with context():
        for x in (X, X[None], X[0], X[:0]):
            found = layer(x).detach()
            assert found.shape == (*x.shape[:-1], 2)
        torch.testing.assert_close(layer(X).detach(), expected)
        with Listening():
            torch.testing.assert_close(layer(X).detach(), expected)


def test_what_does_not_fit_is_refused_in_words() -> None:
    pattern = SparsePattern(WEIGHT)
    values = torch.ones(pattern.nnz)
    for x, given, words in (
        (torch.ones(2, 4), values, "x: expected shape tokens × 3"),
        (torch.ones(3), values, "x: expected shape tokens × 3"),
        (X, torch.ones(2), "values: expected shape 3"),
        (X, values.double(), "values: expected torch.float32"),
        (X.half(), values, "x: expected torch.float32, the dtype of the values, got torch.float16"),
    ):
        with pytest.raises(OperandError, match=words):
            linear(x, given, pattern)
    with pytest.raises(OperandError, match="bias: expected shape 2"):
        linear(X, values, pattern, torch.ones(3))


def dense() -> Any:
    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(WEIGHT)
        layer.bias.copy_(torch.tensor([0.25, -0.5]))
    return layer


def test_a_gradient_alone_is_a_function_of_autograds() -> None:
    pattern, weight = SparsePattern(WEIGHT), torch.nn.Parameter(torch.tensor([2.0, 1.0, -1.0]))
    assert asked(X, weight) is Asked.GRADIENT and asked(X) is Asked.NOTHING
    assert asked(X.as_subclass(Tagged), weight) is Asked.MORE
    x = X.clone().requires_grad_()
    y = linear(x, weight, pattern)
    by_operator = torch.ops.sparsegen.linear(x, weight, None, pattern.handle)
    assert y.grad_fn.name() == "linearBackward" != by_operator.grad_fn.name()
    assert torch.equal(y, by_operator)
    seed = torch.randn_like(y)
    for ours, right in zip(
        torch.autograd.grad(y, (x, weight), seed),
        torch.autograd.grad(by_operator, (x, weight), seed),
        strict=True,
    ):
        assert torch.equal(ours, right)
    wide = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    values = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, v: linear(x, v, pattern), (wide, values))
