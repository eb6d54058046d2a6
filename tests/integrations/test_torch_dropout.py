"""Structured dropout and the layer behind it: what is dropped, how much, and that gradients see the same mask."""

from __future__ import annotations

import copy
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from sparsegen.dispatch import decision  # noqa: E402
from sparsegen.dispatch.decision import Decision  # noqa: E402
from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import DropoutLinear, block_dropout, draw_block_mask  # noqa: E402
from sparsegen.integrations.torch.blocks import dropout, dropout_choice, dropped_blocks  # noqa: E402
from sparsegen.integrations.torch.calls.launches import calls  # noqa: E402
from sparsegen.operators import DsdProblem, Epilogue  # noqa: E402
from sparsegen.tuning_db.records import Called, Task  # noqa: E402

TF32 = {"rtol": 5e-3, "atol": 5e-3}


@pytest.fixture(autouse=True)
def tf32() -> Any:
    """Without it float32 runs dense."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def layer(p: float = 0.5, **options: Any) -> DropoutLinear:
    torch.manual_seed(0)
    return DropoutLinear(48, 40, p, "32x16", **options)


def test_dropped_blocks() -> None:
    torch.manual_seed(1)
    x = torch.rand(3, 40, 70) + 1
    y = block_dropout(x, 0.25, (32, 16)).reshape(120, 70)
    seen = set()
    for i in range(0, 120, 32):
        for j in range(0, 70, 16):
            tile, given = y[i : i + 32, j : j + 16], x.reshape(120, 70)[i : i + 32, j : j + 16]
            assert torch.all(tile == 0) or torch.allclose(tile, given / 0.75)
            seen.add(bool(tile.any()))
    assert seen == {False, True}
    assert block_dropout(x, 0.25, 16, training=False) is x and block_dropout(x, 0, 16) is x


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(64, 96), (50, 70), (3, 200)])
def test_dropped_blocks_are_those_of_the_mask(place: str, dtype: Any, shape: tuple[int, int]) -> None:
    """Gradients are computed too, and no element of a dropped block is read."""
    state = torch.tensor([4, 2], dtype=torch.int64)
    live = draw_block_mask(shape, (16, 32), 0.25, state=state.clone()).expand()
    x = torch.randn(shape).to(dtype).masked_fill(~live, torch.nan).requires_grad_()
    y = torch.ops.sparsegen.block_dropout(x, state, 0.25, 16, 32)
    expected = torch.where(live, x.detach().double() / 0.75, 0)
    torch.testing.assert_close(y.double(), expected, rtol=torch.finfo(dtype).eps, atol=0)
    seed = torch.randn(shape).to(dtype)
    (grad,) = torch.autograd.grad(y, x, seed)
    right = torch.where(live, seed.double() / 0.75, 0)
    torch.testing.assert_close(grad.double(), right, rtol=torch.finfo(dtype).eps, atol=0)
    assert state.tolist() == [4, 2]


def test_the_dropout_is_an_operator_as_it_says() -> None:
    state = torch.tensor([4, 2], dtype=torch.int64)
    x = torch.randn(40, 70, requires_grad=True)
    torch.library.opcheck(torch.ops.sparsegen.block_dropout, (x, state, 0.3, 16, 32))


def test_the_layer_is_dense_where_nothing_is_dropped() -> None:
    found = layer()
    x = torch.randn(2, 5, 48)
    dense = nn.functional.linear(x, found.weight, found.bias)
    assert torch.equal(found.eval()(x), dense)
    found.p = 0.0
    assert torch.equal(found.train()(x), dense)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_gradients_are_those_of_the_mask_that_the_result_saw(
    place: str, activation: str, bias: bool
) -> None:
    """The gradient of x tells the mask; all else follows from it."""
    found = layer(activation=activation, bias=bias)
    x = torch.randn(2, 48, 48, requires_grad=True)
    torch.manual_seed(5)
    y = found(x)
    seed = torch.randn_like(y)
    grads = torch.autograd.grad(y, (x, *found.parameters()), seed)
    live = (grads[0].detach().reshape(3, 32, 3, 16) != 0).any(3).any(1)
    assert live.any() and not live.all()
    scale = live.repeat_interleave(32, 0).repeat_interleave(16, 1).reshape(2, 48, 48) * 2.0
    expected = nn.functional.linear(x * scale, found.weight, found.bias)
    act = {"none": nn.Identity(), "relu": nn.ReLU(), "gelu": nn.GELU()}[activation]
    expected = act(expected)
    torch.testing.assert_close(y, expected, **TF32)
    right = torch.autograd.grad(expected, (x, *found.parameters()), seed)
    for mine, theirs in zip(grads, right, strict=True):
        if activation == "none":
            torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=5e-2)
        else:  # near zero TF32 may turn a ReLU's sign
            assert torch.linalg.vector_norm(mine - theirs) < 0.05 * torch.linalg.vector_norm(theirs)


def test_masks_follow_pytorch_s_generator(place: str) -> None:
    found, x = layer(), torch.randn(64, 48)
    torch.manual_seed(3)
    first, second = found(x), found(x)
    torch.manual_seed(3)
    assert torch.equal(found(x), first) and not torch.equal(first, second)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_see_the_same_mask(place: str, reentrant: bool) -> None:
    found = layer()
    x = torch.randn(64, 48, requires_grad=True)
    grads = []
    for call in (found, lambda x: checkpoint(found, x, use_reentrant=reentrant)):
        torch.manual_seed(3)
        y = call(x)
        found.zero_grad()
        x.grad = None
        y.square().sum().backward()
        grads.append((y.detach(), x.grad.clone(), found.weight.grad.clone()))
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)


def steps_of(found: DropoutLinear, x: Any, count: int) -> list[tuple[Any, ...]]:
    """Returns result and gradients of ``count`` calls."""
    results = []
    for _ in range(count):
        y = found(x)
        results.append((y, *torch.autograd.grad(y.square().sum(), (x, *found.parameters()))))
    return results


def test_a_seed_of_the_layer_s_own(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the masks, whichever products run, and the generator is asked once."""
    x = torch.randn(320, 48, requires_grad=True)
    runs = []
    for masked in (True, False):
        monkeypatch.setattr(dropout, "masked_products_pay", lambda *_, masked=masked: masked)
        found = layer(own_seed=True)
        torch.manual_seed(3)
        first = steps_of(found, x, 2)
        before = torch.get_rng_state()
        later = steps_of(found, x, 2)
        assert torch.equal(torch.get_rng_state(), before)
        runs.append(first + later)
    results = [step[0] for step in runs[0]]
    assert all(not torch.equal(one, other) for one, other in pairwise(results))
    for masked_step, dense_step in zip(*runs, strict=True):
        for mine, theirs in zip(masked_step, dense_step, strict=True):
            assert torch.linalg.vector_norm(mine - theirs) < 5e-3 * torch.linalg.vector_norm(theirs)


