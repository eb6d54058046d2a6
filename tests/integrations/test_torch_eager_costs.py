"""Eager calls of convolutions and attention: past PyTorch's dispatcher, and as they were seen from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from call_costs import steps_of  # noqa: E402
from idle_operators import idle_operators  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from sparsegen import api  # noqa: E402
from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import (  # noqa: E402
    BlockMaskTensor,
    KernelMap,
    MaskedConv2d,
    SparseAttention,
    SparseLinear,
    SubmanifoldConv3d,
    block_attention,
    dsd,
    dsd_transposed,
    masked_conv2d,
    sdd,
    sdd_into,
)
from sparsegen.integrations.torch.attention import block_attention_kernels  # noqa: E402
from sparsegen.integrations.torch.calls import launches, prepared_operators  # noqa: E402
from sparsegen.integrations.torch.calls.launches import Calls  # noqa: E402
from sparsegen.integrations.torch.convolution import conv_problem  # noqa: E402
from sparsegen.integrations.torch.convolution.packed_masks import PackedMask  # noqa: E402
from sparsegen.plan.variant_launcher import VariantLauncher  # noqa: E402
from sparsegen.system.bounded import Bounded  # noqa: E402

# Functions of Python that are entered by a call without gradients, by one with them, and by a whole step; then of C.
MOST = {
    "masked_conv2d": (
        (60, 73),
        (61, 70),
        (162, 218),
    ),  # with some 16 and 10 of the emulator that packs the mask
    "submanifold_conv3d": ((76, 75), (74, 72), (161, 174)),
    "attention": ((105, 89), (96, 81), (228, 185)),
}


@dataclass
class Eager:
    """A layer that is called with tensors.

    Attributes:
        x: those that gradients are asked for.
        run: calls the layer with such tensors.
    """

    layer: Any
    x: tuple[Any, ...]
    run: Callable[..., Any]

    @property
    def leaves(self) -> list[Any]:
        return [*self.x, *self.layer.parameters()]


def eager(name: str) -> Eager:
    torch.manual_seed(0)
    if name == "masked_conv2d":
        conv = MaskedConv2d(3, 5, 3, padding=1, mask_block=4, dense="never")
        mask = torch.rand(2, 3, 2) < 0.6
        x = torch.randn(2, 3, 10, 8).to(memory_format=torch.channels_last)
        return Eager(conv, (x.requires_grad_(),), lambda x: conv(x, mask))
    if name == "submanifold_conv3d":
        coordinates = (torch.rand(1, 4, 4, 4) < 0.4).nonzero().int()
        points, sub = KernelMap.of(coordinates, 3), SubmanifoldConv3d(4, 6)
        x = torch.randn(len(coordinates), 4)
        return Eager(sub, (x.requires_grad_(),), lambda x: sub(x, points))
    if name == "attention":
        attend = SparseAttention(torch.ones(6, 6).tril(), 2, 4)
        return Eager(attend, tuple(torch.randn(2, 6, 4, requires_grad=True) for _ in range(3)), attend)
    linear = SparseLinear.from_dense(nn.Linear(6, 4), sparsity=0.5, run_dense="never")
    return Eager(linear, (torch.randn(2, 3, 6, requires_grad=True),), linear)


class Listening(TorchDispatchMode):
    """Names every operator that it sees; with it, all are called by the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", MOST)
