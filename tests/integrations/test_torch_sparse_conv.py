"""`SparseConv2d`: pruned filters against the dense layer with zeros, gradients, what is skipped, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from sparsegen.errors import ConfigError, OperandError, PruningError  # noqa: E402
from sparsegen.integrations.torch import SparseConv2d  # noqa: E402

SIDES: list[dict[str, Any]] = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (2, 0), "dilation": (1, 2), "bias": False},
    {"kernel_size": 1},
]


def pruned(**sides: Any) -> tuple[Any, Any]:
    """A dense layer, some of whose taps and channels are zero, and images."""
    torch.manual_seed(0)
    dense = nn.Conv2d(8, 6, **sides)
    with torch.no_grad():
        dense.weight.mul_(torch.rand_like(dense.weight) < 0.4)
        dense.weight[:, 2] = 0
        if dense.weight[0, 0].numel() > 1:
            dense.weight[:, :, 0, 0] = 0
    return dense, torch.randn(2, 8, 9, 11)


@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_it_is_the_dense_layer_with_zeros(place: str, sides: dict[str, Any]) -> None:
    dense, x = pruned(**sides)
    layer = SparseConv2d.from_dense(dense, run_dense="never")
    y = layer(x)
    torch.testing.assert_close(y, dense(x), rtol=1e-4, atol=1e-5)
    assert y.is_contiguous()
    y = layer(x.contiguous(memory_format=torch.channels_last))
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_what_no_filter_reads_is_not_gathered() -> None:
    dense, x = pruned(kernel_size=3, padding=1)
    layer = SparseConv2d.from_dense(dense)
    taps = layer._taps
    assert [tap for tap, _ in taps] == list(range(1, 9))
    read = layer.columns
    assert not (read % 8 == 2).any() and not (read // 8 == 0).any()
    assert layer._gathered(x.permute(0, 2, 3, 1), 9, 11).shape[-1] == len(read) == layer.product.in_features
    assert "8 of 9 taps" in repr(layer)


def test_gradients_and_training() -> None:
    dense, x = pruned(kernel_size=3, padding=1)
    layer = SparseConv2d.from_dense(dense).double()
    assert torch.autograd.gradcheck(layer, (x.double().requires_grad_(),), fast_mode=True)
    layer(x.double()).square().sum().backward()
    wide = dense.double()
    wide(x.double()).square().sum().backward()
    by_taps = wide.weight.grad.permute(0, 2, 3, 1).flatten(1)[wide.weight.permute(0, 2, 3, 1).flatten(1) != 0]
    torch.testing.assert_close(layer.product.values.grad, by_taps)
    torch.testing.assert_close(layer.product.bias.grad, wide.bias.grad)


def test_layers_are_pruned_on_the_way_and_saved() -> None:
    dense, x = pruned(kernel_size=3, padding=1)
    layer = SparseConv2d.from_dense(nn.Conv2d(8, 6, 3), sparsity=0.9)
    assert layer.product.values.numel() == pytest.approx(0.1 * 6 * 72, abs=1)
    mask = dense.weight != 0
    masked = SparseConv2d.from_dense(dense, mask)
    again = SparseConv2d.from_dense(dense, mask)
    with torch.no_grad():
        again.product.values.zero_()
    again.load_state_dict(masked.state_dict())
    torch.testing.assert_close(again(x), masked(x))


def test_what_cannot_be_pruned_is_refused() -> None:
    dense, x = pruned(kernel_size=3)
    with pytest.raises(ConfigError, match="one group"):
        SparseConv2d.from_dense(nn.Conv2d(8, 8, 3, groups=2))
    with pytest.raises(PruningError, match="not both"):
        SparseConv2d.from_dense(dense, torch.ones(6, 8, 3, 3), sparsity=0.5)
    with pytest.raises(PruningError, match="no weight of the convolution is left"):
        SparseConv2d.from_dense(dense, torch.zeros(6, 8, 3, 3))
    with pytest.raises(OperandError, match="mask: expected shape"):
        SparseConv2d.from_dense(dense, torch.ones(6, 8, 9))
    with pytest.raises(OperandError, match="x: expected images × 8 channels"):
        SparseConv2d.from_dense(dense)(x[:, :3])


def test_a_loaded_layer_gathers_what_its_new_columns_say(place: str) -> None:
    def reading(*taps: int) -> Any:
        dense, _ = pruned(kernel_size=3, padding=1)
        kept = torch.zeros_like(dense.weight)
        for tap in taps:
            kept[:, :, tap // 3, tap % 3] = 1
        return SparseConv2d.from_dense(dense, kept, run_dense="never")

    saved, fresh, (_, x) = reading(0, 1, 2, 4), reading(4, 5, 7, 8), pruned(kernel_size=3, padding=1)
    fresh.load_state_dict(saved.state_dict())
    assert torch.equal(fresh(x), saved(x))