def test_a_seed_of_its_own_is_another_one_for_each_layer(place: str) -> None:
    torch.manual_seed(3)
    x = torch.ones(320, 48, requires_grad=True)
    first, second = (DropoutLinear(48, 40, 0.5, 16, own_seed=True) for _ in range(2))
    masks = [torch.autograd.grad(found(x).sum(), x)[0] != 0 for found in (first, second)]
    assert not torch.equal(*masks)
    assert "own_seed=True" in repr(first) and "own_seed" not in repr(layer())
    shared = DropoutLinear.from_linear(nn.Linear(48, 40), 0.5, 16, own_seed=True)
    assert shared.own_seed and not torch.equal(shared(x), shared(x))
    assert set(shared.state_dict()) == {"weight", "bias"}
    with pytest.raises(OperandError, match="own_seed"):
        DropoutLinear(48, 40, own_seed="yes")


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_cannot_draw_a_mask_of_its_own_again(place: str, reentrant: bool) -> None:
    x = torch.randn(320, 48, requires_grad=True)
    y = checkpoint(layer(own_seed=True), x, use_reentrant=reentrant)
    with pytest.raises(OperandError, match="own_seed=False inside of checkpoints"):
        y.sum().backward()


def test_a_seed_of_its_own_outlives_inference(place: str) -> None:
    found, x = layer(own_seed=True), torch.randn(320, 48)
    with torch.inference_mode():
        inferred = found(x)
    assert not torch.equal(found(x), inferred)


