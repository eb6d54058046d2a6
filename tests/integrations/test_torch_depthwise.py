"""Depthwise convolutions in `convert`: a kernel with bias and ReLU in it where the model is faster so."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from sparsegen.dispatch.decision import Decision  # noqa: E402
from sparsegen.dispatch.options import Dense  # noqa: E402
from sparsegen.errors import ConfigError, OperandError  # noqa: E402
from sparsegen.integrations.torch import DepthwiseConv2d, convert  # noqa: E402
from sparsegen.integrations.torch.calls.activations import Activation  # noqa: E402
from sparsegen.integrations.torch.calls.launches import calls  # noqa: E402
from sparsegen.integrations.torch.convolution import conv_choice, dense_convolution  # noqa: E402
from sparsegen.integrations.torch.convolution.depthwise import is_depthwise  # noqa: E402
from sparsegen.integrations.torch.models import conversion  # noqa: E402
from sparsegen.integrations.torch.models.in_situ import decide  # noqa: E402
from sparsegen.integrations.torch.models.model_clock import Arrange, Run  # noqa: E402


def separable(channels: int = 8, stride: int = 1) -> nn.Sequential:
    """A depthwise-separable layer as in MobileNet, whose 1 × 1 filters are pruned."""
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, 16, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
    )
    with torch.no_grad():
        made[3].weight.mul_(torch.rand_like(made[3].weight) < 0.2)
        for norm in (made[1], made[4]):
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)
    return made.eval().requires_grad_(False)


def images(channels: int = 8) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, channels, 9, 11)


class Clock:
    """Calls both arrangements, and says how many times as long the later one takes."""

    captured = True

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def compare(self, run: Run, first: Arrange, second: Arrange) -> tuple[float, float]:
        for arrange in (first, second):
            arrange()
            run()
        return 1.0, self._factor


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_they_take_the_norm_and_the_activation(stride: int, order: Any, place: str) -> None:
    made, x = separable(stride=stride), images().contiguous(memory_format=order)
    wanted = made(x)
    report = convert(made, dense="never", fold_norms=True)
    assert [(one.name, one.activation, one.sparsity) for one in report.converted if one.name == "0"] == [
        ("0", Activation.RELU, 0.0)
    ]
    assert isinstance(made[0], DepthwiseConv2d) and isinstance(made[2], nn.Identity)
    assert made[0].run_dense is Dense.NEVER
    found = made(x)
    assert torch.allclose(found, wanted, atol=1e-4) and found.stride() == wanted.stride()


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_several_images(
    stride: int, dtype: torch.dtype, order: Any, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel computes all of them in one call."""
    monkeypatch.setattr(nn.Conv2d, "forward", None)
    torch.manual_seed(2)
    dense = nn.Conv2d(24, 24, (3, 5), stride, (1, 2), groups=24).to(dtype).requires_grad_(False)
    layer = DepthwiseConv2d.from_dense(dense)
    layer.activation = Activation.RELU
    for count in (3, 5):
        x = torch.randn(count, 24, 13, 22, dtype=dtype).contiguous(memory_format=order)
        wide = [t.float() for t in (x, dense.weight, dense.bias)]
        wanted = torch.relu(torch.conv2d(*wide, (stride,) * 2, (1, 2), groups=24))
        found = layer(x)
        torch.testing.assert_close(
            found, wanted.to(dtype), atol=2e-2 if dtype.itemsize == 2 else 1e-5, rtol=1e-2
        )
        assert found.is_contiguous(memory_format=order)