def test_by_the_dispatcher_and_past_it_results_are_the_same(place: str, name: str) -> None:
    made = eager(name)
    with torch.no_grad():
        y = made.run(*made.x)
    seed = torch.randn_like(y)
    direct = made.run(*made.x)
    assert direct.requires_grad and torch.equal(direct, y)
    ours = torch.autograd.grad(direct, made.leaves, seed)
    with Listening() as mode:
        by_operator = made.run(*made.x)
        theirs = torch.autograd.grad(by_operator, made.leaves, seed)
    assert any(f"sparsegen.{name}." in seen for seen in mode.seen)
    assert len([seen for seen in mode.seen if f"sparsegen.{name}_" in seen]) == 1, "its gradient's"
    for one, other in zip((direct, *ours), (by_operator, *theirs), strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()


@pytest.mark.parametrize("name", [*MOST, "linear"])
def test_results_may_be_changed_in_place(place: str, name: str) -> None:
    """ReLU after a layer does so; autograd would refuse it for a result that shares memory with another tensor."""
    made = eager(name)
    y = made.run(*made.x).mul_(2).relu_()
    found = torch.autograd.grad(y.sum(), made.leaves)
    exact = torch.autograd.grad(made.run(*made.x).mul(2).relu().sum(), made.leaves)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", [*MOST, "linear"])
def test_what_is_kept_for_gradients_may_not_change_before_them(name: str) -> None:
    made = eager(name)
    for leaf in [*made.x, *[weight for key, weight in made.layer.named_parameters() if key != "bias"]]:
        y = made.run(*made.x)
        with torch.no_grad():
            leaf.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_nor_may_a_result_that_a_relu_made() -> None:
    x, weight, bias = torch.randn(1, 2, 8, 8), torch.randn(3, 2, 3, 3, requires_grad=True), torch.zeros(3)
    y = masked_conv2d(
        x, weight, torch.ones(1, 2, 2, dtype=torch.bool), bias, block=3, relu=True, dense="never"
    )
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", [*MOST, "linear"])
def test_transforms_are_as_exact_as_calls(name: str) -> None:
    """Gradients of functions are those of tensors; an operator is mapped by one call after the other."""
    made = eager(name)
    first, *others = (x.detach() for x in made.x)
    leaf = first.clone().requires_grad_()
    made.run(leaf, *others).sum().backward()
    torch.testing.assert_close(torch.func.grad(lambda x: made.run(x, *others).sum())(first), leaf.grad)
    both = torch.stack([first, 2 * first])
    with torch.no_grad():
        mapped = torch.vmap(lambda x: made.run(x, *others))(both)
        for x, y in zip(both, mapped, strict=True):
            torch.testing.assert_close(y, made.run(x, *others))


def test_second_gradients_of_attention_are_refused_in_words() -> None:
    made = eager("attention")
    (dq,) = torch.autograd.grad(made.run(*made.x).square().sum(), made.x[0], create_graph=True)
    with pytest.raises(OperandError, match="first order alone"):
        dq.sum().backward()


@pytest.mark.parametrize("name", MOST)
def test_steps(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    idle_operators(monkeypatch)
    made = eager(name)
    frozen = [x.detach() for x in made.x]
    seed = torch.ones_like(made.run(*made.x))

    def inference() -> None:
        with torch.inference_mode():
            made.run(*frozen)

    calls = inference, lambda: made.run(*made.x), lambda: made.run(*made.x).backward(seed)
    for call, (python, c) in zip(calls, MOST[name], strict=True):
        steps = steps_of(call)
        assert steps.python.total() <= python and steps.c.total() <= c, steps
        assert not {"redispatch", "autograd_impl", "backend_impl", "_maybe_bind"} & set(steps.python)


def test_calls_like_those_before_prepare_and_check_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    idle_operators(monkeypatch)
    made = eager("masked_conv2d")
    made.run(*made.x).sum().backward()

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("this was known")

    monkeypatch.setattr(conv_problem.MaskedConv2dProblem, "of", never)
    monkeypatch.setattr(prepared_operators.operators, "get", never)
    made.run(*made.x).sum().backward()
    with pytest.raises(AssertionError, match="known"):
        made.run(made.x[0][:1])


def test_an_option_that_equals_one_before_is_another() -> None:
    """1, 1.0 and True are equal to Python, and not to those who check options."""
    x, weight, mask = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, dtype=torch.bool)
    masked_conv2d(x, weight, mask, stride=(1, 1), block=4)
    for wrong in ((1.5, 1), (True, 1)):
        with pytest.raises(Exception, match="stride"):
            masked_conv2d(x, weight, mask, stride=wrong, block=4)


def test_known_calls_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def make(x: Any, number: int) -> Any:
        made.append(number)
        return lambda x: x

    few = Calls()
    few.known = Bounded(3)
    call = few.of(1, make)
    for number in range(4):
        call(torch.ones(1), number)
    assert len(few.known) <= 3
    call(torch.ones(1), 3)
    call(torch.ones(2), 3)
    assert made == [*range(4), 3]


class Launched:
    """Stand-in for the result of `sparsegen.prepare` on a GPU, with a launch that records its addresses."""

    device = SimpleNamespace(backend="cuda", index=-1)

    def __init__(self, problem: Any) -> None:
        self.addresses: list[tuple[int, ...]] = []
        self.launcher = object.__new__(VariantLauncher)
        self.launcher._target = SimpleNamespace(fixed={"scale": SimpleNamespace(address=7)})
        self.launcher.prepared = SimpleNamespace(
            bound=lambda: lambda stream, *addresses: self.addresses.append(addresses),
            launching=threading.Lock(),
            operands=problem.operands(0),
            result=problem.result(0),
        )


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Launched]:
    """The operators that are prepared, on the CPU as on a GPU."""
    made: list[Launched] = []

    def prepare(problem: Any, **_: Any) -> Launched:
        made.append(Launched(problem))
        return made[-1]

    idle_operators(monkeypatch)
    monkeypatch.setattr(api, "prepare", prepare)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    return made


