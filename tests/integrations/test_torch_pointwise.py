"""1 × 1 convolutions: converted like linear layers, batch norms folded before; and what stays as it is."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import sparsegen  # noqa: E402
from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import PointwiseConv2d, SparseLinear, convert, fold_batch_norms, load  # noqa: E402
from sparsegen.integrations.torch.calls.activations import Activation  # noqa: E402


def separable(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    """Layers as in MobileNetV1: depthwise and pointwise convolutions, each with a norm and a ReLU behind."""
    return [
        nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs, bias=False),
        nn.BatchNorm2d(inputs),
        nn.ReLU(),
        nn.Conv2d(inputs, outputs, 1, stride, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *separable(8, 24), *separable(24, 16, 2))
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return made.eval()


def images() -> Any:
    torch.manual_seed(1)
    return torch.randn(2, 3, 9, 11)


def pruned(of: nn.Module) -> nn.Module:
    """The network with a fifth of the weights of 1 × 1 convolutions."""
    for module in of.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1):
            module.weight.data = sparsegen.prune(
                module.weight.data, pattern="unstructured", sparsity=0.8
            ).weights
    return of


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_converted_model_computes_the_same(order: Any, place: str) -> None:
    made, x = pruned(model()), images().contiguous(memory_format=order)
    wanted = made(x)
    report = convert(made, dense="never")
    found = made(x)
    assert torch.allclose(found, wanted, atol=1e-4) and found.stride() == wanted.stride()
    assert [layer.name for layer in report.converted] == ["1", "4", "7", "10"]
    reasons = {layer.name: layer.reason for layer in report.dense}
    assert reasons == {"0": "it is not pruned: 0.0% of its weights are zeros"}
    assert isinstance(made[10], PointwiseConv2d) and made[10].stride == (2, 2)


def test_folded_norms_change_nothing_and_bring_activations_in(place: str) -> None:
    made, x = pruned(model()), images()
    wanted = made(x)
    assert fold_batch_norms(made) == ("2", "5", "8", "11")
    assert torch.allclose(made(x), wanted, atol=1e-4)
    before = [int((made[at].weight != 0).sum()) for at in (4, 10)]
    report = convert(made, dense="never")
    found = {layer.name: layer for layer in report.converted}
    assert [found[name].nonzeros for name in ("4", "10")] == before  # zeros stay zeros
    assert {layer.activation for layer in report.converted} == {Activation.RELU}
    assert torch.allclose(made(x), wanted, atol=1e-4)
    assert made[4].bias is not None


def test_an_activation_right_behind_is_part_of_it(place: str) -> None:
    made = nn.Sequential(nn.Conv2d(8, 12, 1), nn.ReLU()).eval()
    x = torch.randn(1, 8, 5, 5)
    wanted = nn.functional.relu(made[0](x))
    report = convert(made, "unstructured", 0.0, dense="never")
    assert report.converted[0].activation is Activation.RELU and isinstance(made[1], nn.Identity)
    assert torch.allclose(made(x), wanted, atol=1e-5)


def test_gradients(place: str) -> None:
    made = pruned(nn.Sequential(nn.Conv2d(8, 12, 1, 2)))
    twin, x = copy.deepcopy(made), torch.randn(2, 8, 7, 6, requires_grad=True)
    convert(made, dense="never")
    towards = torch.randn_like(twin(x))
    (one,) = torch.autograd.grad(made(x), x, towards, retain_graph=True)
    (other,) = torch.autograd.grad(twin(x), x, towards)
    assert torch.allclose(one, other, atol=1e-4)
    made(x).backward(towards)
    twin(x).backward(towards)
    kept = twin[0].weight.detach().flatten(1) != 0
    assert torch.allclose(made[0].values.grad, twin[0].weight.grad.flatten(1)[kept], atol=1e-3)
    assert torch.allclose(made[0].bias.grad, twin[0].bias.grad, atol=1e-4)


def test_state_dicts_load_into_the_model_as_it_was() -> None:
    made, fresh = pruned(model()), model()
    x = images()
    convert(made, dense="never")
    assert load(fresh, made.state_dict()) == ("4", "10")
    assert isinstance(fresh[10], PointwiseConv2d) and torch.equal(fresh(x), made(x))


def test_example_inputs_decide_in_the_model() -> None:
    made, x = pruned(model()), images()
    wanted = made(x)
    report = convert(made, example_inputs=x)
    names = {layer.name for layer in (*report.converted, *report.dense)}
    assert {"4", "10"} <= names and torch.allclose(made(x), wanted, atol=1e-4)


def test_linear_layers_and_convolutions_are_pruned_together() -> None:
    made = nn.Sequential(nn.Conv2d(8, 12, 1), nn.Flatten(), nn.Linear(12 * 4, 6))
    report = convert(made, "uniform", 0.5, dense="never")
    assert [(type(made[at]), made[at].pattern.sparsity) for at in (0, 2)] == [
        (PointwiseConv2d, 0.5),
        (SparseLinear, 0.5),
    ]
    assert made(torch.randn(3, 8, 2, 2)).shape == (3, 6) and len(report.converted) == 2


def test_what_is_not_folded() -> None:
    with pytest.raises(OperandError, match=r"model.eval\(\)"):
        fold_batch_norms(model().train())
    norm = nn.BatchNorm2d(4)
    shared = nn.Sequential(nn.Conv2d(4, 4, 1), norm, nn.Conv2d(4, 4, 1), norm)
    alone = nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4))
    batch = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False))
    for made in (shared, alone, batch):
        assert fold_batch_norms(made.eval()) == ()


def test_what_is_refused() -> None:
    made = nn.Sequential(nn.Conv2d(8, 12, 1))
    convert(made, "unstructured", 0.5, dense="never")
    with pytest.raises(OperandError, match="8 channels"):
        made(torch.randn(2, 7, 4, 4))
    with pytest.raises(OperandError, match="1 × 1 convolution"):
        PointwiseConv2d.on_convolution(nn.Conv2d(8, 8, 3), made[0].pattern)
