"""`SparseLinear`: made of dense layers, saved, copied, trained."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from sparsegen.errors import DeviceUnavailableError, MatrixError, OperandError, PruningError  # noqa: E402
from sparsegen.integrations.torch import SparseLinear, SparsePattern  # noqa: E402


@pytest.fixture
def dense() -> Any:
    torch.manual_seed(0)
    return nn.Linear(40, 24)


def agree(sparse: SparseLinear, dense: Any, **close: float) -> None:
    x = torch.randn(2, 3, 40, dtype=dense.weight.dtype)
    torch.testing.assert_close(sparse(x), dense(x), **close)


def test_from_a_sparsity(dense: Any) -> None:
    sparse = SparseLinear.from_dense(dense, sparsity=0.75)
    assert sparse.values.shape == (24 * 40 // 4,) and sparse.pattern.sparsity == 0.75
    weight = sparse.to_dense().weight
    kept = weight != 0
    assert torch.equal(weight[kept], dense.weight[kept])
    assert dense.weight[kept].abs().min() >= dense.weight[~kept].abs().max(), "the smallest went"
    agree(sparse, sparse.to_dense())
    assert "nonzeros=240 (75.0% sparse)" in repr(sparse)


def test_from_a_mask(dense: Any) -> None:
    mask = torch.rand(24, 40) < 0.3
    mask[3] = False
    with torch.no_grad():
        dense.weight[mask.nonzero()[0, 0], mask.nonzero()[0, 1]] = 0
    sparse = SparseLinear.from_dense(dense, mask)
    assert sparse.values.numel() == int(mask.sum()), "a zero under the mask may grow"
    with torch.no_grad():
        dense.weight.mul_(mask)
    agree(sparse, dense)
    assert SparseLinear.from_dense(dense).values.numel() == int(mask.sum()) - 1
    for wrong in (mask.t(), mask[0]):
        with pytest.raises(MatrixError, match=r"expected a mask of shape \(24, 40\)"):
            SparseLinear.from_dense(dense, wrong)
    with pytest.raises(PruningError, match="not both"):
        SparseLinear.from_dense(dense, mask, sparsity=0.5)


def test_layers_share_a_pattern(dense: Any) -> None:
    mask = torch.rand(24, 40) < 0.3
    mask[3] = False
    pattern = SparsePattern(mask)
    one, other = (SparseLinear.on_pattern(layer, pattern) for layer in (dense, nn.Linear(40, 24).half()))
    assert one.pattern is other.pattern is pattern and other.values.dtype is torch.float16
    assert torch.equal(one.values, dense.weight[mask]) and torch.equal(one.bias, dense.bias)
    agree(one, one.to_dense())
    given = SparseLinear.on_pattern(dense, pattern, 2 * one.values.detach())
    assert torch.equal(given.values, 2 * one.values)
    with pytest.raises(MatrixError, match=f"expected {pattern.nnz} values, got a tensor of shape \\(1,\\)"):
        SparseLinear.on_pattern(dense, pattern, torch.ones(1))
    with pytest.raises(MatrixError, match=r"a pattern of shape \(4, 8\), got \(24, 40\)"):
        SparseLinear.on_pattern(nn.Linear(8, 4), pattern)
    with pytest.raises(OperandError, match="pattern"):
        SparseLinear.on_pattern(dense, mask)


def test_what_a_dense_layer_was_it_stays() -> None:
    dense = nn.Linear(8, 4, bias=False, dtype=torch.float64).eval()
    dense.weight.requires_grad_(False)
    sparse = SparseLinear.from_dense(dense, sparsity=0.5)
    assert sparse.bias is None and not sparse.training and not sparse.values.requires_grad
    assert sparse.values.dtype is torch.float64 and sparse.to_dense().bias is None
    half = SparseLinear.from_dense(nn.Linear(8, 4), sparsity=0.5).half()
    assert half.row_offsets.dtype is torch.int32 and half(torch.ones(1, 8).half()).dtype is torch.float16


def test_a_state_dict_brings_its_pattern(dense: Any) -> None:
    one, other = (SparseLinear.from_dense(dense, sparsity=s) for s in (0.9, 0.5))
    stored = io.BytesIO()
    torch.save(one.state_dict(), stored)
    stored.seek(0)
    values, old = other.values, other.pattern
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    other.load_state_dict(torch.load(stored, weights_only=True))
    assert other.values is values and optimizer.param_groups[0]["params"][0] is values
    assert other.pattern is not old and other.pattern.nnz == one.pattern.nnz
    agree(other, one.to_dense())
    kept = other.pattern
    other.load_state_dict(one.state_dict())
    wide = {
        name: t.long() if name.startswith(("row", "column")) else t for name, t in one.state_dict().items()
    }
    other.load_state_dict(wide)
    assert other.pattern is kept, "the same pattern stays prepared"
    other(torch.ones(1, 40)).sum().backward()
    assert other.values.grad.shape == other.values.shape


def test_a_malformed_state_dict_is_refused(dense: Any) -> None:
    layer = SparseLinear.from_dense(dense, sparsity=0.9)
    state = layer.state_dict()
    before = layer.to_dense().weight
    state["column_indices"] = state["column_indices"].clone() + 40
    with pytest.raises(RuntimeError, match="is outside"):
        nn.Sequential(layer).load_state_dict({f"0.{name}": t for name, t in state.items()})
    assert torch.equal(layer.to_dense().weight, before)
    with pytest.raises(RuntimeError, match="Missing key"):
        layer.load_state_dict({"values": layer.values})


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_are_independent(dense: Any, copied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    layer = SparseLinear.from_dense(dense, sparsity=0.9)
    layer(torch.ones(1, 40))
    twin = copied(layer)
    assert twin.pattern is not layer.pattern and not twin.pattern._prepared
    with torch.no_grad():
        twin.values.mul_(2)
    agree(twin, twin.to_dense())
    agree(layer, layer.to_dense())
    assert not torch.equal(twin.values, layer.values)


def test_autocast(dense: Any) -> None:
    layer = SparseLinear.from_dense(dense, sparsity=0.5)
    x = torch.randn(3, 40, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, expected = layer(x), layer.to_dense()(x)
    assert y.dtype is torch.bfloat16
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)
    y.float().sum().backward()
    assert layer.values.grad.dtype is x.grad.dtype is torch.float32


def test_a_compiled_module_is_one_graph(dense: Any) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    layers = [SparseLinear.from_dense(nn.Linear(40, 40), sparsity=0.8) for _ in range(2)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1])
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for _ in range(2):
        x = torch.randn(5, 40)
        torch.testing.assert_close(compiled(x), model(x))
        with torch.no_grad():
            layers[0].values.add_(0.1)
    assert counter.frame_count == 1


@pytest.mark.parametrize("place", ["cpu", "emulator"])
def test_it_trains_like_a_dense_layer_with_a_mask(
    place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    if place == "emulator":
        monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    torch.manual_seed(1)
    x, target = torch.randn(16, 12), torch.randn(16, 4)
    dense = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 4))
    masks = [torch.rand(20, 12) < 0.4, torch.rand(4, 20) < 0.4]
    with torch.no_grad():
        for layer, mask in zip(dense[::2], masks, strict=True):
            layer.weight.mul_(mask)
    sparse = nn.Sequential(
        SparseLinear.from_dense(dense[0], masks[0]), nn.Tanh(), SparseLinear.from_dense(dense[2], masks[1])
    )
    curves = []
    for model in (dense, sparse):
        optimizer, losses = torch.optim.Adam(model.parameters(), 0.02), []
        for _ in range(8):
            loss = nn.functional.mse_loss(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            if model is dense:
                for layer, mask in zip(dense[::2], masks, strict=True):
                    layer.weight.grad.mul_(mask)
            optimizer.step()
            losses.append(loss.item())
        curves.append(losses)
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-4)
    assert curves[1][-1] < curves[1][0]


def test_patterns_say_what_they_are() -> None:
    assert repr(SparsePattern(np.eye(3))) == "SparsePattern(3 × 3, 3 nonzeros)"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_prepared_for_inference(dtype: str, has_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    torch.manual_seed(1)
    dense = nn.Linear(40, 24, bias=has_bias, dtype=getattr(torch, dtype))
    layer = SparseLinear.from_dense(dense, sparsity=0.75)
    prepared = layer.prepared(6)
    x = torch.randn(2, 3, 40, dtype=dense.weight.dtype)
    torch.testing.assert_close(prepared(x), layer.to_dense()(x).detach())
    assert not prepared(x.requires_grad_()).requires_grad
    assert prepared.nbytes > 0 and f"tokens=6, {prepared.operator.variant.family}" in repr(prepared)
    assert not list(prepared.parameters()) and not list(prepared.buffers())
    for wrong in (torch.randn(5, 40), torch.randn(6, 41), torch.randn(240)):
        with pytest.raises(OperandError, match="expected 6 tokens × 40 features"):
            prepared(wrong.to(x.dtype))
    with pytest.raises(OperandError, match="no state"):
        prepared.state_dict()
    with pytest.raises(OperandError, match="copy or pickle the SparseLinear"):
        copy.deepcopy(prepared)
    with pytest.raises(OperandError, match=r"x: expected a torch.Tensor"):
        prepared(x.detach().float().numpy())


def test_prepared_keeps_its_values(dense: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    layer = SparseLinear.from_dense(dense, sparsity=0.75)
    prepared, x = layer.prepared(2), torch.randn(2, 40)
    before = prepared(x)
    with torch.no_grad():
        layer.values.mul_(2)
    assert torch.equal(prepared(x), before)


def test_prepared_needs_a_kernel(dense: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = SparseLinear.from_dense(dense, sparsity=0.75)
    monkeypatch.delenv("SPARSEGEN_DEVICE", raising=False)
    with pytest.raises(DeviceUnavailableError, match=r"float32 on cpu.*move the layer to a GPU"):
        layer.prepared(2)
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    with pytest.raises(DeviceUnavailableError, match="float64"):
        layer.double().prepared(2)


def test_autocast_leaves_float64(place: str) -> None:
    dense = torch.nn.Linear(40, 24, dtype=torch.float64)
    sparse, x = SparseLinear.from_dense(dense, sparsity=0.5), torch.randn(3, 40, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sparse(x).dtype is dense(x).dtype is torch.float64


def test_a_default_device_has_all_of_a_layer() -> None:
    pattern = SparsePattern(torch.eye(8))
    with torch.device("meta"):
        layer = SparseLinear(pattern)
    assert {tensor.device.type for tensor in layer.state_dict().values()} == {"meta"}


def test_mapped_over_nothing(dense: Any) -> None:
    sparse = SparseLinear.from_dense(dense, sparsity=0.5, run_dense="never")
    assert torch.vmap(sparse)(torch.randn(0, 3, 40)).shape == (0, 3, 24)