def test_a_launch_gets_the_tensors_where_they_lie(launched: list[Launched]) -> None:
    x, weight, bias = torch.randn(32, 64), torch.randn(48, 64), torch.randn(48)
    mask = BlockMaskTensor.from_blocks(torch.ones(2, 2, dtype=torch.bool), (16, 32))
    y = dsd(x, weight, mask, bias, scale=2.0)
    assert launched[0].addresses == [
        (x.data_ptr(), weight.data_ptr(), mask.words.data_ptr(), 7, bias.data_ptr(), y.data_ptr())
    ]
    assert y.shape == (32, 48) and y.is_contiguous()
    turned = weight.t().contiguous().t()
    dsd(x, turned, mask, bias, scale=2.0)
    assert launched[1].addresses[0][1] == turned.data_ptr(), "as k × n, where it lies"
    shifted = torch.randn(32 * 64 + 1)[1:].view(32, 64)
    dsd(shifted, weight, mask, bias, scale=2.0)
    assert launched[0].addresses[1][0] % 16 == 0 and launched[0].addresses[1][0] != shifted.data_ptr()
    out = torch.zeros(32, 64)
    assert sdd_into(out, torch.randn(32, 48), weight, mask) is out
    assert launched[2].addresses[0][-1] == out.data_ptr()


def test_images_of_either_memory_order_are_read_where_they_lie(launched: list[Launched]) -> None:
    mask = PackedMask.of(torch.ones(2, 1, 1, dtype=torch.bool))
    weight = torch.randn(16, 8, 3, 3).to(memory_format=torch.channels_last)
    for order in (torch.channels_last, torch.contiguous_format):
        x = torch.randn(2, 8, 12, 16).to(memory_format=order)
        y = masked_conv2d(x, weight, mask, padding=1, dense="never")
        found = launched[-1].addresses[0]
        assert found == (x.data_ptr(), weight.data_ptr(), mask.words.data_ptr(), y.data_ptr())
        assert y.shape == (2, 16, 12, 16) and y.is_contiguous(memory_format=order)


