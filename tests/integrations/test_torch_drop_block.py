"""`DropBlockConv2d`: what it drops and computes, its gradients; and dropout in evaluation."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from sparsegen.errors import ConfigError, OperandError  # noqa: E402
from sparsegen.integrations.torch import DropBlockConv2d, DropoutLinear  # noqa: E402


def layer(p: float = 0.4, **options: Any) -> DropBlockConv2d:
    torch.manual_seed(0)
    return DropBlockConv2d(4, 6, 3, p, "4x8", **{"padding": 1, "dense": "never", **options})


def images() -> Any:
    torch.manual_seed(1)
    return torch.randn(2, 4, 14, 21).contiguous(memory_format=torch.channels_last)


def expected(conv: DropBlockConv2d, x: Any, live: Any) -> Any:
    """The convolution of what stays, scaled."""
    wide = live[:, None].repeat_interleave(4, 2).repeat_interleave(8, 3)[:, :, : x.shape[2], : x.shape[3]]
    kept = torch.where(wide, x, 0) / (1 - conv.p)
    sides = {"stride": conv.stride, "padding": conv.padding, "dilation": conv.dilation, "groups": conv.groups}
    return functional.conv2d(kept, conv.weight, conv.bias, **sides)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "groups": 2, "bias": False}], ids=str)
def test_blocks_are_dropped_and_the_rest_is_scaled(options: dict[str, Any], place: str) -> None:
    conv, x = layer(**options), images().requires_grad_()
    torch.manual_seed(5)
    live = conv.drawn(x)
    assert live.shape == (2, 4, 3) and live.any() and not live.all()
    torch.manual_seed(5)
    found = conv(x)
    wanted = expected(conv, x, live)
    assert torch.allclose(found, wanted, atol=2e-3)
    towards = torch.randn_like(wanted)
    for one, other in zip(
        torch.autograd.grad(found, (x, *conv.parameters()), towards),
        torch.autograd.grad(wanted, (x, *conv.parameters()), towards),
        strict=True,
    ):
        assert torch.allclose(one, other, atol=2e-2)


def test_it_drops_the_share_that_is_asked_for() -> None:
    torch.manual_seed(3)
    live = layer(0.3).drawn(torch.empty(64, 4, 64, 64))
    assert live.float().mean().item() == pytest.approx(0.7, abs=0.02)


def test_in_evaluation_it_is_the_dense_layer() -> None:
    conv, x = layer().eval(), images()
    assert torch.equal(conv(x), functional.conv2d(x, conv.weight, conv.bias, padding=1))
    assert torch.equal(layer(0.0)(x), conv(x))


def test_it_shares_a_convolutions_parameters() -> None:
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1).eval()
    made = DropBlockConv2d.from_conv2d(conv, 0.2, 4)
    assert made.weight is conv.weight and made.bias is conv.bias and not made.training
    assert torch.equal(made(images()), conv(images()))
    assert copy.deepcopy(made).state_dict().keys() == conv.state_dict().keys()


@pytest.mark.parametrize(
    "make", [lambda: layer(), lambda: DropoutLinear(32, 8, 0.5, 16)], ids=["conv", "linear"]
)
def test_dropout_in_evaluation(make: Any) -> None:
    module = make().eval()
    x = images() if isinstance(module, nn.Conv2d) else torch.randn(64, 32)
    with torch.no_grad():
        still = module(x)
        assert module.mc_dropout() is module
        drawn = [module(x) for _ in range(2)]
        assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], still)
        torch.manual_seed(9)
        one = module(x)
        torch.manual_seed(9)
        assert torch.equal(one, module(x))  # drawn by PyTorch's generator
        assert not torch.equal(copy.deepcopy(module)(x), still)
        assert torch.equal(module.mc_dropout(False)(x), still)


def test_the_mean_of_many_calls_is_the_dense_result() -> None:
    torch.manual_seed(0)
    module, x = DropoutLinear(64, 4, 0.5, 16).eval(), torch.randn(16, 64)
    with torch.no_grad():
        still = module(x)
        mean = torch.stack([module.mc_dropout()(x) for _ in range(2000)]).mean(0)
    assert torch.allclose(mean, still, atol=0.1)


def test_what_is_refused() -> None:
    with pytest.raises(OperandError, match="outside"):
        layer(1.0)
    with pytest.raises(ConfigError, match="reflect"):
        layer(padding_mode="reflect")
    with pytest.raises(ConfigError):
        DropBlockConv2d(4, 6, 3, 0.1, "0x8")
    with pytest.raises(OperandError, match="4 channels"):
        layer()(torch.randn(2, 3, 8, 8))
    with pytest.raises(OperandError):
        layer().mc_dropout("yes")  # type: ignore[arg-type]


def test_autocast_casts_it_as_a_convolution(place: str) -> None:
    net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), layer())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(images())
    assert y.dtype is torch.bfloat16
    y.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in net.parameters())


def test_padding_by_a_word() -> None:
    conv = DropBlockConv2d.from_conv2d(nn.Conv2d(4, 6, (3, 5), padding="same"), 0.3, 4)
    assert conv(images()).shape == (2, 6, 14, 21) and conv.padding == (1, 2)


def test_no_images() -> None:
    assert layer()(images()[:0]).shape == (0, 6, 14, 21)