def test_one_graph_with_a_seed_of_its_own(place: str) -> None:
    found = layer(own_seed=True)
    x = torch.randn(320, 48, requires_grad=True)
    found(x)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(found, backend=counter, fullgraph=True)
    results = [compiled(x) for _ in range(3)]
    results[0].sum().backward()
    assert counter.frame_count == 1 and x.grad is not None
    assert not torch.equal(results[0], results[1]) and not torch.equal(results[1], results[2])


def test_one_graph(place: str) -> None:
    found = layer(activation="relu")
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(found, backend=counter, fullgraph=True)
    x = torch.randn(64, 48, requires_grad=True)
    first = compiled(x)
    first.sum().backward()
    assert not torch.equal(compiled(x), first)
    assert counter.frame_count == 1 and x.grad is not None
    assert compiled(torch.randn(2, 40, 48)).shape == (2, 40, 40)
    assert compiled(torch.randn(2, 24, 48)).shape == (2, 24, 40)


@pytest.mark.parametrize("dense", ["auto", "never", "always"])
@pytest.mark.parametrize("own_seed", [False, True])
def test_one_graph_of_any_number_of_tokens(place: str, own_seed: bool, dense: str) -> None:
    """The number is a symbol, and no guard makes it one number."""
    torch._dynamo.reset()
    found = layer(own_seed=own_seed, dense=dense, activation="relu")
    found(torch.randn(2, 48))
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(found, backend=counter, fullgraph=True, dynamic=True)
    frames = set()
    for tokens in (64, 40, 24):
        x = torch.randn(2, tokens, 48, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 1)
        compiled(x).sum().backward()
        assert x.grad is not None and x.grad.any()
        frames.add(counter.frame_count)
    assert len(frames) == 1


