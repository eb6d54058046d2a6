"""Calls like those before: the same results by fewer steps, and the long way for all others."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from call_costs import steps_of  # noqa: E402
from launched_on_cpu import Launches, launched_on_cpu  # noqa: E402
from torch import nn  # noqa: E402

from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import SparseLinear, linear  # noqa: E402
from sparsegen.integrations.torch.calls import call_plans  # noqa: E402
from sparsegen.integrations.torch.calls.activations import Activation  # noqa: E402
from sparsegen.integrations.torch.pattern import pattern  # noqa: E402
from sparsegen.integrations.torch.pattern.pattern import Product  # noqa: E402
from sparsegen.integrations.torch.pattern.shared_input import SharedInput, SharedPart  # noqa: E402

IN, OUT, TOKENS = 16, 24, 6
# Steps of one call over those of `torch.nn.Linear`: functions of Python that are entered, and of C that are called.
MOST_INFERENCE, MOST_TRAINING, MOST_BACKWARD = (5, 22), (11, 16), (21, 22)
MOST_SHARED = (40, 66)  # three layers, in all


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return launched_on_cpu(monkeypatch)


def layer(*, trains: bool = False, bias: bool = True, rows: int = OUT) -> SparseLinear:
    torch.manual_seed(rows)
    made = SparseLinear.from_dense(nn.Linear(IN, rows, bias=bias), sparsity=0.5, run_dense="never")
    return made.requires_grad_(trains)


def check(sparse: SparseLinear, x: Any, found: Any) -> None:
    expected = sparse.activation.of(sparse.to_dense()(x))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [Activation.NONE, Activation.RELU])
@pytest.mark.parametrize("shape", [(TOKENS, IN), (2, 3, IN), (0, IN), (IN,)], ids=str)
def test_calls_like_those_before(
    launches: Launches, bias: bool, activation: Activation, shape: tuple[int, ...]
) -> None:
    sparse = layer(bias=bias)
    sparse.activation = activation
    with torch.inference_mode():
        for _ in range(3):
            x = torch.randn(shape)
            check(sparse, x, sparse(x))
        other = torch.randn(2, *shape)
        check(sparse, other, sparse(other))
    assert launches.sent <= 2, "once for each number of tokens"


def test_new_values_and_biases_are_followed(launches: Launches) -> None:
    sparse, x = layer(), torch.randn(TOKENS, IN)
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: sparse.values.mul_(2),
            lambda: sparse.bias.add_(1),
            lambda: setattr(sparse, "values", nn.Parameter(sparse.values.detach().clone() * 3, False)),
            lambda: setattr(sparse.values, "data", sparse.values.detach().clone() * 5),
            lambda: setattr(sparse, "bias", None),
            lambda: sparse.double(),
            lambda: sparse.load_state_dict(layer(rows=OUT, bias=False).double().state_dict()),
            lambda: sparse.float(),
        ):
            change()
            given = x.to(sparse.values.dtype)
            check(sparse, given, sparse(given))
            check(sparse, given, sparse(given))


def test_values_that_train_are_gathered_at_every_call(launches: Launches) -> None:
    sparse, x = layer(trains=True), torch.randn(TOKENS, IN)
    for _ in range(3):
        check(sparse, x, sparse(x))
        sparse.values.data.mul_(2)  # which PyTorch does not count
    assert launches.gathered == 2 and launches.sent == 1
    with torch.no_grad():
        check(sparse, x, sparse(x))


@pytest.mark.parametrize("shape", [(TOKENS, IN), (2, 3, IN)], ids=str)
def test_gradients(launches: Launches, shape: tuple[int, ...]) -> None:
    sparse = layer(trains=True)
    for _ in range(3):
        x = torch.randn(shape, requires_grad=True)
        dense, wide = sparse.to_dense(), x.detach().clone().requires_grad_()
        seed = torch.randn(*shape[:-1], OUT)
        sparse(x).backward(seed)
        dense(wide).backward(seed)
        rows, columns, _ = sparse.pattern.places(x.device)
        for ours, right in (
            (x.grad, wide.grad),
            (sparse.values.grad, dense.weight.grad[rows, columns]),
            (sparse.bias.grad, dense.bias.grad),
        ):
            torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5)
        sparse.zero_grad()
    assert set(launches.seen) == {Product.FORWARD, Product.TRANSPOSED, Product.SAMPLED}


def test_tensors_that_lie_otherwise_go_the_long_way(launches: Launches) -> None:
    sparse = layer()
    with torch.no_grad():
        sparse(torch.randn(TOKENS, IN))
        for x in (
            torch.randn(IN, TOKENS).t(),
            torch.randn(TOKENS * IN + 1)[1:].view(TOKENS, IN),
            torch.randn(2 * TOKENS, IN)[::2],
        ):
            check(sparse, x, sparse(x))
        with pytest.raises(
            OperandError, match=r"x: expected torch\.float32, the dtype of the values, got torch\.float16"
        ):
            sparse(torch.randn(TOKENS, IN).half())
        with pytest.raises(OperandError, match=f"x: expected shape tokens × {IN}"):
            sparse(torch.randn(TOKENS, IN + 1))
        sparse.bias.data = torch.zeros(OUT + 1)
        with pytest.raises(OperandError, match=f"bias: expected shape {OUT}"):
            sparse(torch.randn(TOKENS, IN))


def test_frozen_weights_are_cast_once_under_autocast(launches: Launches) -> None:
    sparse, x = layer(), torch.randn(TOKENS, IN)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        for _ in range(3):
            y = sparse(x)
            assert y.dtype is torch.float16
            torch.testing.assert_close(y.float(), sparse.to_dense().float()(x).float(), rtol=2e-2, atol=2e-2)
        assert launches.sent == 1
        [plan] = sparse.pattern.plans._plans.values()
        kept = plan._bias
        sparse.bias.add_(1)
        sparse.values.mul_(2)
        torch.testing.assert_close(sparse(x).float(), sparse.to_dense()(x).float(), rtol=2e-2, atol=2e-2)
        assert plan._bias is kept, "where a captured graph reads it"
    with torch.no_grad(), pytest.raises(OperandError, match="values"):
        sparse(x.half())


def test_a_captured_operator_is_known_as_such(launches: Launches) -> None:
    sparse, x = layer(), torch.randn(TOKENS, IN)
    with torch.no_grad():
        sparse(x), sparse(x)
        [prepared] = sparse.pattern._prepared.values()
        assert not prepared.was_captured
        launches.stream, launches.captures = 77, True
        sparse(x)
    assert prepared.was_captured


def test_what_is_called_stays_and_what_goes_takes_its_plan_along(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern, "MOST_PREPARED", 2)
    sparse = layer()
    with torch.no_grad():
        for tokens in (1, 2, 1, 1, 3, 1):
            x = torch.randn(tokens, IN)
            check(sparse, x, sparse(x))
    assert sorted(key[1] for key in sparse.pattern._prepared) == [1, 3]
    gone = [key for key in sparse.pattern.plans._plans if key[0] == (2, IN)]
    assert not gone
    sparse.pattern.forget()
    gc.collect()
    assert not sparse.pattern.plans._plans
    with torch.no_grad():
        check(sparse, x, sparse(x))


def test_plans_are_few(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_plans, "MOST_PLANS", 3)
    sparse = layer()
    with torch.no_grad():
        for shape in ((12,), (1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)):
            x = torch.randn(*shape, IN)
            check(sparse, x, sparse(x))
            assert len(sparse.pattern.plans._plans) <= 3


def test_threads_with_values_of_their_own(launches: Launches) -> None:
    shared = layer().pattern
    wrong: list[Any] = []

    def use(seed: int) -> None:
        values = torch.full((shared.nnz,), float(seed))
        x = torch.ones(TOKENS, IN)
        counts = torch.from_numpy(shared.matrix.to_dense()).sum(1)
        with torch.no_grad():
            for _ in range(50):
                found = linear(x, values, shared)
                if not torch.allclose(found, (seed * counts).expand(TOKENS, OUT)):
                    wrong.append(found)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def over_dense(launches: Launches, call: Any, dense: Any) -> tuple[int, int]:
    """The functions of Python and of C that a call takes beyond another."""
    call()
    launches.is_idle = True
    ours, theirs = steps_of(call), steps_of(dense)
    launches.is_idle = False
    return ours.python.total() - theirs.python.total(), ours.c.total() - theirs.c.total()


def test_steps_in_inference(launches: Launches) -> None:
    sparse, dense = layer(), nn.Linear(IN, OUT).requires_grad_(False)
    for shape in ((TOKENS, IN), (2, 3, IN)):
        x = torch.randn(shape)
        with torch.inference_mode():
            python, c = over_dense(launches, lambda x=x: sparse(x), lambda x=x: dense(x))
        assert (python <= MOST_INFERENCE[0]) and (c <= MOST_INFERENCE[1]), (python, c)


def test_frames_of_a_warm_layer(launches: Launches) -> None:
    """Functions that a call enters before its launch; two are every module's, and x is looked at once."""
    sparse, x = layer(), torch.randn(TOKENS, IN)
    with torch.no_grad():
        sparse(x)
        launches.is_idle = True
        entered = steps_of(lambda: sparse(x)).python
    own = {name: times for name, times in entered.items() if name not in ("<lambda>", "_launch")}
    assert sum(own.values()) <= 7 and own["asked"] == 1, own


