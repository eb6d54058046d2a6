"""PyTorch tensors in, the same kind of tensors out; runs where PyTorch is installed."""

from __future__ import annotations

import numpy as np
import pytest
from pruning_reference import network_weights

import sparsegen
from sparsegen.errors import MatrixError

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


@pytest.mark.gpu
def test_tensors_stay_on_their_gpu() -> None:
    tensor = torch.randn(64, 64, device="cuda")
    found = sparsegen.prune(tensor, sparsity=0.5).weights
    assert found.device == tensor.device
    assert torch.equal(found.cpu(), sparsegen.prune(tensor.cpu(), sparsity=0.5).weights)