def test_the_mask_does_not_depend_on_what_is_faster(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    found, x = layer(), torch.randn(100, 48)
    results = []
    for pays in (True, False):
        monkeypatch.setattr(dropout, "masked_products_pay", lambda *_, pays=pays: pays)
        torch.manual_seed(3)
        results.append(found(x))
    torch.testing.assert_close(*results, **TF32)


def test_the_decision_of_the_way_of_being_called_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, captures = [], False

    def decide(task: Task, problem: DsdProblem, *_: Any) -> Decision | None:
        asked.append((task, problem))
        return Decision(problem.m > 100, problem.m > 50, "") if problem.m != 16 else None

    monkeypatch.setattr(dropout_choice, "kernel_device_of", lambda _: SimpleNamespace(backend="cuda"))
    monkeypatch.setattr(dropout_choice, "decide", decide)
    monkeypatch.setattr(decision, "is_capturing", lambda: captures)
    monkeypatch.setattr(calls, "known", {})
    rest = (48, 40, (32, 16), 0.5, torch.float16, "cuda:0")
    for tokens, pays in ((128, True), (64, False), (32, False), (0, False), (16, False)):
        assert dropout_choice.masked_products_pay(tokens, *rest) is pays
    captures = True
    for tokens, pays in ((128, True), (64, True), (32, False), (16, False)):
        assert dropout_choice.masked_products_pay(tokens, *rest) is pays
    assert dropout_choice.masked_products_pay(128, *rest, True, True, own_seed=True) is True
    assert {task for task, _ in asked} == {Task.DROPOUT, Task.SEEDED_DROPOUT}
    problem = asked[-1][1]
    assert (problem.m, problem.k, problem.n) == (128, 48, 40) and problem.epilogue is Epilogue.BIAS_RELU
    for dtype, precision in ((torch.float64, "high"), (torch.float32, "highest")):
        torch.set_float32_matmul_precision(precision)
        assert not dropout_choice.masked_products_pay(128, 48, 40, (32, 16), 0.5, dtype, "cuda:0")


def raced(relu: bool = False, own_seed: bool = False, dtype: Any = torch.float16) -> None:
    """Each step of both races once, without a clock."""
    facts = 64, 48, 40, (32, 16), 0.5, dtype, True, relu
    problem = dropout_choice.forward_problem(*facts)
    for called in Called:
        for step in dropout_choice._both(problem, 0.5, torch.device("cpu"), called, own_seed=own_seed):
            step()


@pytest.mark.parametrize("relu", [False, True])
def test_what_is_raced_goes_through_autograd(relu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture may take what no eager call ran: its launches, also those of autograd's thread, are there then."""
    products: list[tuple[Any, ...]] = []
    dsd = dropout_choice.dsd

    def seen(x: Any, weight: Any, mask: Any, bias: Any, **options: Any) -> Any:
        y = dsd(x, weight, mask, bias, **options)
        products.append((y.grad_fn is not None, bias is not None, options["relu"]))
        return y

    monkeypatch.setattr(dropout_choice, "dsd", seen)
    with torch.inference_mode():
        raced(relu, own_seed=relu)
    assert products == [(True, True, relu)] * len(Called)


def test_a_race_is_nothing_to_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint's gradients do not need what the layer saves: computed again, the layer races nothing."""
    tried: list[int] = []

    def decide(*_: Any) -> bool:
        if not tried:
            raced(dtype=torch.float32)
            tried.append(1)
        return True

    monkeypatch.setattr(dropout, "masked_products_pay", decide)
    found, x = layer(), torch.randn(64, 48, requires_grad=True)
    checkpoint(found, x, use_reentrant=False).sum().backward()
    assert x.grad is not None and tried


@pytest.mark.parametrize("shape", [(320, 48), (4, 80, 48)], ids=str)
def test_small_and_large_dropouts_are_the_same(
    place: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product with zeros and others, whose gradient is PyTorch's own, and the kernel."""
    state, x = torch.tensor([3, 5]), torch.randn(shape, requires_grad=True)
    found = []
    for most in (0, x.numel()):
        monkeypatch.setattr(dropped_blocks, "HOST_BOUND", most)
        y = dropped_blocks.dropped(x, state, 0.25, (16, 32))
        found.append((y, *torch.autograd.grad(y.square().sum(), x)))
    assert 0.1 < (found[0][0] == 0).float().mean() < 0.5
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dense", ["auto", "never"])
def test_no_tokens(dense: str, place: str) -> None:
    found = layer(dense=dense)
    y = found(torch.ones(0, 48))
    assert y.shape == (0, 40)
    y.sum().backward()
    assert not found.weight.grad.any()


def test_autocast(place: str) -> None:
    found, x = layer(), torch.randn(64, 48, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = found(x)
    assert y.dtype is torch.bfloat16
    y.float().sum().backward()
    assert found.weight.grad.dtype is torch.float32 and x.grad.dtype is torch.float32


def test_a_linear_layer_taken_over() -> None:
    linear = nn.Linear(48, 40, bias=False)
    found = DropoutLinear.from_linear(linear.eval(), 0.3, 64, activation="gelu")
    assert found.weight is linear.weight and found.bias is None and not found.training
    found.load_state_dict(linear.state_dict())
    assert "p=0.3, block=64x64, activation=gelu" in repr(found)
    assert torch.equal(copy.deepcopy(found)(torch.ones(2, 48)), found(torch.ones(2, 48)))


def test_the_mean_over_masks_is_the_dense_result() -> None:
    found, x = layer(0.5), torch.randn(96, 48)
    torch.manual_seed(0)
    with torch.no_grad():
        mean = sum(found(x) for _ in range(2000)) / 2000
        dense = found.eval()(x)
    assert torch.linalg.vector_norm(mean - dense) < 0.1 * torch.linalg.vector_norm(dense - found.bias)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_another_dtype_than_the_weight_s(dtype: Any, training: bool) -> None:
    layer = DropoutLinear(32, 16, 0.5, 16).train(training)
    with pytest.raises(OperandError, match=r"x: expected torch\.float32, as the layer's weight is"):
        layer(torch.ones(4, 32, dtype=dtype))


def test_bad_arguments() -> None:
    with pytest.raises(OperandError, match="at least one dimension"):
        block_dropout(torch.tensor(1.0))
    with pytest.raises(OperandError, match=r"p = 1.0 is outside \[0, 1\)"):
        DropoutLinear(8, 8, 1)
    with pytest.raises(OperandError, match=r"block = 24 is no block: write .* each of 16, 32, 64, 128, 256"):
        DropoutLinear(8, 8, 0.5, 24)
    with pytest.raises(OperandError, match="activation = 'silu' is none of none, relu, gelu"):
        DropoutLinear(8, 8, activation="silu")
    with pytest.raises(OperandError, match=r"p = -0.5 is outside \[0, 1\)"):
        block_dropout(torch.ones(8, 8), -0.5)
