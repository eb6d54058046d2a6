"""`masked_conv2d` and `MaskedConv2d`: what they compute, their gradients, what they refuse."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from sparsegen import backends, lookup, masks  # noqa: E402
from sparsegen.dispatch import decision as dispatch_decision  # noqa: E402
from sparsegen.dispatch.decision import Decision  # noqa: E402
from sparsegen.dispatch.options import Dense  # noqa: E402
from sparsegen.errors import ConfigError, OperandError  # noqa: E402
from sparsegen.integrations.torch import MaskedConv2d, masked_conv2d  # noqa: E402
from sparsegen.integrations.torch.calls import devices  # noqa: E402
from sparsegen.integrations.torch.calls.launches import calls  # noqa: E402
from sparsegen.integrations.torch.convolution import (  # noqa: E402
    conv_call,
    conv_choice,
    dense_convolution,
    masked_conv,
    masked_conv_kernels,
    masked_conv_operators,
    weight_gradients,
)
from sparsegen.integrations.torch.convolution.packed_masks import PackedMask  # noqa: E402
from sparsegen.measure import decision, race  # noqa: E402
from sparsegen.operators import (  # noqa: E402
    ConvEpilogue,
    Density,
    FilterSize,
    Groups,
    ImageLayout,
    MaskBlock,
    MaskedConv2dProblem,
    MaskOf,
    Padding,
    Stride,
)
from sparsegen.tuning_db.records import Called, Task  # noqa: E402
from sparsegen.tuning_db.store import Store  # noqa: E402

SIDES: list[dict[str, Any]] = [
    {"padding": 1},
    {"stride": (2, 1), "padding": (2, 0), "dilation": (1, 2), "groups": 2},
]


def tensors(dtype: Any = torch.float32, groups: int = 1) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    x, w = torch.randn(2, 4, 13, 18), torch.randn(6, 4 // groups, 3, 3) / 6
    return x.to(dtype), w.to(dtype), torch.randn(6).to(dtype)


def pixels(mask: Any, block: tuple[int, int], like: Any) -> Any:
    wide = mask[:, None].repeat_interleave(block[0], 2).repeat_interleave(block[1], 3)
    return wide[:, :, : like.shape[2], : like.shape[3]]


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_live_blocks_of_the_output_are_computed(
    place: str, sides: dict[str, Any], dtype: Any, order: Any
) -> None:
    x, w, bias = tensors(dtype, sides.get("groups", 1))
    x = x.to(memory_format=order)
    dense = functional.conv2d(x.double(), w.double(), bias.double(), **sides).relu()
    mask = torch.rand(2, -(-dense.shape[2] // 5), -(-dense.shape[3] // 4)) < 0.5
    y = masked_conv2d(x, w, mask, bias, block="5x4", relu=True, **sides)
    exact = torch.where(pixels(mask, (5, 4), dense), dense, 0)
    assert y.dtype is dtype and y.is_contiguous(memory_format=order)
    rough = 2e-2 if dtype is torch.bfloat16 else 2e-3
    torch.testing.assert_close(y.double(), exact, rtol=rough, atol=rough)


@pytest.mark.parametrize("mask_of", ["input", "any_input"])
def test_dead_blocks_of_the_input_are_zeros(place: str, mask_of: str) -> None:
    x, w, bias = tensors()
    mask = torch.rand(2, 4, 5) < 0.3
    zeroed = torch.where(pixels(mask, (4, 4), x), x, 0)
    y = masked_conv2d(zeroed if mask_of == "input" else x, w, mask, bias, block=4, mask_of=mask_of, padding=1)
    torch.testing.assert_close(y, functional.conv2d(zeroed, w, bias, padding=1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask_of", ["output", "any_input"])
@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_gradients_of_kernels(place: str, sides: dict[str, Any], mask_of: str, dtype: Any) -> None:
    """Held against float64's; what dead blocks of the incoming gradient hold does not count."""
    x, w, bias = (t.requires_grad_() for t in tensors(dtype, sides.get("groups", 1)))
    wide = [t.detach().double().requires_grad_() for t in (x, w, bias)]
    like = functional.conv2d(x.float(), w.float(), **sides) if mask_of == "output" else x
    mask = torch.rand(2, -(-like.shape[2] // 5), -(-like.shape[3] // 4)) < 0.5
    found = []
    for given in ((x, w, bias), wide):
        y = masked_conv2d(*given[:2], mask, given[2], block="5x4", mask_of=mask_of, dense="never", **sides)
        drawn = torch.Generator().manual_seed(1)
        dy = torch.randn(y.shape, generator=drawn)
        found.append(torch.autograd.grad(y, given, dy.to(dtype).to(y.dtype)))
    rough = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}[dtype]
    for ours, exact in zip(*found, strict=True):
        assert ours.dtype is dtype
        torch.testing.assert_close(ours.double(), exact, rtol=rough, atol=rough * exact.abs().max().item())


@pytest.mark.parametrize("mask_of", ["output", "input", "any_input"])
@pytest.mark.parametrize("sides", [*SIDES, {"padding": (0, 2), "groups": 2}, {"padding": 3}], ids=str)
def test_gradients(sides: dict[str, Any], mask_of: str) -> None:
    x, w, bias = (t.double().requires_grad_() for t in tensors(groups=sides.get("groups", 1)))
    like = functional.conv2d(x, w, **sides) if mask_of == "output" else x
    mask = torch.rand(2, -(-like.shape[2] // 4), -(-like.shape[3] // 4)) < 0.5

    def run(x: Any, w: Any, bias: Any) -> Any:
        if mask_of == "input":
            x = torch.where(pixels(mask, (4, 4), x), x, 0)
        return masked_conv2d(x, w, mask, bias, block=4, mask_of=mask_of, **sides)

    assert torch.autograd.gradcheck(run, (x, w, bias), fast_mode=True, atol=1e-5)
    assert torch.autograd.gradgradcheck(run, (x, w, bias), fast_mode=True, atol=1e-5)


def test_the_operator_is_one_that_pytorch_trusts() -> None:
    x, w, bias = tensors()
    words = torch.ones(2 * 4, 1, dtype=torch.int64)
    others = (w, bias, words, [1, 1], [1, 1], [1, 1], [4, 4], 1, "output", 0.5, False)
    for images in (
        x,
        x.to(memory_format=torch.channels_last),
        x.transpose(2, 3).contiguous().transpose(2, 3),
    ):
        torch.library.opcheck(torch.ops.sparsegen.masked_conv2d.default, (images, *others))


def test_where_no_kernel_computes_the_gradient_by_the_weights_it_is_dense(place: str) -> None:
    """A dilation that reaches further than shared memory."""
    torch.manual_seed(0)
    x, dy = torch.randn(1, 2, 130, 130), torch.randn(1, 3, 10, 10)
    words = torch.tensor([[1], [2]], dtype=torch.int64)
    sides = [3, 3], [1, 1], [0, 0], [60, 60], [5, 5], 1, 0.5
    dw = torch.ops.sparsegen.masked_conv2d_weights(x, dy, words, *sides)
    dy[..., :5, 5:], dy[..., 5:, :5] = 0, 0
    w = torch.zeros(3, 2, 3, 3, requires_grad=True)
    (exact,) = torch.autograd.grad(functional.conv2d(x, w, dilation=60), w, dy)
    torch.testing.assert_close(dw, exact, rtol=1e-4, atol=1e-4)


def test_so_is_the_gradient_by_the_weights() -> None:
    x, _, _ = tensors()
    dy = torch.randn(2, 6, 13, 18)
    words = torch.ones(2 * 4, 1, dtype=torch.int64)
    given = (x, dy, words, [3, 3], [1, 1], [1, 1], [1, 1], [4, 4], 1, 0.5)
    torch.library.opcheck(torch.ops.sparsegen.masked_conv2d_weights.default, given)


def test_a_layer_takes_the_place_of_a_dense_one(place: str) -> None:
    torch.manual_seed(0)
    dense = nn.Conv2d(4, 6, 3, padding=1)
    layer = MaskedConv2d.from_dense(dense, mask_block=8, density=0.3)
    x = tensors()[0].to(memory_format=torch.channels_last)
    assert torch.equal(layer(x), dense(x)), "without a mask it is the dense layer"
    mask = torch.zeros(2, 2, 3, dtype=torch.bool)
    mask[1, 0, 1] = True
    y = layer(x, mask)
    torch.testing.assert_close(y[1, :, :8, 8:16], dense(x)[1, :, :8, 8:16], rtol=1e-4, atol=1e-4)
    assert y.count_nonzero() == y[1, :, :8, 8:16].count_nonzero()
    y.sum().backward()
    assert layer.weight.grad is not None and layer.weight is dense.weight


@pytest.mark.parametrize("mask_of", ["output", "input", "any_input"])
def test_the_dense_convolution_gives_the_same(place: str, mask_of: str) -> None:
    x, w, bias = (t.requires_grad_() for t in tensors())
    mask = torch.rand(2, 4, 5) < 0.4
    zeroed = torch.where(pixels(mask, (4, 4), x), x, 0) if mask_of == "input" else x
    found = []
    for dense in ("never", "always"):
        y = masked_conv2d(zeroed, w, mask, bias, block=4, mask_of=mask_of, padding=1, relu=True, dense=dense)
        found.append((y, *torch.autograd.grad(y.square().sum(), (x, w, bias), retain_graph=True)))
    for masked, dense in zip(*found, strict=True):
        torch.testing.assert_close(masked, dense, rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigError, match="dense = 'perhaps'"):
        masked_conv2d(x, w, mask, bias, block=4, padding=1, dense="perhaps")


@pytest.mark.parametrize("size", [1, 3])  # filters of one tap are contiguous in either order
def test_filters_lie_as_images_for_the_dense_convolution(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, _ = tensors()
    w = w[:, :, :size, :size].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    given: list[Any] = []

    def conv2d(images: Any, filters: Any, *rest: Any) -> Any:
        given.append(filters)
        return functional.conv2d(images, filters, *rest)

    monkeypatch.setattr(dense_convolution, "functional", SimpleNamespace(conv2d=conv2d))
    mask = torch.ones(2, 4, 5, dtype=torch.bool)
    masked_conv2d(x, w, mask, block=4, padding=size // 2, dense="always")
    _, channels, rows, columns = w.shape
    assert given[0].stride() == (channels * rows * columns, rows * columns, columns, 1)


@pytest.mark.parametrize("mask_of", ["output", "any_input"])
@pytest.mark.parametrize("dense", ["never", "always"])
def test_a_graph_runs_what_is_asked_for(dense: str, mask_of: str) -> None:
    x, w, bias = (t.requires_grad_() for t in tensors())
    mask = torch.rand(2, 4, 5) < 0.4
    options: dict[str, Any] = {"block": 4, "mask_of": mask_of, "padding": 1, "relu": True, "dense": dense}
    calls: list[str] = []

    def seen(graph: Any, _: Any) -> Any:
        calls.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    compiled = torch.compile(lambda *given: masked_conv2d(*given, **options), backend=seen, fullgraph=True)
    y, right = compiled(x, w, mask, bias), masked_conv2d(x, w, mask, bias, **options)
    torch.testing.assert_close(y, right)
    for found, wanted in zip(
        *(torch.autograd.grad(each.square().sum(), (x, w, bias)) for each in (y, right)), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert any("masked_conv2d" in call for call in calls) is (dense == "never")


def test_each_kind_of_call_asks_once_for_what_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[MaskedConv2dProblem] = []

    def decided(problem: MaskedConv2dProblem, *_: Any) -> Decision:
        asked.append(problem)
        return Decision.always(problem.height > 100, "")

    for where in (conv_choice, masked_conv):
        monkeypatch.setattr(where, "policy_for", lambda dense, _: Dense.parse(dense))
    monkeypatch.setattr(calls, "known", {})
    monkeypatch.setattr(conv_choice, "decided", decided)
    layer = MaskedConv2d(4, 6, 3, padding=1, mask_block=8, density=0.25)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    for side, times in ((24, 1), (24, 0), (104, 1)):
        x, mask = torch.randn(2, 4, side, 24), torch.rand(2, side // 8, 3) < 0.25
        y = layer(x, mask)
        plain = asked.copy()
        assert len(plain) == times
        asked.clear()
        torch.testing.assert_close(compiled(x, mask), y)
        assert asked == plain, "the same problem as without a graph"
        asked.clear()


@pytest.mark.gpu
def test_a_graph_races_both_on_a_gpu_while_it_is_traced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    monkeypatch.setattr(decision, "_decisions", {})
    layer = MaskedConv2d(64, 64, 3, padding=1, mask_block=16, density=0.2, device="cuda", dtype=torch.float16)
    x = torch.randn(2, 64, 128, 128, device="cuda", dtype=torch.float16)
    x = x.contiguous(memory_format=torch.channels_last)
    mask = torch.rand(2, 8, 8, device="cuda") < 0.2
    with torch.no_grad():
        y = torch.compile(layer, fullgraph=True)(x, mask)
        (first,) = decision.decisions()
        torch.testing.assert_close(y, layer(x, mask), rtol=1e-2, atol=1e-2)
    assert decision.decisions() == [first], "the same problem without a graph"
    with Store.open(tmp_path / "tuning.db") as store:
        probes = store.all_probes()
    assert {probe.called for probe in probes} == set(Called) and min(p.sparse_us for p in probes) > 0
    monkeypatch.setattr(decision, "_decisions", {})
    monkeypatch.setattr(calls, "known", {})
    monkeypatch.setattr(race.Race, "run", None)  # what another process recorded decides
    layer(x, mask)
    assert decision.decisions()[0][-1] == first[-1]


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("mask_of", MaskOf)
def test_dense_results_lose_their_dead_pixels_in_one_launch(
    place: str, mask_of: MaskOf, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operands stay as they are; with a gradient PyTorch does the same."""
    monkeypatch.setattr(calls, "known", {})
    torch.manual_seed(0)
    for dtype, channels in ((torch.float32, 5), (torch.float16, 8), (torch.bfloat16, 3), (torch.float64, 4)):
        x = torch.randn(2, channels, 13, 18).to(dtype).to(memory_format=order)
        w, bias = torch.randn(6, channels, 3, 3).to(dtype) / 6, torch.randn(6).to(dtype)
        mask, before = torch.rand(2, 3, 3) < 0.5, x.clone()
        options = {"block": (5, 7), "mask_of": mask_of, "padding": 1, "relu": True, "dense": "always"}
        with torch.no_grad():
            found = masked_conv2d(x, w, mask, bias, **options)
        right = masked_conv2d(x.clone().requires_grad_(), w, mask, bias, **options)
        torch.testing.assert_close(found, right.detach(), rtol=0, atol=0)
        assert torch.equal(x, before) and found.is_contiguous(memory_format=order)


def test_a_capture_is_decided_by_the_device_s_time(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {64: Decision(False, True, ""), 128: Decision(True, False, ""), 32: None}
    monkeypatch.setattr(conv_choice, "decided", lambda problem, *_: known[problem.height])
    dense: list[int] = []
    monkeypatch.setattr(conv_call, "dense_convolution", lambda *given: dense.append(1) or given[0])
    layer = MaskedConv2d(4, 6, 3, padding=1, mask_block=8)
    for captures, runs_kernel in (
        (False, {64: False, 128: True, 32: True}),
        (True, {64: True, 128: False, 32: True}),
        (False, {64: False, 128: True, 32: True}),
    ):
        monkeypatch.setattr(dispatch_decision, "is_capturing", lambda captures=captures: captures)
        for side, runs in runs_kernel.items():
            layer(torch.randn(1, 4, side, 16), torch.rand(1, side // 8, 2) < 0.5)
            assert bool(dense) is not runs
            dense.clear()


@pytest.mark.parametrize("trains", [False, True])
def test_what_a_capture_runs_was_made_before(trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call from Python is dense, and one in a graph is not: launches are made once, with those of gradients."""
    made: list[str] = []
    for where, name in ((conv_call, "launch_convolution"), (masked_conv_operators, "gradients")):
        real = getattr(where, name)
        monkeypatch.setattr(
            where, name, lambda *given, name=name, real=real: made.append(name) or real(*given)
        )
    monkeypatch.setattr(conv_choice, "decided", lambda *_: Decision(False, True, ""))
    monkeypatch.setattr(calls, "known", {})
    mask = torch.rand(2, 1, 2) < 0.5
    for captures in (False, False, True):
        monkeypatch.setattr(dispatch_decision, "is_capturing", lambda captures=captures: captures)
        x, w, bias = (tensor.requires_grad_(trains) for tensor in tensors())
        y = masked_conv2d(x, w, mask, bias, padding=1)
        assert made == ["launch_convolution", "gradients"][: 1 + trains] and y.requires_grad is trains


@pytest.mark.parametrize(
    ("dense", "decided", "expected"),
    [
        ("auto", {"masked_conv2d_weights": True, "masked_conv2d": True}, []),
        ("auto", {"masked_conv2d_weights": False, "masked_conv2d": True}, ["weights", "weights"]),
        ("auto", {"masked_conv2d_weights": True, "masked_conv2d": False}, ["x"]),
        ("auto", {"masked_conv2d_weights": None, "masked_conv2d": None}, []),
        ("never", {}, []),
    ],
)
def test_each_gradient_runs_as_is_decided_for_it(
    dense: str, decided: dict[str, bool | None], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those by x, by the weights and by the bias, which is a gradient by weights too; whatever ran forward."""
    ran: list[str] = []
    asked: list[str] = []

    def decide(
        task: Task, problem: Any, device: Any, enter: Any, policy: Dense, context: str = ""
    ) -> Decision | None:
        assert task is Task.CONVOLUTION
        if policy is not Dense.AUTO:
            return Decision.by_policy(policy)
        before = ran.copy()
        ours, other = enter().pair(Called.HOST)
        torch.testing.assert_close(ours(), other(), rtol=1e-3, atol=1e-3)
        ran[:] = before
        asked.append(problem.operator)
        found = decided[problem.operator]
        return None if found is None else Decision.always(found, "")

    def seen(name: str, function: Any) -> Any:
        return lambda *given: ran.append(name) or function(*given)

    monkeypatch.setitem(devices._gpus, torch.device("cpu"), backends.emulator_device())
    monkeypatch.setattr(calls, "known", {})
    for module in (conv_choice, weight_gradients):
        monkeypatch.setattr(module, "decide", decide)
    monkeypatch.setattr(conv_choice, "dense_convolution", seen("x", dense_convolution.dense_convolution))
    monkeypatch.setattr(
        weight_gradients, "dense_gradients", seen("weights", dense_convolution.dense_gradients)
    )
    monkeypatch.setattr(conv_choice, "policy_for", lambda dense, _: Dense.parse(dense))
    x, w, bias = (t.requires_grad_() for t in tensors())
    mask = torch.rand(2, 3, 5) < 0.5
    exact = torch.where(pixels(mask, (5, 4), x), functional.conv2d(x, w, bias, padding=1), 0)
    right = torch.autograd.grad(exact.square().sum(), (x, w, bias))
    with monkeypatch.context() as patch:
        patch.setattr(conv_choice, "decided", lambda *_: Decision.always(True, ""))
        y = masked_conv2d(x, w, mask, bias, block="5x4", padding=1, dense=dense)
    found = torch.autograd.grad(y.square().sum(), (x, w, bias))
    assert sorted(ran) == sorted(expected)
    assert set(asked) == decided.keys()
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_a_gradient_by_weights_is_raced_once_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    torch.manual_seed(0)
    x, dy = (torch.randn(2, 64, 64, 64, device="cuda").half() for _ in range(2))
    x, dy = (images.contiguous(memory_format=torch.channels_last) for images in (x, dy))
    words = PackedMask.of(torch.rand(2, 4, 4, device="cuda") < 0.5).words
    sides = [3, 3], [1, 1], [1, 1], [1, 1], [16, 16], 1, 0.5
    by_weights = torch.ops.sparsegen.masked_conv2d_weights
    for recorded in (False, True):
        monkeypatch.setattr(decision, "_decisions", {})
        monkeypatch.setattr(calls, "known", {})
        dw = by_weights(x, dy, words, *sides)
        ((task, problem, _),) = decision.decisions()
        assert task is Task.CONVOLUTION and problem.operator == "masked_conv2d_weights"
        for dense in ("never", "always"):
            torch.testing.assert_close(dw, by_weights(x, dy, words, *sides, dense), rtol=1e-2, atol=0.5)
        if not recorded:
            with Store.open(tmp_path / "tuning.db") as store:
                assert {probe.called for probe in store.all_probes()} == set(Called)
            assert "convolution called from Python" in lookup(problem=problem).explain()
            monkeypatch.setattr(race.Race, "run", None)  # what another process recorded decides


def test_gradients_of_dense_convolutions_search_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[tuple[int, ...]] = []
    real = dense_convolution.fastest_algorithms
    monkeypatch.setattr(
        dense_convolution, "fastest_algorithms", lambda x: searches.append(tuple(x.shape)) or real(x)
    )
    x, w, bias = (t.requires_grad_() for t in tensors())
    mask = torch.rand(2, 1, 2) < 0.5
    y = masked_conv2d(x, w, mask, bias, padding=1, dense="always")
    assert searches == [tuple(x.shape)]
    torch.autograd.grad(y.sum(), (x, w, bias))
    assert searches[1:] == [tuple(y.shape)]


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 5, 64), (3, 4, 65), (1, 7, 130)], ids=str)
def test_packing_is_one_launch_of_the_same_words(place: str, shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape) < 0.5
    for given in (mask, mask.flip(1).flip(1), mask.transpose(1, 2).contiguous().transpose(1, 2)):
        packed = PackedMask.of(given)
        assert packed.words.dtype is torch.int64 and torch.equal(packed.words, masks.words_of(mask))
        assert torch.equal(masked_conv_kernels.live_blocks(packed.words, (1, 1), shape[1:]), mask)


def test_words_of_another_mask_are_refused() -> None:
    x, w, _ = tensors()
    mask = torch.ones(2, 1, 2, dtype=torch.bool)
    for words in (torch.zeros(3, 1, dtype=torch.int64), torch.zeros(2, 1)):
        with pytest.raises(OperandError, match="mask: expected 2 words"):
            masked_conv2d(x, w, PackedMask(mask, words), padding=1, dense="never")


@pytest.mark.parametrize("mask_of", [MaskOf.OUTPUT, MaskOf.INPUT])
@pytest.mark.parametrize("layout", [ImageLayout.NHWC, ImageLayout.NCHW])
@pytest.mark.parametrize("is_whole", [False, True])
def test_both_ways_that_are_timed_give_the_same(is_whole: bool, mask_of: MaskOf, layout: ImageLayout) -> None:
    """The operands that are drawn fit the operator, and the two results differ in nothing but rounding."""
    problem = MaskedConv2dProblem(
        *(9, 10, 4, 6),
        batch=2,
        filter_size=FilterSize(3, 2),
        stride=Stride(2, 1),
        padding=Padding(1, 0),
        groups=Groups(2),
        mask_block=MaskBlock(2, 3),
        mask_of=mask_of,
        density=Density(1.0 if mask_of is MaskOf.INPUT else 0.5),
        layout=layout,
        epilogue=ConvEpilogue.BIAS,
    )
    results = [run() for run in conv_choice._both(problem, torch.device("cpu"), is_whole)]
    assert results[0].shape == (2, 6, problem.out_height, problem.out_width)
    assert bool((results[1] == 0).any()) == (mask_of is MaskOf.OUTPUT and not is_whole)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    x, w, bias = tensors()
    mask = torch.ones(2, 1, 2, dtype=torch.bool)
    with pytest.raises(OperandError, match=r"mask: expected \(2, 1, 1\) blocks of 16x16"):
        masked_conv2d(x[..., :15], w, mask, padding=1)
    with pytest.raises(OperandError, match="mask: expected bools"):
        masked_conv2d(x, w, mask.float(), padding=1)
    with pytest.raises(OperandError, match="relu=True needs a bias"):
        masked_conv2d(x, w, mask, padding=1, relu=True)
    with pytest.raises(OperandError, match="expected images"):
        masked_conv2d(x[:, :3], w, mask, padding=1)
    with pytest.raises(OperandError, match="weight: expected"):
        masked_conv2d(x, w.half(), mask, padding=1)
    with pytest.raises(OperandError, match="bias: expected 6 values"):
        masked_conv2d(x, w, mask, bias[:2], padding=1)
    with pytest.raises(ConfigError, match="padded by a number of zeros"):
        MaskedConv2d(4, 6, 3, padding=1, padding_mode="reflect")
    with pytest.raises(OperandError, match=r"x: expected floating-point numbers, got torch\.int32"):
        masked_conv2d(x.int(), w.int(), mask, padding=1)
    with pytest.raises(OperandError, match=r"mask: expected a torch\.Tensor, got numpy\.ndarray"):
        masked_conv2d(x, w, mask.numpy(), padding=1)
    with pytest.raises(OperandError, match=r"layer = Linear.* is no Conv2d"):
        MaskedConv2d.from_dense(nn.Linear(3, 3))


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("block", 0, "mask_block = 0 is no block"),
        ("stride", (1, 1, 1), "stride = .* is no stride"),
        ("padding", "same", "padding = 'same' is no padding"),
        ("dilation", -1, "dilation = -1 is no dilation"),
        ("groups", 0, "groups = 0 is no "),
        ("density", float("nan"), "density = nan is no density"),
        ("mask_of", "banana", "mask_of = 'banana' is none of"),
    ],
)
def test_options_that_are_none_are_refused_by_name(option: str, value: Any, words: str) -> None:
    x, w, _ = tensors()
    mask = torch.ones(2, 1, 2, dtype=torch.bool)
    with pytest.raises(ConfigError, match=words):
        masked_conv2d(x, w, mask, **{"padding": 1, option: value})
    if option in ("block", "density", "mask_of"):
        name = option.replace("block", "mask_block")
        with pytest.raises(ConfigError, match=words):
            MaskedConv2d(4, 6, 3, **{name: value})


def test_a_layer_tells_its_mask() -> None:
    layer = MaskedConv2d(4, 6, 3, padding=1, mask_block="8x16", density=0.25)
    assert layer.mask_block == (8, 16) and "mask_block=8x16, mask_of=output, density=0.25" in repr(layer)


def test_autocast_casts_as_for_a_dense_layer() -> None:
    torch.manual_seed(0)
    layer = MaskedConv2d(8, 8, 3, padding=1, mask_block=8)
    x, mask = torch.randn(2, 8, 16, 16), torch.rand(2, 2, 2) < 0.5
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = layer(x, mask)
        second = layer(first, mask)  # of the dtype that the first one gave
    assert first.dtype == second.dtype == torch.bfloat16
    torch.testing.assert_close(first.float(), layer(x, mask), atol=0.05, rtol=0.05)
    first.float().sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32


def test_no_images() -> None:
    layer = MaskedConv2d(8, 6, 3, padding=1, mask_block=8)
    assert layer(torch.zeros(0, 8, 16, 16), torch.zeros(0, 2, 2, dtype=torch.bool)).shape == (0, 6, 16, 16)