def test_frames_of_warm_calls(launched: list[Launched]) -> None:
    """Functions of Python that are entered before the launch, but for those that say where kernels run on a host, and
    functions of C.
    """
    x, weight, bias, d = torch.randn(32, 64), torch.randn(48, 64), torch.randn(48), torch.randn(32, 48)
    mask = BlockMaskTensor.from_blocks(torch.ones(2, 2, dtype=torch.bool), (16, 32))
    images = torch.randn(2, 8, 12, 16).to(memory_format=torch.channels_last)
    filters = torch.randn(16, 8, 3, 3).to(memory_format=torch.channels_last)
    spatial = PackedMask.of(torch.ones(2, 1, 1, dtype=torch.bool))
    others = {"<lambda>", "_host_backend", "kernel_device", "kernel_device_of"}
    for call, python, c in (
        (lambda: dsd(x, weight, mask, bias, scale=2.0), 6, 18),
        (lambda: sdd(d, weight, mask), 6, 16),
        (lambda: dsd_transposed(x, d, mask), 6, 16),
        (lambda: masked_conv2d(images, filters, spatial, padding=1, dense="never"), 5, 18),
    ):
        steps = steps_of(call)
        entered = {name: times for name, times in steps.python.items() if name not in others}
        assert sum(entered.values()) <= python and steps.c.total() <= c, (entered, steps.c)


def test_attention_with_masks_is_launched_after_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few functions look at its arguments, whichever way it is computed."""
    q, k, v = (torch.randn(1, 2, 32, 8) for _ in range(3))
    mask = BlockMaskTensor.from_blocks(torch.ones(2, 2, dtype=torch.bool), (16, 16))
    found = q.clone(), torch.zeros(1, 2, 32)
    idle_operators(monkeypatch)
    monkeypatch.setattr(block_attention_kernels, "_kernel", lambda *_: None)
    monkeypatch.setattr(block_attention_kernels, "_plainly", lambda *_: found)
    steps = steps_of(lambda: block_attention(q, k, v, mask, causal=True))
    assert steps.python.total() <= 22 and steps.c.total() <= 18, steps


@pytest.fixture(params=["dsd", "masked_conv2d", "block_attention"])
def named(request: pytest.FixtureRequest) -> tuple[str, Callable[[Any], Any]]:
    """An operator, and a call of it with a tensor that may want a gradient."""
    blocks = torch.ones(2, 2, dtype=torch.bool)
    mask, weight = BlockMaskTensor.from_blocks(blocks, (16, 16)), torch.randn(8, 32)
    filters, spatial = torch.randn(4, 32, 1, 1), PackedMask.of(torch.ones(1, 1, 1, dtype=torch.bool))
    call: dict[str, Callable[[Any], Any]] = {
        "dsd": lambda x: dsd(x, weight, mask, dense="never"),
        "masked_conv2d": lambda x: masked_conv2d(x.view(1, 32, 4, 8), filters, spatial, dense="never"),
        "block_attention": lambda x: block_attention(*3 * (x.view(1, 1, 32, 32),), mask),
    }
    return request.param, call[request.param]


def test_calls_like_the_one_before_give_what_is_asked_of_each(
    named: tuple[str, Callable[[Any], Any]],
) -> None:
    """Guards tell nothing of gradients that are not recorded, nor of what watches a call."""
    name, call = named
    plain = torch.randn(32, 32)
    leaf, expected = plain.clone().requires_grad_(), call(plain)
    for _ in range(2):
        assert not call(plain).requires_grad
        with torch.no_grad():
            assert not call(leaf).requires_grad
        y = call(leaf)
        assert y.requires_grad and torch.equal(y, expected)
        y.sum().backward()
        with torch.inference_mode():
            assert torch.equal(call(plain), expected)
        with torch.autograd.profiler.profile() as profile:
            call(plain)
        assert f"sparsegen::{name}" in {event.name for event in profile.function_events}
        with Listening() as mode:
            call(plain)
        assert f"sparsegen.{name}.default" in mode.seen


def test_what_a_graph_captured_lives_on(launched: list[Launched], monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(prepared_operators.operators, "_captured", kept)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 5)
    x, d = torch.randn(32, 64), torch.randn(32, 48)
    mask = BlockMaskTensor.from_blocks(torch.ones(2, 2, dtype=torch.bool), (16, 32))
    for captures in (False, True, True, False):
        monkeypatch.setattr(launches, "is_capturing", lambda _, captures=captures: captures)
        dsd_transposed(x, d, mask)
    (launch,) = kept
    assert launch.was_captured and len(launched) == 1
