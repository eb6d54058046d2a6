"""Training steps like those before: the same gradients by few functions, and the long way for all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from launched_on_cpu import Launches, launched_on_cpu  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from sparsegen.integrations.torch import SparseLinear  # noqa: E402
from sparsegen.integrations.torch.pattern import pattern  # noqa: E402
from sparsegen.integrations.torch.pattern.linear_steps import LinearStep  # noqa: E402

IN, OUT, TOKENS = 16, 24, 6


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return launched_on_cpu(monkeypatch)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Passes that steps computed."""
    found: list[str] = []
    for name in ("forward", "backward"):
        own = getattr(LinearStep, name)

        def seen(self: Any, *given: Any, own: Any = own, name: str = name) -> Any:
            result = own(self, *given)
            if result is not None:
                found.append(name)
            return result

        monkeypatch.setattr(LinearStep, name, seen)
    return found


def layer(*, bias: bool = True) -> SparseLinear:
    torch.manual_seed(0)
    return SparseLinear.from_dense(nn.Linear(IN, OUT, bias=bias), sparsity=0.5, run_dense="never")


def step(sparse: SparseLinear, x: Any, run: Callable[[Any], Any], dy: Any) -> None:
    """A step of the layer and of its dense one, which must agree."""
    dense, given = sparse.to_dense(), [x.detach().clone().requires_grad_(x.requires_grad) for _ in range(2)]
    sparse.zero_grad()
    y, exact = run(sparse)(given[0]), dense(given[1])
    torch.testing.assert_close(y, exact, rtol=1e-4, atol=1e-5)
    y.backward(dy)
    exact.backward(dy)
    rows, columns, _ = sparse.pattern.places(x.device)
    found = [given[0].grad, sparse.values.grad, None if sparse.bias is None else sparse.bias.grad]
    wanted = [
        given[1].grad,
        dense.weight.grad[rows, columns],
        None if dense.bias is None else dense.bias.grad,
    ]
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def as_it_is(sparse: Any) -> Any:
    return sparse


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("needs_x", [True, False])
@pytest.mark.parametrize("shape", [(TOKENS, IN), (2, 3, IN)], ids=str)
def test_steps_like_the_first_go_by_their_launches(
    launches: Launches, taken: list[str], bias: bool, needs_x: bool, shape: tuple[int, ...]
) -> None:
    sparse = layer(bias=bias)
    for number in range(4):
        dy = torch.randn(*shape[:-1], OUT)
        step(sparse, torch.randn(shape, requires_grad=needs_x), as_it_is, dy)
        with torch.no_grad():
            sparse.values.mul_(1 + number)
            sparse.values.data.add_(1)  # which PyTorch does not count
    assert taken == ["forward", "forward", "backward", "forward", "backward"]


def test_kinds_that_take_turns_each_have_their_step(launches: Launches, taken: list[str]) -> None:
    sparse = layer()
    for _ in range(4):
        for tokens, needs_x in ((TOKENS, True), (TOKENS, False), (2, True)):
            x = torch.randn(tokens, IN, requires_grad=needs_x)
            step(sparse, x, as_it_is, torch.randn(tokens, OUT))
    assert taken.count("forward") == 9 and taken.count("backward") == 6


class Quiet(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@contextmanager
def profiled() -> Iterator[None]:
    with torch.autograd.profiler.profile():
        yield


@contextmanager
def changed_when_saved() -> Iterator[None]:
    """Hooks that give other tensors than were saved: transposed in memory."""
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.t().contiguous().t()):
        yield


@pytest.mark.parametrize("context", [Quiet, profiled, changed_when_saved])
def test_who_looks_sees_the_operators(launches: Launches, taken: list[str], context: Any) -> None:
    sparse, x, dy = layer(), torch.randn(TOKENS, IN, requires_grad=True), torch.randn(TOKENS, OUT)
    for _ in range(3):
        step(sparse, x, as_it_is, dy)
    known = len(taken)
    with context():
        step(sparse, x, as_it_is, dy)
    assert "backward" not in taken[known:]


def test_gradients_that_lie_otherwise_go_the_long_way(launches: Launches, taken: list[str]) -> None:
    sparse, x = layer(), torch.randn(TOKENS, IN, requires_grad=True)
    for _ in range(3):
        step(sparse, x, as_it_is, torch.randn(TOKENS, OUT))
    known = taken.count("backward")
    for dy in (
        torch.randn(1, 1).expand(TOKENS, OUT),
        torch.randn(OUT, TOKENS).t(),
        torch.randn(TOKENS * OUT + 1)[1:].view(TOKENS, OUT),
    ):
        step(sparse, x, as_it_is, dy)
    assert taken.count("backward") == known
    slice_ = torch.randn(TOKENS * IN + 1)[1:].view(TOKENS, IN)
    y = sparse(slice_)
    torch.testing.assert_close(y, sparse.to_dense()(slice_), rtol=1e-4, atol=1e-5)


def test_derivatives_of_gradients(launches: Launches) -> None:
    sparse, x = layer(), torch.randn(TOKENS, IN, requires_grad=True)
    for _ in range(3):
        step(sparse, x, as_it_is, torch.randn(TOKENS, OUT))
    dense = sparse.to_dense()
    found, exact = (
        torch.autograd.grad(
            torch.autograd.grad(made(x).square().sum(), x, create_graph=True)[0].square().sum(), x
        )[0]
        for made in (sparse, dense)
    )
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-3)


def test_a_checkpoint_computes_a_step_again(launches: Launches, taken: list[str]) -> None:
    sparse, x = layer(), torch.randn(TOKENS, IN, requires_grad=True)
    for _ in range(4):
        step(
            sparse,
            x,
            lambda made: lambda x: checkpoint(made, x, use_reentrant=False),
            torch.randn(TOKENS, OUT),
        )
    assert "backward" in taken


def test_frozen_values_after_steps_are_not_those_of_a_step(launches: Launches, taken: list[str]) -> None:
    sparse, x = layer(), torch.randn(TOKENS, IN)
    for _ in range(3):
        step(sparse, x, as_it_is, torch.randn(TOKENS, OUT))
    other = layer()
    other.pattern = sparse.pattern
    with torch.no_grad():
        other.values.mul_(3)
        for one in (sparse, other.requires_grad_(False), sparse):
            torch.testing.assert_close(one(x), one.to_dense()(x), rtol=1e-4, atol=1e-5)
    step(sparse, x, as_it_is, torch.randn(TOKENS, OUT))
    with torch.no_grad():
        torch.testing.assert_close(other(x), other.to_dense()(x), rtol=1e-4, atol=1e-5)


def test_what_goes_takes_steps_along(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern, "MOST_PREPARED", 3)
    sparse = layer()
    for tokens in (TOKENS, TOKENS, 2):
        step(sparse, torch.randn(tokens, IN), as_it_is, torch.randn(tokens, OUT))
    assert not any(isinstance(kind, tuple) and kind[0] == (TOKENS, IN) for kind in sparse.pattern.steps)
    sparse.pattern.forget()
    assert not sparse.pattern.steps
    step(sparse, torch.randn(TOKENS, IN), as_it_is, torch.randn(TOKENS, OUT))