def test_steps_under_autocast(launches: Launches) -> None:
    sparse, dense = layer(), nn.Linear(IN, OUT).requires_grad_(False)
    x = torch.randn(TOKENS, IN)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.float16):
        python, c = over_dense(launches, lambda: sparse(x), lambda: dense(x))
    assert (python <= MOST_INFERENCE[0] + 2) and (c <= MOST_INFERENCE[1] + 4), (python, c)


def test_steps_of_training(launches: Launches) -> None:
    sparse, dense = layer(trains=True), nn.Linear(IN, OUT)
    x, seed = torch.randn(TOKENS, IN, requires_grad=True), torch.randn(TOKENS, OUT)
    python, c = over_dense(launches, lambda: sparse(x), lambda: dense(x))
    assert (python <= MOST_TRAINING[0]) and (c <= MOST_TRAINING[1]), (python, c)
    both = over_dense(launches, lambda: sparse(x).backward(seed), lambda: dense(x).backward(seed))
    assert both[0] - python <= MOST_BACKWARD[0] and both[1] - c <= MOST_BACKWARD[1], (both, python, c)


def test_steps_of_a_shared_input(launches: Launches) -> None:
    layers = [layer(rows=rows) for rows in (8, 16, 24)]
    together = SharedInput(layers)
    for number, one in enumerate(layers):
        one.shares(SharedPart(together, number))
    x = torch.randn(TOKENS, IN)
    with torch.inference_mode():
        [one(x) for one in layers]
        launches.is_idle = True
        steps = steps_of(lambda: [one(x) for one in layers])
        launches.is_idle = False
        for one in layers:
            check(one, x, one(x))
    assert launches.sent == 1
    assert steps.python.total() <= MOST_SHARED[0] and steps.c.total() <= MOST_SHARED[1], (
        steps.python.total(),
        steps.c.total(),
    )
