"""Training steps of dropout and a linear layer like those before: as the first one, by few functions."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from sparsegen.integrations.torch import DropoutLinear  # noqa: E402
from sparsegen.integrations.torch.blocks import dropout  # noqa: E402
from sparsegen.integrations.torch.blocks.dropout_steps import DenseStep, MaskedStep  # noqa: E402


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Steps that calls went by."""
    found: list[str] = []
    for kind in (DenseStep, MaskedStep):
        own = kind.__call__

        def seen(self: Any, *given: Any, own: Any = own) -> Any:
            found.append(type(self).__name__)
            return own(self, *given)

        monkeypatch.setattr(kind, "__call__", seen)
    return found


def layer(dense: str, **options: Any) -> DropoutLinear:
    torch.manual_seed(0)
    return DropoutLinear(48, 40, 0.5, "32x16", dense=dense, **options)


def step(found: DropoutLinear, x: Any, dy: Any) -> tuple[Any, ...]:
    """Result and gradients, by the mask of one seed."""
    torch.manual_seed(3)
    y = found(x)
    leaves = [leaf for leaf in (x, *found.parameters()) if leaf.requires_grad]
    return y, *torch.autograd.grad(y, leaves, dy)


@pytest.mark.parametrize("dense", ["never", "always"])
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"activation": "relu"}, {"activation": "gelu"}], ids=str
)
@pytest.mark.parametrize("shape", [(96, 48), (2, 48, 48)], ids=str)
@pytest.mark.parametrize("needs_x", [True, False])
def test_they_are_as_the_first(
    place: str, taken: list[str], dense: str, options: Any, shape: tuple[int, ...], needs_x: bool
) -> None:
    found = layer(dense, **options)
    x, dy = torch.randn(shape, requires_grad=needs_x), torch.randn(*shape[:-1], 40)
    first = step(found, x, dy)
    for _ in range(3):
        for one, other in zip(step(found, x, dy), first, strict=True):
            assert torch.equal(one, other) and one.stride() == other.stride()
    of_plain_products = place != "emulator" and dense == "never" and len(shape) == 3
    assert len(taken) == (0 if of_plain_products else 3)
    if options.get("activation") == "relu":
        return  # the gradient needs the result
    y = found(x).mul_(2).relu_()  # a result is no view
    y.sum().backward()


@pytest.mark.parametrize("dense", ["never", "always"])
def test_a_seed_of_the_layer_s_own_goes_on(place: str, taken: list[str], dense: str) -> None:
    runs = []
    for forgets in (False, True):
        found, x = layer(dense, own_seed=True), torch.ones(96, 48, requires_grad=True)
        torch.manual_seed(3)
        masks = []
        for _ in range(4):
            masks.append(torch.autograd.grad(found(x).sum(), x)[0] != 0)
            if forgets:
                found._steps.clear()
        runs.append(masks)
    assert len(taken) == 3
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)


def test_a_change_of_the_layer_is_seen(place: str, taken: list[str]) -> None:
    found, x, dy = layer("always"), torch.randn(96, 48, requires_grad=True), torch.randn(96, 40)
    for _ in range(2):
        step(found, x, dy)
    known = len(taken)
    for name, value in (("p", 0.25), ("block", (16, 16)), ("dense", dropout.Dense.NEVER)):
        setattr(found, name, value)
        y, *_ = step(found, x, dy)
        fresh = copy.deepcopy(found)
        assert not fresh._steps and torch.equal(step(fresh, x, dy)[0], y)
    assert len(taken) == known
    found.eval()
    assert torch.equal(found(x), nn.functional.linear(x, found.weight, found.bias))
    with torch.no_grad():
        found.train()(x)
    assert len(taken) == known


def test_copies_and_pickles_have_no_steps(place: str) -> None:
    found, x, dy = layer("always"), torch.randn(96, 48, requires_grad=True), torch.randn(96, 40)
    y = step(found, x, dy)[0]
    assert found._steps
    for made in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert not made._steps and torch.equal(step(made, x, dy)[0], y)


def test_gradients_of_other_kinds(place: str, taken: list[str]) -> None:
    """Gradients of a part of the leaves, by those in another order of memory, and of gradients."""
    found, x = layer("never"), torch.randn(96, 48, requires_grad=True)
    for dy in (
        torch.randn(96, 40),
        torch.randn(96, 40),
        torch.randn(40, 96).t(),
        torch.ones(1).expand(96, 40),
    ):
        fresh = copy.deepcopy(found)
        for one, other in zip(step(found, x, dy), step(fresh, x, dy), strict=True):
            torch.testing.assert_close(one, other)
        torch.manual_seed(3)
        (alone,) = torch.autograd.grad(found(x), found.weight, dy)
        torch.testing.assert_close(alone, step(fresh, x, dy)[2])
    results = []
    for made in (found, copy.deepcopy(found)):
        torch.manual_seed(3)
        (dx,) = torch.autograd.grad(made(x).square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(dx.square().sum(), made.weight)[0])
    torch.testing.assert_close(*results)
    assert "MaskedStep" in taken
