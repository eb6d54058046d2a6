"""`masked_sequential`, `masked_batch_norm`, `convert_convolutions`: against dense layers, in graphs, refusals."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuda_graphs import captured  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, prune  # noqa: E402

from sparsegen.errors import ConfigError, OperandError  # noqa: E402
from sparsegen.integrations.torch import (  # noqa: E402
    MaskedConv2d,
    MaskSource,
    convert_convolutions,
    masked_batch_norm,
    masked_sequential,
)
from sparsegen.masks import reduce_mask  # noqa: E402

BLOCK = 4


def layers(bias: bool = True) -> list[nn.Module]:
    """Conv-Norm-Act blocks with a stride, an activation that is not fused, a pool and upsampling."""
    torch.manual_seed(1)
    chain = [
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=bias), nn.SiLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(8, 4, 1, bias=bias), nn.Upsample(scale_factor=2)),
    ]
    norm = chain[1]
    norm.running_var.uniform_(0.5, 2.0)
    if bias:
        norm.running_mean.normal_()
    return chain


def images(device: str = "cpu") -> tuple[Any, Any]:
    """Images that are zero outside of some blocks, and their mask."""
    torch.manual_seed(0)
    mask = torch.rand(2, 12, 14) < 0.03
    mask[0, 2, 3] = True
    x = torch.randn(2, 3, 48, 56) * pixels(mask, 48, 56)
    return x.to(device), mask.to(device)


def pixels(mask: Any, height: int, width: int) -> Any:
    wide = mask[:, None].repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)
    return wide[:, :, :height, :width]


def test_without_shifts_growing_masks_are_exact(place: str) -> None:
    chain = layers(bias=False)
    x, mask = images()
    net = masked_sequential(nn.Sequential(*chain), mask_block=BLOCK).eval()
    dense = nn.Sequential(*chain).eval()
    with torch.no_grad():
        for _ in range(2):  # the folded norm is made, and kept
            y, behind = net(x, mask)
            torch.testing.assert_close(y, dense(x), rtol=1e-4, atol=1e-5)
    assert behind.shape == (2, 6, 7) and not behind.all()


def test_a_changed_norm_is_folded_anew() -> None:
    chain = layers(bias=False)
    x, mask = images()
    net = masked_sequential(*chain, mask_block=BLOCK).eval()
    with torch.no_grad():
        net(x, mask)
        chain[1].weight.mul_(3)
        torch.testing.assert_close(net(x, mask)[0], nn.Sequential(*chain).eval()(x), rtol=1e-4, atol=1e-5)


def test_a_weight_that_is_made_anew_is_folded_anew() -> None:
    conv, norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
    parametrizations.weight_norm(conv)
    x, mask = torch.randn(1, 3, 8, 8), torch.ones(1, 2, 2, dtype=torch.bool)
    net = masked_sequential(conv, norm, mask_block=BLOCK).eval()
    with torch.no_grad():
        for _ in range(4):  # whose memory is used again
            torch.testing.assert_close(net(x, mask)[0], norm(conv(x)), rtol=1e-4, atol=1e-5)
            conv.parametrizations.weight.original0.mul_(2)
    with torch.inference_mode():
        made = masked_sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), mask_block=BLOCK).eval()
        for _ in range(2):
            torch.testing.assert_close(
                made(x, mask)[0], made.layers[1](made.layers[0](x)), rtol=1e-4, atol=1e-5
            )
            made.layers[0].weight.mul_(2)


@pytest.mark.parametrize(
    "change",
    [
        lambda conv: prune.l1_unstructured(conv, "weight", 0.5),
        lambda conv: conv.register_forward_hook(lambda *_: None),
        lambda conv: setattr(conv, "forward", conv.forward),
    ],
    ids=["pruned", "hooked", "replaced"],
)
def test_what_a_call_of_a_layer_runs_beside_it_is_not_passed_over(change: Any) -> None:
    conv = nn.Conv2d(3, 4, 3)
    change(conv)
    with pytest.raises(ConfigError, match=r"layer 1 \(Conv2d\): hooks"):
        masked_sequential(nn.ReLU(), conv)


@pytest.mark.parametrize("grows", [True, False])
def test_each_layer_computes_its_blocks_and_leaves_zeros(grows: bool) -> None:
    chain = layers()
    x, mask = images()
    net = masked_sequential(*chain, mask_block=BLOCK, grows=grows).eval()
    with torch.no_grad():
        y, behind = net(x, mask)
        now, live = x, mask
        for layer in chain:
            before, now = now.shape[2:], layer.eval()(now)
            if isinstance(layer, nn.Conv2d):
                one = masked_sequential(layer, mask_block=BLOCK, grows=grows)
                live = one(torch.zeros(2, layer.in_channels, *before), live)[1]
            elif isinstance(layer, nn.MaxPool2d | nn.Upsample):
                live = masked_sequential(layer, mask_block=BLOCK)(torch.zeros(2, 1, *before), live)[1]
            now = now * pixels(live, *now.shape[2:])
        assert torch.equal(behind, live)
    torch.testing.assert_close(y, now, rtol=1e-4, atol=1e-5)


def test_norms_in_training_know_live_pixels_alone() -> None:
    x, mask = images()
    live = pixels(mask, 48, 56)
    norm = nn.BatchNorm2d(3, momentum=0.2)
    norm.weight.data.uniform_(0.5, 2)
    norm.bias.data.normal_()
    alone = copy.deepcopy(norm)
    values = x.permute(0, 2, 3, 1)[live[:, 0]]
    expected = alone(values.t()[None, :, :, None])[0, :, :, 0].t()
    found = masked_batch_norm(x, live, norm)
    torch.testing.assert_close(found.permute(0, 2, 3, 1)[live[:, 0]], expected, rtol=1e-4, atol=1e-5)
    assert not found[~live.expand_as(found)].any()
    for name, buffer in alone.named_buffers():
        torch.testing.assert_close(norm.get_buffer(name), buffer, rtol=1e-4, atol=1e-5)
    assert not masked_batch_norm(x, torch.zeros_like(live), norm).any(), "no live pixel is no NaN"


def test_a_chain_trains() -> None:
    x, mask = images()
    net = masked_sequential(*layers(), mask_block=BLOCK).double()
    x = x.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: net.eval()(x, mask)[0], (x,), fast_mode=True, atol=1e-5)
    net.train()(x, mask)[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_chains_are_compiled_whole() -> None:
    x, mask = images()
    net = masked_sequential(*layers(), mask_block=BLOCK).eval()
    with torch.no_grad():
        compiled = torch.compile(net, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x, mask)[0], net(x, mask)[0])


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.down = nn.Conv2d(6, 6, 3, stride=2, padding=1)
        self.same = nn.Conv2d(6, 6, 3, padding=1, padding_mode="reflect")
        self.up = nn.Upsample(scale_factor=2)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.first(x))
        return x + self.up(self.same(self.down(x)))


def test_converted_networks_follow_a_source(place: str) -> None:
    torch.manual_seed(0)
    x, mask = images()
    dense = Residual().eval()
    net, source = copy.deepcopy(dense), MaskSource(BLOCK)
    report = convert_convolutions(net, source, density=0.2)
    assert report.converted == ("first", "down")
    assert report.dense == {"same": "it is not padded by a number of zeros"} and "2 convolutions" in str(
        report
    )
    with torch.no_grad():
        assert torch.equal(net(x), dense(x)), "without a mask it is the dense network"
        source.set(torch.ones_like(mask), (48, 56))
        torch.testing.assert_close(net(x), dense(x), rtol=1e-4, atol=1e-4)
        source.set(mask, (48, 56))
        live = pixels(mask, 48, 56)
        first = net.first(x)
        torch.testing.assert_close(first, dense.first(x) * live, rtol=1e-4, atol=1e-4)
        coarse = source.at((24, 28))
        torch.testing.assert_close(
            net.down(first), dense.down(first) * pixels(coarse, 24, 28), rtol=1e-4, atol=1e-4
        )
    assert (
        coarse.shape == (2, 6, 7)
        and source.at((24, 28)) is coarse
        and net.first.weight is not dense.first.weight
    )


def test_what_masks_do_not_go_through_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"layer 1 \(Sigmoid\): masks go through"):
        masked_sequential(nn.Conv2d(3, 3, 1), nn.Sigmoid())
    with pytest.raises(ConfigError, match=r"layer 0 \(Conv2d\): a masked convolution is padded"):
        masked_sequential(nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect"))
    with pytest.raises(ConfigError, match="ceil_mode"):
        masked_sequential(nn.MaxPool2d(2, ceil_mode=True))
    with pytest.raises(ConfigError, match="nearest pixel"):
        masked_sequential(nn.Upsample(scale_factor=2, mode="bilinear"))
    with pytest.raises(ConfigError, match="the model is a convolution itself"):
        convert_convolutions(nn.Conv2d(3, 3, 3), MaskSource())
    with pytest.raises(ConfigError, match="it has none"):
        convert_convolutions(nn.Sequential(nn.ReLU()), MaskSource())
    with pytest.raises(ConfigError, match="it is a MaskedConv2d"):
        convert_convolutions(nn.Sequential(MaskedConv2d(3, 3, 3)), MaskSource())
    with pytest.raises(OperandError, match="model = None is no Module"):
        convert_convolutions(None, MaskSource())
    with pytest.raises(OperandError, match="source = None is no MaskSource"):
        convert_convolutions(nn.Sequential(nn.Conv2d(3, 3, 3)), None)
    with pytest.raises(ConfigError, match="density = 0 is no density"):
        masked_sequential(nn.Conv2d(3, 3, 1), density=0)
    with pytest.raises(OperandError, match="the size of the images"):
        MaskSource().set(torch.ones(1, 2, 2, dtype=torch.bool))


@pytest.mark.gpu
def test_graphs_follow_their_mask() -> None:
    """The mask is made of scores inside the graph, for a chain and for a converted network."""
    x, _ = images("cuda")
    chain = masked_sequential(*layers(), mask_block=BLOCK).cuda().eval()
    net, source = Residual().cuda().eval(), MaskSource(BLOCK, margin=2)
    convert_convolutions(net, source)
    scores = torch.rand(2, 48, 56, device="cuda")

    def run() -> tuple[Any, Any]:
        mask = reduce_mask(scores, BLOCK, 0.9)
        source.set(mask, (48, 56))
        return chain(x, mask)[0], net(x)

    with torch.no_grad():
        graph, found = captured(run)
        for _ in range(3):
            scores.uniform_(0, 1.0)
            x.normal_()
            graph.replay()
            torch.cuda.synchronize()
            replayed = [y.clone() for y in found]
            for one, other in zip(replayed, run(), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_autocast_casts_every_convolution() -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1)
    network = masked_sequential(*layers, mask_block=8).eval()
    x, mask = torch.randn(2, 8, 16, 16), torch.rand(2, 2, 2) < 0.5
    with torch.no_grad():
        wanted, _ = network(x, mask)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, _ = network(x, mask)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, atol=0.05, rtol=0.05)


def test_convolutions_whose_weight_is_made_of_others_stay_dense() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.Conv2d(4, 4, 3))
    report = convert_convolutions(model, MaskSource(block=8))
    assert report.converted == ("1",) and "parametrized" in report.dense["0"]


def test_a_convolution_under_two_names_follows_the_mask_as_one() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(4, 4, 3, padding=1)
            self.again = self.first

        def forward(self, x: Any) -> Any:
            return self.again(self.first(x))

    model, source = Twice(), MaskSource(4)
    assert convert_convolutions(model, source).converted == ("first", "again")
    assert model.first is model.again
    source.set(torch.zeros(1, 2, 2, dtype=torch.bool), (8, 8))
    assert not model(torch.randn(1, 4, 8, 8)).any()
