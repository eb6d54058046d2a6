"""Convolutions of larger filters in `convert`: pruned, tried in the model, saved; norms folded by what calls show."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from sparsegen.errors import OperandError, SparsegenError  # noqa: E402
from sparsegen.integrations.torch import SparseConv2d, convert, fold_batch_norms, load  # noqa: E402
from sparsegen.integrations.torch.calls.activations import Activation  # noqa: E402
from sparsegen.integrations.torch.models import conversion  # noqa: E402
from sparsegen.integrations.torch.models.in_situ import decide  # noqa: E402
from sparsegen.integrations.torch.models.model_clock import Arrange, Run  # noqa: E402


class Block(nn.Module):
    """A residual block as in ResNet, which calls its layers one by one; two convolutions read its input."""

    def __init__(self, *, shows_result: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.beside = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(16), nn.BatchNorm2d(16)
        self.relu1, self.relu2 = nn.ReLU(inplace=True), nn.ReLU()
        self._shows_result = shows_result

    def forward(self, x: Tensor) -> Tensor:
        first = self.conv1(x)
        y = self.norm2(self.conv2(self.relu1(self.norm1(first))))
        y = self.relu2(y + self.beside(x))
        return y + first if self._shows_result else y


def block(**given: bool) -> Block:
    torch.manual_seed(0)
    made = Block(**given)
    with torch.no_grad():
        for module in made.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.mul_(torch.rand_like(module.weight) < 0.2)
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.5, 2)
    return made.eval().requires_grad_(False)


def images() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 8, 9, 10)


class SparseIsFaster:
    """A clock by which what is tried later takes less time; it calls both."""

    captured = True

    def compare(self, run: Run, first: Arrange, second: Arrange) -> tuple[float, float]:
        for arrange in (first, second):
            arrange()
            run()
        return 2.0, 1.0


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
def test_filters_become_sparse_and_compute_the_same(order: Any, place: str) -> None:
    made, x = block(), images().contiguous(memory_format=order)
    wanted = made(x)
    kept = int((made.conv2.weight != 0).sum())
    report = convert(made, dense="never")
    assert [layer.name for layer in report.converted] == ["conv1", "conv2", "beside"] and not report.dense
    assert report.converted[1].nonzeros == kept and isinstance(made.conv2, SparseConv2d)
    found = made(x)
    assert torch.allclose(found, wanted, atol=1e-4) and found.stride() == wanted.stride()


def test_they_are_tried_in_the_model_with_norms_folded(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "decide", lambda *args, **named: decide(*args, SparseIsFaster(), **named))
    made, x = block(), images()
    wanted = made(x)
    report = convert(made, example_inputs=x, fold_norms=True)
    assert report.in_situ is not None and set(report.in_situ.kept) == {"conv1", "conv2", "beside"}
    assert all(isinstance(one, SparseConv2d) for one in (made.conv1, made.conv2, made.beside))
    assert isinstance(made.norm1, nn.Identity) and isinstance(made.norm2, nn.Identity)
    assert made.conv1.product.activation is Activation.RELU and isinstance(made.relu1, nn.Identity)
    assert not report.shared_launches, "convolutions gather pixels of their own"
    assert torch.allclose(made(x), wanted, atol=1e-4)


@pytest.mark.parametrize("asked", [{"exclude": ["*"]}, {"sparsity": 2.0}, {"block": (4, 4)}], ids=str)
def test_what_is_refused_leaves_norms_as_they_were(asked: dict[str, Any]) -> None:
    made, x = block(), images()
    before, wanted = made.state_dict(), made(x)
    with pytest.raises(SparsegenError):
        convert(made, example_inputs=x, fold_norms=True, **asked)
    assert made.state_dict().keys() == before.keys() and torch.equal(made(x), wanted)


def test_where_they_are_not_faster_all_stays(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SparseIsFaster()
    monkeypatch.setattr(clock, "compare", lambda run, first, second: (1.0, 2.0), raising=False)
    monkeypatch.setattr(conversion, "decide", lambda *args, **named: decide(*args, clock, **named))
    made, x = block(), images()
    wanted = made(x)
    report = convert(made, example_inputs=x)
    assert not report.converted and type(made.conv1) is nn.Conv2d and torch.equal(made(x), wanted)
    assert all("no faster with it sparse" in layer.reason for layer in report.dense)


def test_without_inputs_nothing_tells_their_times() -> None:
    made = nn.Sequential(block(), nn.Conv2d(16, 16, 3, padding=1, groups=4), nn.Conv2d(16, 8, 1))
    report = convert(made, "unstructured", 0.5, dense="auto", tokens=64)
    reasons = {layer.name: layer.reason for layer in report.dense}
    assert reasons["0.conv1"] == "a convolution of 3 × 3: give example_inputs to time it beside a sparse one"
    assert reasons["1"] == "a convolution of 4 groups"
    lopsided = nn.Sequential(nn.Conv2d(4, 4, 2, padding="same"), nn.Conv2d(4, 4, 1))
    report = convert(lopsided, "unstructured", 0.5, dense="never")
    assert [(one.name, one.reason[:20]) for one in report.dense] == [("0", "a convolution of 2 ×")]


def test_state_dicts_load_into_the_model_as_it_was() -> None:
    made, fresh, x = block(), block(), images()
    convert(made, dense="never")
    assert load(fresh, made.state_dict()) == ("conv1", "conv2", "beside")
    assert isinstance(fresh.conv1, SparseConv2d) and torch.equal(fresh(x), made(x))


def test_norms_are_folded_by_what_a_call_shows() -> None:
    made, x = block(), images()
    wanted = made(x)
    assert fold_batch_norms(made) == ()
    assert fold_batch_norms(made, x) == ("norm1", "norm2")
    assert torch.allclose(made(x), wanted, atol=1e-4)
    assert fold_batch_norms(block(shows_result=True), x) == ("norm2",), (
        "the first result is read elsewhere too"
    )
    with pytest.raises(OperandError, match=r"model.eval\(\)"):
        fold_batch_norms(block().train(), x)


def test_a_fold_that_changes_results_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = block(), images()
    wanted = made(x)
    monkeypatch.setattr("sparsegen.integrations.torch.models.folding.agree", lambda one, other: False)
    assert fold_batch_norms(made, x) == () and torch.equal(made(x), wanted)
