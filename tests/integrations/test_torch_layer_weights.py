"""Layers whose weight is made before each call, hooked, without data, or pruned already; state dicts; odd tensors."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, prune, spectral_norm  # noqa: E402

from sparsegen.errors import ConfigError, MatrixError, OperandError, PruningError  # noqa: E402
from sparsegen.integrations.torch import (  # noqa: E402
    DropoutLinear,
    KernelMap,
    MaskedConv2d,
    SparseConv2d,
    SparseLinear,
    SubmanifoldConv3d,
    convert,
    load,
)

X = torch.linspace(-1, 1, 4 * 32).view(4, 32)


def _model(seed: int = 0, zeros: float = 0.7) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 8), nn.Linear(8, 8))
    with torch.no_grad():
        for layer in (net[0], net[2]):
            layer.weight[torch.rand_like(layer.weight) < zeros] = 0
    return net


def _pruned(seed: int) -> nn.Sequential:
    net = _model(seed, 0)
    for layer in (net[0], net[2]):
        prune.l1_unstructured(layer, "weight", 0.8)
    return net


def _loaded() -> nn.Module:
    net = _pruned(1)
    net.load_state_dict(_pruned(2).state_dict())
    return net


def _stepped() -> nn.Module:
    net = _pruned(3)
    net(X).square().sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.5).step()
    return net


@pytest.mark.parametrize("made", [_loaded, _stepped])
def test_pruned_layers_are_taken_as_their_next_call_would(made: Callable[[], nn.Module]) -> None:
    net, want = made(), made()
    report = convert(net, dense="never", fuse=False)
    assert len(report.converted) == 2 and not report.pruned_again
    torch.testing.assert_close(net(X), want(X))
    assert net[0].values.requires_grad


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "make",
    [parametrizations.weight_norm, nn.utils.weight_norm, spectral_norm, parametrizations.spectral_norm],
)
def test_weights_made_of_others_stay_dense_with_a_reason(make: Callable[[nn.Module], nn.Module]) -> None:
    with warnings.catch_warnings(action="ignore"):
        net = nn.Sequential(make(nn.Linear(32, 48)), nn.ReLU(), nn.Linear(48, 8)).eval()
    kind = type(net[0])
    report = convert(net, "unstructured", 0.5, dense="never")
    assert type(net[0]) is kind and isinstance(net[2], SparseLinear)
    (left,) = report.dense
    assert left.name == "0" and "remove_" in left.reason
    with torch.no_grad():
        for parameter in net[0].parameters():
            parameter.mul_(3)  # stale, until a call
    layer = SparseLinear.from_dense(net[0])
    torch.testing.assert_close(layer(X), net[0](X), rtol=1e-4, atol=1e-5)


def test_lazy_and_meta_layers_are_said_before_anything_changes() -> None:
    net = nn.Sequential(nn.LazyLinear(16), nn.Linear(16, 8))
    report = convert(net, "unstructured", 0.5, dense="never")
    assert "not initialized" in report.dense[0].reason and isinstance(net[0], nn.LazyLinear)
    with torch.device("meta"):
        meta = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with pytest.raises(PruningError, match="meta device"):
        convert(meta, "unstructured", 0.5)
    assert all(type(layer) is nn.Linear for layer in meta)
    with pytest.raises(OperandError, match="meta device"):
        SparseLinear.from_dense(meta[0], sparsity=0.5)
    with pytest.raises(OperandError, match="lazy layer"):
        SparseLinear.from_dense(nn.LazyLinear(8), sparsity=0.5)


def test_hooks_of_calls_are_kept() -> None:
    net, seen = _model(), []
    handle = net[0].register_forward_hook(lambda *_: seen.append("behind"))
    net[2].register_forward_pre_hook(lambda module, given, named: seen.append("before"), with_kwargs=True)
    net[2].register_full_backward_hook(lambda *_: seen.append("backward"))
    convert(net, dense="never")
    assert isinstance(net[1], nn.ReLU), "what looks at a layer's result sees it without the activation"
    net(X).sum().backward()
    assert seen == ["behind", "before", "backward"]
    handle.remove()
    net(X)
    assert seen[3:] == ["before"]


def test_other_layers_keep_hooks_and_take_made_weights() -> None:
    dense = prune.l1_unstructured(nn.Linear(32, 16), "weight", 0.5)
    seen: list[str] = []
    dense.register_forward_hook(lambda *_: seen.append("called"))
    layer = DropoutLinear.from_linear(dense, 0.5, 16).eval()
    torch.testing.assert_close(layer(X), dense(X))
    conv = prune.l1_unstructured(nn.Conv2d(8, 8, 3, padding=1), "weight", 0.5)
    conv.register_forward_hook(lambda *_: seen.append("conv"))
    images = torch.randn(1, 8, 8, 8)
    for made in (MaskedConv2d.from_dense(conv, mask_block=8), SparseConv2d.from_dense(conv)):
        torch.testing.assert_close(made(images), conv(images), rtol=1e-4, atol=1e-4)
    assert seen == ["called"] * 2 + ["conv"] * 4


def _hooked_bias(layer: nn.Module) -> nn.Module:
    """The layer with a weight and a bias that hooks make, and that are stale."""
    for name in ("weight", "bias"):
        prune.l1_unstructured(layer, name, 0.5)
    with torch.no_grad():
        layer.bias_orig.add_(3)
        layer.weight_orig.mul_(2)
    return layer


def test_a_stale_bias_is_read_as_the_next_call_would_take_it() -> None:
    for made in (SparseLinear.from_dense, lambda dense: DropoutLinear.from_linear(dense, 0.5, 16).eval()):
        dense = _hooked_bias(nn.Linear(32, 16))
        found = made(dense)
        torch.testing.assert_close(found(X), dense(X))
        assert found.bias.requires_grad
    images = torch.randn(1, 8, 8, 8)
    for conv_made in (MaskedConv2d.from_dense, SparseConv2d.from_dense):
        conv = _hooked_bias(nn.Conv2d(8, 8, 3, padding=1))
        torch.testing.assert_close(conv_made(conv)(images), conv(images), rtol=1e-4, atol=1e-4)
    net, same = (nn.Sequential(_hooked_bias(nn.Linear(32, 16))) for _ in range(2))
    same.load_state_dict(net.state_dict())
    convert(net, dense="never")
    torch.testing.assert_close(net(X), same(X))


def test_a_replaced_forward_is_never_passed_over() -> None:
    net = _model()
    before = net[0].forward
    net[0].forward = lambda x: 2 * before(x)  # as accelerate does
    wanted = net(X)
    report = convert(net, dense="never")
    assert isinstance(net[2], SparseLinear) and "forward was replaced" in str(report)
    torch.testing.assert_close(net(X), wanted)
    conv = nn.Conv2d(4, 4, 3)
    conv.forward = conv.forward
    for make in (
        lambda: SparseLinear.from_dense(net[0]),
        lambda: DropoutLinear.from_linear(net[0]),
        lambda: MaskedConv2d.from_dense(conv),
        lambda: SparseConv2d.from_dense(conv),
    ):
        with pytest.raises(OperandError, match="forward was replaced"):
            make()


def test_masks_of_weights_are_patterns_of_every_format() -> None:
    dense = nn.Linear(32, 16)
    kept = torch.rand(16, 32) < 0.4
    wanted = SparseLinear.from_dense(dense, kept)
    for mask in (kept.tolist(), kept.numpy(), kept.float().to_sparse(), kept.float().to_sparse_csr()):
        assert torch.equal(SparseLinear.from_dense(dense, mask).values, wanted.values)
    with pytest.raises(MatrixError, match="mask == 0"):
        SparseLinear.from_dense(dense, torch.where(kept, 0.0, -1e9))
    with pytest.raises(MatrixError, match="got list"):
        SparseLinear.from_dense(dense, [[1], [1, 0]])
    with torch.no_grad():
        dense.weight.sub_(1e5)  # a weight is no mask
    assert SparseLinear.from_dense(dense, sparsity=0.5).pattern.nnz == 16 * 16


def test_the_weight_is_read_as_of_a_dense_layer() -> None:
    dense = nn.Linear(32, 48)
    layer = SparseLinear.from_dense(dense, sparsity=0.5)
    weight = layer.weight
    assert (weight.dtype, weight.device, weight.shape) == (dense.weight.dtype, dense.weight.device, (48, 32))
    torch.testing.assert_close(weight.to_dense(), layer.to_dense().weight.detach())
    (weight.to_dense() ** 2).sum().backward()
    torch.testing.assert_close(layer.values.grad, 2 * layer.values.detach())
    assert "weight" not in layer.state_dict()


# --- models that are pruned already ---


def test_without_a_sparsity_a_model_keeps_its_own_zeros() -> None:
    net, want = _model(), _model()
    zeros = [int((net[i].weight == 0).sum()) for i in (0, 2)]
    report = convert(net)
    assert [layer.name for layer in report.converted] == ["0", "2"]
    assert [net[i].pattern.shape[0] * net[i].pattern.shape[1] - net[i].pattern.nnz for i in (0, 2)] == zeros
    assert "not pruned: 0.0%" in report.dense[0].reason and type(net[3]) is nn.Linear
    torch.testing.assert_close(net(X), want(X))
    with pytest.raises(PruningError, match="give a sparsity"):
        convert(_model(zeros=0.2))
    with pytest.raises(PruningError, match="give a sparsity too"):
        convert(_model(), scope="layer")
    with pytest.raises(PruningError, match="needs a sparsity"):
        convert(_model(), "block")


def test_with_a_sparsity_pruning_once_more_is_said(caplog: pytest.LogCaptureFixture) -> None:
    net = _model()
    with caplog.at_level(logging.WARNING):
        report = convert(net, "unstructured", 0.8, dense="never")
    assert report.pruned_again == ("0", "2")
    assert "without a sparsity keeps" in str(report) and "without a sparsity keeps" in caplog.text
    assert report.to_dict()["pruned_again"] == ["0", "2"]
    assert not convert(_model(), "unstructured", 0.5, dense="never").pruned_again, "no zero was added"


@pytest.mark.parametrize("fuse", [True, False])
def test_state_dicts_of_converted_models_are_loaded(fuse: bool) -> None:
    converted = _model()
    convert(converted, dense="never", fuse=fuse)
    state, fresh = converted.state_dict(), _model(5, 0)
    assert load(fresh, state) == ("0", "2")
    torch.testing.assert_close(fresh(X), converted(X))
    assert load(fresh, state) == ()  # they are sparse
    other = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(47, 8), nn.Linear(8, 8))
    with pytest.raises(OperandError, match="does not fit"):
        load(other, state)
    assert all(type(other[i]) is nn.Linear for i in (0, 2, 3))
    with pytest.raises(OperandError, match="does not fit the model"):
        load(_model(), {**state, "4.weight": torch.ones(1)})


def test_loaded_layers_train_as_those_in_their_place() -> None:
    converted, fresh = _model(), _model(5, 0)
    convert(converted, dense="never")
    fresh[0].requires_grad_(False)
    load(fresh, converted.state_dict())
    assert not any(p.requires_grad for p in fresh[0].parameters())
    assert all(p.requires_grad for p in fresh[2].parameters())


def test_a_model_without_data_is_loaded_whole() -> None:
    converted = _model()
    convert(converted, dense="never")
    with torch.device("meta"):
        fresh = _model()
    load(fresh, converted.state_dict())
    torch.testing.assert_close(fresh(X), converted(X))


def test_codes_are_loaded_by_layers_that_have_them() -> None:
    rounded = _model().half()
    convert(rounded, dense="never", value_type="int8")
    with pytest.raises(OperandError, match="has codes of 0: convert the model with the same value_type"):
        load(_model().half(), rounded.state_dict())


# --- what dense layers take ---


def test_jagged_tokens() -> None:
    layer = SparseLinear.from_dense(nn.Linear(32, 48), sparsity=0.8)
    parts = [torch.randn(3, 32), torch.randn(5, 32)]
    found = layer(torch.nested.nested_tensor(parts, layout=torch.jagged))
    for one, part in zip(found.unbind(), parts, strict=True):
        torch.testing.assert_close(one, layer(part))
    found.values().sum().backward()
    with warnings.catch_warnings(action="ignore"):
        strided = torch.nested.nested_tensor(parts)
    with pytest.raises(OperandError, match=r"layout=torch.jagged"):
        layer(strided)
    with pytest.raises(OperandError, match="nested"):
        DropoutLinear(32, 16)(torch.nested.nested_tensor(parts, layout=torch.jagged))


@pytest.mark.parametrize(("padding", "kernel"), [("same", 3), ("valid", 3), ("same", (1, 5))])
def test_padding_in_words(padding: str, kernel: Any) -> None:
    dense, x = nn.Conv2d(8, 8, kernel, padding=padding), torch.randn(1, 8, 16, 16)
    mask = torch.ones(1, 2, 2, dtype=torch.bool)
    torch.testing.assert_close(
        MaskedConv2d.from_dense(dense, mask_block=8)(x, mask), dense(x), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(SparseConv2d.from_dense(dense)(x), dense(x), rtol=1e-4, atol=1e-4)


def test_padding_that_is_wider_on_one_side_is_refused() -> None:
    dense = nn.Conv2d(8, 8, 4, padding="same")
    for made in (MaskedConv2d.from_dense, SparseConv2d.from_dense):
        with pytest.raises(ConfigError, match="ZeroPad2d"):
            made(dense)


@pytest.mark.parametrize("bias", [True, False])
def test_scenes_without_points(bias: bool) -> None:
    layer, x = SubmanifoldConv3d(8, 16, bias=bias), torch.zeros(0, 8, requires_grad=True)
    y = layer(x, KernelMap.of(torch.zeros(0, 4, dtype=torch.int32)))
    y.sum().backward()
    assert y.shape == (0, 16) and x.grad.shape == (0, 8) and not layer.weight.grad.any()
