"""PyTorch tensors in, the same kind of tensors out; runs where PyTorch is installed."""

from __future__ import annotations

import numpy as np
import pytest
from pruning_reference import network_weights

import sparsegen
from sparsegen.errors import MatrixError
from sparsegen.pruning.cut import weights_kept
from sparsegen.pruning.plan import Plan
from sparsegen.pruning.request import PruneRequest
from sparsegen.pruning.selection import select
from sparsegen.pruning.torch_weights import TorchWeights, pruned_by_torch

torch = pytest.importorskip("torch")


def test_tensors_are_pruned_like_arrays() -> None:
    arrays = network_weights()
    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    for pattern in ("uniform", "unstructured", "block", "blocked-uniform"):
        expected = sparsegen.prune(arrays, pattern=pattern, sparsity=0.8)
        found = sparsegen.prune(tensors, pattern=pattern, sparsity=0.8)
        assert list(found.weights) == list(arrays)
        for name, tensor in found.weights.items():
            assert tensor.dtype == torch.float32 and np.array_equal(tensor.numpy(), expected.weights[name])
            assert np.array_equal(tensors[name].numpy(), arrays[name]), "what was given is not changed"
        assert [layer.fingerprint for layer in found.report.layers] == [
            layer.fingerprint for layer in expected.report.layers
        ]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_type_and_device_are_kept(dtype: str) -> None:
    tensor = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    found = sparsegen.prune(tensor, sparsity=0.75).weights
    assert found.dtype == tensor.dtype and found.device == tensor.device
    assert (found != 0).sum(dim=1).tolist() == [2] * 6
    assert torch.equal(found[found != 0], tensor[found != 0])


def test_a_module_keeps_its_buffers_and_loads_the_result() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 6))
    state = module.state_dict()
    found = sparsegen.prune(state, pattern="unstructured", sparsity=0.9, scope="layer")
    assert [layer.name for layer in found.report.layers] == ["0.weight", "2.weight"]
    assert found.weights["1.running_mean"] is state["1.running_mean"]
    module.load_state_dict(found.weights)
    assert int((module[0].weight != 0).sum()) == 22  # of 216, 194.4 go


def test_a_parameter_becomes_a_plain_tensor() -> None:
    found = sparsegen.prune(torch.nn.Parameter(torch.ones(4, 4)), sparsity=0.5).weights
    assert not found.requires_grad and int((found != 0).sum()) == 8


def test_column_major_tensors() -> None:
    tensor = torch.arange(1.0, 13).reshape(3, 4)
    found = sparsegen.prune(tensor.T, sparsity=0.5, scope="layer").weights
    assert np.array_equal(found.numpy(), sparsegen.prune(tensor.T.numpy(), sparsity=0.5).weights)


def test_sparse_meta_and_mixed_weights() -> None:
    weights = {"w": torch.ones(4, 4), "s": torch.ones(4, 4).to_sparse(), "m": torch.ones(4, 4, device="meta")}
    found = sparsegen.prune(weights, sparsity=0.5)
    assert [c.name for c in found.report.copied] == ["s", "m"]
    with pytest.raises(MatrixError, match="all of one kind"):
        sparsegen.prune({"a": torch.ones(2, 2), "b": np.ones((2, 2))}, sparsity=0.5)
    weights["w"][1, 2] = float("nan")
    with pytest.raises(MatrixError, match=r"'w', index \(1, 2\)"):
        sparsegen.prune(weights, sparsity=0.5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.9, 0.999])
def test_single_weights_are_chosen_alike_where_tensors_lie(dtype: str, sparsity: float) -> None:
    """A GPU's part is PyTorch's work, which the host's PyTorch does too: with many equal weights, and without."""
    generator = torch.Generator().manual_seed(1)
    drawn = {
        "a": torch.randn(24, 40, generator=generator),
        "b": torch.randint(-3, 4, (16, 9), generator=generator),
    }
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in drawn.items()}
    for scope in ("layer", "global"):
        request = PruneRequest.parse("unstructured", sparsity, scope=scope)
        held = TorchWeights(tensors)
        plan = Plan(held, select(held), request)
        for name, spec in plan.layers.items():
            layer = plan.prune(name)
            found = pruned_by_torch(
                torch, tensors[name], weights_kept(sparsity, spec.size), plan._cuts.get(name)
            )
            assert found is not None
            assert np.array_equal(found.mask.numpy(), layer.mask), (name, scope)
            assert torch.equal(found.pruned, held.pruned(name, layer.mask))
            report = next(r for r in plan.report().layers if r.name == name)
            assert found.kept == report.kept
            assert found.energy == pytest.approx(report.energy, rel=1e-12)
            assert found.energy_before == pytest.approx(report.energy_before, rel=1e-12)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e200])
def test_what_cannot_be_ranked_is_left_to_the_host_that_says_where_it_is(wrong: float) -> None:
    tensor = torch.ones(4, 4, dtype=torch.float64)
    tensor[1, 2] = wrong
    assert pruned_by_torch(torch, tensor, 3, None) is None


def test_a_plan_takes_what_was_chosen_where_a_tensor_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(24, 40, generator=torch.Generator().manual_seed(2))
    expected = sparsegen.prune(tensor, pattern="unstructured", sparsity=0.7)
    monkeypatch.setattr(
        TorchWeights,
        "pruned_there",
        lambda self, spec, keep, cut: pruned_by_torch(torch, self._tensors[spec.name], keep, cut),
    )
    monkeypatch.setattr(Plan, "_pruned_here", None)
    found = sparsegen.prune(tensor, pattern="unstructured", sparsity=0.7)
    assert torch.equal(found.weights, expected.weights)
    layer, before = found.report.layers[0], expected.report.layers[0]
    assert (layer.fingerprint, layer.features, layer.kept) == (
        before.fingerprint,
        before.features,
        before.kept,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("pattern", ["unstructured", "uniform"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_gpu_chooses_what_the_host_chooses(pattern: str, dtype: str) -> None:
    tensors = {name: torch.randn(96, 64, device="cuda").to(getattr(torch, dtype)) for name in ("a", "b")}
    for scope in ("layer", "global"):
        found = sparsegen.prune(tensors, pattern=pattern, sparsity=0.6, scope=scope)
        on_host = {name: tensor.cpu() for name, tensor in tensors.items()}
        expected = sparsegen.prune(on_host, pattern=pattern, sparsity=0.6, scope=scope)
        for name, tensor in found.weights.items():
            assert torch.equal(tensor.cpu(), expected.weights[name]), (name, scope)


@pytest.mark.gpu
def test_tensors_stay_on_their_gpu() -> None:
    tensor = torch.randn(64, 64, device="cuda")
    found = sparsegen.prune(tensor, sparsity=0.5).weights
    assert found.device == tensor.device
    assert torch.equal(found.cpu(), sparsegen.prune(tensor.cpu(), sparsity=0.5).weights)
