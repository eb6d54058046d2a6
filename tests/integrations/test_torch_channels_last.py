"""Masked convolutions of planes, or of channels that no vector divides, by copies with channels innermost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuda_graphs import captured  # noqa: E402
from torch.nn import functional  # noqa: E402

from sparsegen.dispatch.chosen import Choice, How  # noqa: E402
from sparsegen.integrations.torch import masked_conv2d  # noqa: E402
from sparsegen.integrations.torch.calls import copied_operands  # noqa: E402
from sparsegen.integrations.torch.calls.launches import calls  # noqa: E402
from sparsegen.integrations.torch.convolution import (  # noqa: E402
    channels_last,
    image_copies,
    masked_conv_kernels,
    weight_gradients,
)
from sparsegen.integrations.torch.convolution.channels_last import ChannelsLastConvolution  # noqa: E402
from sparsegen.integrations.torch.convolution.channels_last_gradient import ChannelsLastGradient  # noqa: E402
from sparsegen.integrations.torch.convolution.packed_masks import PackedMask  # noqa: E402
from sparsegen.operators import Density, Groups, ImageLayout, MaskedConv2dProblem, MaskedConv2dWeightsProblem  # noqa: E402
from sparsegen.tuning.prediction.targets import find_target  # noqa: E402

PLANES, INNERMOST = torch.contiguous_format, torch.channels_last


def expected_us(choice: Choice, device: Any) -> float:
    """Stand-in for expected times by which all that may be copied is."""
    p = choice.problem
    has_planes = isinstance(p, MaskedConv2dProblem) and p.layout.has_planes
    return 1e9 if has_planes or p.channels % 8 else 1.0


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The problems that ran by copies, as all do that may; memory holds NaN before it is written."""
    found: list[Any] = []

    def noted(kind: Any) -> Any:
        class Noted(kind):  # type: ignore[misc]
            def __init__(self, problem: Any, copied: Any, *rest: Any) -> None:
                found.append(copied)
                super().__init__(problem, copied, *rest)

        return Noted

    def empty_tensors(torch: Any, shape: Any, dtype: Any, device: Any, order: Any = PLANES) -> Any:
        return lambda: torch.full(shape, float("nan"), dtype=dtype).contiguous(memory_format=order)

    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    monkeypatch.setattr(copied_operands, "expected_us", expected_us)
    for module in (channels_last, image_copies):
        monkeypatch.setattr(module, "empty_tensors", empty_tensors)
    monkeypatch.setattr(masked_conv_kernels, "ChannelsLastConvolution", noted(ChannelsLastConvolution))
    monkeypatch.setattr(weight_gradients, "ChannelsLastGradient", noted(ChannelsLastGradient))
    calls.known.clear()
    return found


def pixels(mask: Any, block: tuple[int, int], like: Any) -> Any:
    wide = mask[:, None].repeat_interleave(block[0], 2).repeat_interleave(block[1], 3)
    return wide[:, :, : like.shape[2], : like.shape[3]]


@pytest.mark.parametrize("mask_of", ["output", "input", "any_input"])
@pytest.mark.parametrize(
    ("channels", "order", "sides"),
    [
        (5, PLANES, {"padding": 1}),
        (8, PLANES, {"padding": 2, "dilation": 2}),
        (3, INNERMOST, {"stride": 2, "padding": 1}),
        (21, INNERMOST, {"stride": (1, 3), "padding": (0, 2)}),
    ],
)
def test_results_are_right(
    channels: int,
    order: Any,
    sides: dict[str, Any],
    mask_of: str,
    copied: list[Any],
) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, generator=generator).to(torch.bfloat16)

    x, bias = drawn(2, channels, 37, 44).to(memory_format=order), drawn(7)
    for weight in (drawn(7, channels, 3, 3), drawn(7, channels, 3, 3).to(memory_format=INNERMOST)):
        dense = functional.conv2d(x.float(), weight.float(), bias.float(), **sides)
        over = dense if mask_of == "output" else x
        block = (8, 16)
        blocks = -(-over.shape[2] // block[0]), -(-over.shape[3] // block[1])
        for share in (0.3, 0.0, 1.0):
            mask = torch.rand(2, *blocks, generator=generator) < share
            given = x
            if mask_of == "input":  # as it promises
                given = torch.where(pixels(mask, block, x), x, 0).contiguous(memory_format=order)
            seen = given.float()
            if mask_of == "any_input":
                seen = torch.where(pixels(mask, block, x), seen, 0)
            expected = functional.conv2d(seen, weight.float(), bias.float(), **sides).relu()
            if mask_of == "output":
                expected = torch.where(pixels(mask, block, expected), expected, 0)
            for packed in (mask, replace(PackedMask.of(mask), is_earlier=True)):
                found = masked_conv2d(
                    given, weight, packed, bias, block=block, mask_of=mask_of, relu=True, **sides
                )
                assert found.is_contiguous(memory_format=order)
                torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)
    assert copied and all(p.channels % 8 == 0 and not p.layout.has_planes for p in copied)