def test_pytorch_s_convolution_runs_where_it_takes_less_time(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks live, so that its result is not masked."""
    asked: list[bool] = []

    def decided(problem: Any, device: Any, dense: Dense, is_whole: bool) -> Decision:
        asked.append(is_whole)
        return Decision.always(False, "a test says so")

    monkeypatch.setattr(conv_choice, "decided", decided)
    monkeypatch.setattr(calls, "known", {})
    monkeypatch.setattr(dense_convolution, "zeroed", None)
    dense = nn.Conv2d(8, 8, 3, groups=8).requires_grad_(False)
    layer, x = DepthwiseConv2d.from_dense(dense), images()
    layer.activation = Activation.RELU
    assert torch.equal(layer(x), torch.relu(dense(x)))
    assert asked == [True]


@pytest.mark.parametrize(("factor", "is_ours"), [(0.5, True), (2.0, False)])
def test_they_are_tried_in_the_model(
    factor: float, is_ours: bool, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "decide", lambda *args, **named: decide(*args, Clock(factor), **named))
    made, x = separable(), images()
    wanted = made(x)
    report = convert(made, example_inputs=x, fold_norms=True)
    assert isinstance(made[0], DepthwiseConv2d) == is_ours
    assert not is_ours or made[0].run_dense is Dense.AUTO, "trials alone never run another"
    assert ("0" in report.in_situ.kept) == is_ours and isinstance(made[1], nn.Identity)
    assert isinstance(made[2], nn.Identity) == is_ours
    assert torch.allclose(made(x), wanted, atol=1e-4)
    assert is_ours or "no faster with it sparse" in {one.name: one.reason for one in report.dense}["0"]


def test_without_inputs_they_stay() -> None:
    report = convert(separable(), tokens=64)
    reasons = {one.name: one.reason for one in report.dense}
    assert reasons["0"] == "a convolution of 8 groups: give example_inputs to time it beside a kernel of ours"


def test_an_activation_needs_a_bias_and_is_relu() -> None:
    layer = DepthwiseConv2d.from_dense(nn.Conv2d(4, 4, 3, groups=4))
    assert layer.takes(Activation.RELU) and not layer.takes(Activation.GELU)
    assert not DepthwiseConv2d.from_dense(nn.Conv2d(4, 4, 3, groups=4, bias=False)).takes(Activation.RELU)
    with pytest.raises(ConfigError, match="run_dense"):
        DepthwiseConv2d.from_dense(nn.Conv2d(4, 4, 3, groups=4), run_dense="often")


@pytest.mark.parametrize(
    "other",
    [
        nn.Conv2d(4, 8, 3, groups=4),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 9, groups=4),
        nn.Conv2d(4, 4, 3, groups=4, padding=1, padding_mode="reflect"),
        nn.Conv2d(4, 4, 3, groups=4, dtype=torch.float64),
    ],
    ids=str,
)
def test_others_are_left(other: nn.Conv2d) -> None:
    assert not is_depthwise(other)
    with pytest.raises(OperandError, match="one filter for each channel"):
        DepthwiseConv2d.from_dense(other)


def test_gradients_and_autocast_go_by_pytorch(place: str) -> None:
    dense = nn.Conv2d(8, 8, 3, padding="same", groups=8)
    layer, x = DepthwiseConv2d.from_dense(dense), images()
    layer.activation = Activation.RELU
    wanted = torch.relu(dense(x))
    wanted.sum().backward()
    expected = dense.weight.grad.clone()
    dense.weight.grad = None
    layer(x).sum().backward()
    assert torch.allclose(dense.weight.grad, expected), "both have one weight"
    with torch.no_grad():
        assert torch.allclose(layer(x), wanted, atol=1e-5)
        assert layer(x[:0]).shape == wanted[:0].shape and layer(x[0]).shape == wanted[0].shape
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
    layer.activation = Activation.NONE
    with torch.no_grad(), pytest.raises((OperandError, RuntimeError)):
        layer(x[:, :3])


def test_compiled_and_exported_they_compute_the_same(place: str) -> None:
    made, x = separable(), images()
    wanted = made(x)
    convert(made, dense="never", fold_norms=True)
    with torch.no_grad():
        exported = torch.export.export(made, (x,)).module()
        assert torch.allclose(exported(x), wanted, atol=1e-4)
        assert torch.allclose(torch.compile(made, backend="eager")(x), wanted, atol=1e-4)
        assert torch.allclose(made(x), wanted, atol=1e-4), "the tensors of a trace are not kept"