@pytest.mark.parametrize(
    ("channels", "filters", "order", "sides"),
    [
        (5, 6, PLANES, {"padding": 1, "block": 8}),
        (8, 16, PLANES, {"padding": 2, "dilation": 2, "block": (16, 8)}),
        (3, 11, INNERMOST, {"stride": 2, "padding": 0, "block": (5, 7)}),
    ],
)
def test_gradients(channels: int, filters: int, order: Any, sides: dict[str, Any], copied: list[Any]) -> None:
    """The one by x is a convolution too, if the stride is 1."""
    torch.manual_seed(1)
    drawn = torch.randn(2, channels, 20, 27), torch.randn(filters, channels, 3, 3) / 6
    ours = [t.half().contiguous(memory_format=order).requires_grad_() for t in drawn]
    theirs = [t.detach().float().requires_grad_() for t in ours]
    windows = {name: side for name, side in sides.items() if name != "block"}
    y = functional.conv2d(*theirs, **windows)
    block = (sides["block"],) * 2 if isinstance(sides["block"], int) else sides["block"]
    mask = torch.rand(2, -(-y.shape[2] // block[0]), -(-y.shape[3] // block[1])) < 0.4
    found = masked_conv2d(*ours, mask, **sides)
    seed = torch.randn_like(y).half().contiguous(memory_format=order)
    found.backward(seed)
    y.backward(torch.where(pixels(mask, block, y), seed.float(), 0))
    for own, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.grad.float(), right.grad, rtol=2e-2, atol=5e-2)
    kinds = {type(p) for p in copied}
    assert MaskedConv2dWeightsProblem in kinds and MaskedConv2dProblem in kinds


def problem(**changes: Any) -> MaskedConv2dProblem:
    usual = {
        "channels": 80,
        "filters": 40,
        "dtype": "float16",
        "padding": 1,
        "mask_block": 16,
        "density": 0.1,
    }
    return MaskedConv2dProblem.of((264, 432), **{**usual, "layout": ImageLayout.NCHW, **changes})


def test_what_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planes and odd channels where they should gain by it; nothing that was measured as it lies."""
    h200 = find_target("nvidia-h200").device
    planes = problem(filters=80)
    found = channels_last.with_channels_last(planes, h200)
    assert found is not None and not found.layout.has_planes and found.channels == 80
    padded = channels_last.with_channels_last(
        problem(layout=ImageLayout.NHWC, channels=77, filter_size=5), h200
    )
    assert padded is not None and padded.channels == 80
    for layout, filters in (
        (ImageLayout.NCHW, 48),
        (ImageLayout.NHWC, 43),
    ):  # the result is copied, or is not
        odd = channels_last.with_channels_last(problem(layout=layout, channels=77, filters=43), h200)
        assert odd is not None and odd.filters == filters
    for as_it_is in (
        problem(filters=16),  # few: `plane_conv` takes as long as the copies and the kernel behind them
        problem(layout=ImageLayout.NHWC),
        problem(dtype="float32"),
        problem(channels=75, filters=45, groups=Groups(15)),
        problem(
            channels=3, filters=8, layout=ImageLayout.NHWC, filter_size=1, padding=0, density=Density(1.0)
        ),
    ):
        assert channels_last.with_channels_last(as_it_is, h200) is None, as_it_is
    few = replace(
        problem(layout=ImageLayout.NHWC, channels=3, filter_size=7, stride=3, batch=6), density=Density(0.046)
    )
    assert channels_last.with_channels_last(replace(few, filters=160), h200) is not None
    assert channels_last.with_channels_last(replace(few, filters=159), h200) is None  # stores single elements
    assert channels_last.with_channels_last(planes, None) is None
    measured = copied_operands._choice_of

    def exact(p: MaskedConv2dProblem, device: Any) -> Any:
        choice = measured(p, device)
        return replace(choice, how=How.EXACT, expected_us=1e9) if p.layout.has_planes else choice

    monkeypatch.setattr(copied_operands, "_choice_of", exact)
    assert channels_last.with_channels_last(planes, h200) is None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("channels", "order", "mask_of"),
    [(80, PLANES, "output"), (53, INNERMOST, "output"), (61, PLANES, "any_input"), (3, INNERMOST, "input")],
)
def test_graphs_follow_their_masks_on_a_gpu(
    channels: int, order: Any, mask_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result and all gradients, in replays with new masks and new images, by copies."""
    monkeypatch.setattr(copied_operands, "expected_us", expected_us)
    monkeypatch.setattr(calls, "known", {})
    generator = torch.Generator("cuda").manual_seed(0)

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device="cuda").half()

    x, weight, bias = drawn(2, channels, 150, 203), drawn(72, channels, 3, 3) / 30, drawn(72)
    x, sides = x.to(memory_format=order), {"padding": 1, "block": 16, "density": 0.3}
    mask = torch.ones(2, 10, 13, device="cuda", dtype=torch.bool)
    leaves = [one.requires_grad_() for one in (x, weight, bias)]
    seed = drawn(2, 72, 150, 203).to(memory_format=order)

    def step() -> tuple[Any, ...]:
        y = masked_conv2d(leaves[0], leaves[1], mask, leaves[2], mask_of=mask_of, dense="never", **sides)
        return y, *torch.autograd.grad(y, leaves, seed)

    graph, found = captured(step)
    for share in (0.3, 0.0, 1.0, 0.1):
        with torch.no_grad():
            mask.copy_(torch.rand(mask.shape, generator=generator, device="cuda") < share)
            live = pixels(mask, (16, 16), x)
            x.copy_(torch.where(live, drawn(*x.shape), 0) if mask_of == "input" else drawn(*x.shape))
        graph.replay()
        wide = [one.detach().double().requires_grad_() for one in leaves]
        counted = torch.where(live, wide[0], 0) if mask_of == "any_input" else wide[0]
        y = functional.conv2d(counted, *wide[1:], padding=1)
        if mask_of == "output":
            y = torch.where(live, y, 0)
        expected = y, *torch.autograd.grad(y, wide, seed.double())
        for own, right in zip(found, expected, strict=True):
            error = (own.double() - right).abs().max() / right.abs().max().clamp(min=1e-3)
            assert error < 5e-3, (share, tuple(own.shape), error)
