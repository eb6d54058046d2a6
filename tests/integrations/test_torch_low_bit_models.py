"""Conversion of models whose dense layers have weights of low bits: they are raced as they are, and never slower."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from sparsegen.integrations.torch import SparseLinear, convert, tune_model  # noqa: E402
from sparsegen.integrations.torch.models import in_situ, model_facts  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_emulator")


class Codes(torch.Tensor):
    """A stand-in for torchao's weights: int8 codes and a scale a row, with a product of their own and little else."""

    qdata: torch.Tensor
    scale: torch.Tensor
    tells = True

    @staticmethod
    def __new__(cls, qdata: torch.Tensor, scale: torch.Tensor) -> Codes:
        made: Codes = torch.Tensor._make_wrapper_subclass(cls, qdata.shape, dtype=scale.dtype)
        made.qdata, made.scale = qdata, scale
        return made

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is nn.functional.linear:
            x, weight, *bias = args
            return nn.functional.linear(x, weight.qdata.to(x.dtype) * weight.scale, *bias)
        if function is torch.Tensor.dequantize and args[0].tells:
            return args[0].qdata.to(args[0].scale.dtype) * args[0].scale
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return type(args[0])(args[0].qdata, args[0].scale)
        raise NotImplementedError(f"{cls.__name__}: {function}")

    def __deepcopy__(self, memo: Any) -> Codes:
        return nn.Parameter(type(self)(self.qdata, self.scale), requires_grad=False)


class SilentCodes(Codes):
    tells = False


def model_of(kind: type[Codes], zeros: float = 0.7) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 32)).half().eval()
    for layer in (model[0], model[2]):
        codes = torch.randint(1, 128, layer.weight.shape).where(torch.rand(layer.weight.shape) > zeros, 0)
        scale = torch.full((len(codes), 1), 0.01).half()
        layer.weight = nn.Parameter(kind(codes.to(torch.int8), scale), requires_grad=False)
    return model


class Clock:
    """Says that sparse layers win, or that they lose."""

    captured = False
    wins = True

    def __init__(self, *_: Any) -> None:
        """Takes the arguments of the real one."""

    def compare(self, run: Any, first: Any, second: Any) -> tuple[float, float]:
        for arrange in (first, second):
            arrange()
            run()
        return 10.0, 5.0 if self.wins else 15.0


@pytest.mark.parametrize("kind", [Codes, SilentCodes])
@pytest.mark.parametrize("value_type", [None, "int8"])
def test_sparse_layers_start_with_the_numbers(kind: type[Codes], value_type: str | None) -> None:
    model = model_of(kind)
    x = torch.randn(4, 96).half()
    with torch.no_grad():
        y = model(x)
        report = convert(model, dense="never", value_type=value_type)
        torch.testing.assert_close(model(x), y, rtol=2e-2, atol=2e-2)
    assert [layer.name for layer in report.converted] == ["0", "2"]
    assert all(isinstance(model[i], SparseLinear) for i in (0, 2))


def test_without_a_race_they_stay() -> None:
    model = model_of(Codes)
    report = convert(model, value_type="int8")
    assert not report.converted and {layer.kind for layer in report.dense} == {"Linear of Codes"}
    assert "give example_inputs" in str(report) and type(model[0]) is nn.Linear


@pytest.mark.parametrize("wins", [True, False])
@pytest.mark.parametrize("tunes", [True, False])
def test_they_are_raced_as_they_are(wins: bool, tunes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_situ, "TorchClock", Clock)
    monkeypatch.setattr(Clock, "wins", wins)
    model, x = model_of(Codes), torch.randn(4, 96).half()
    own = model[0].weight
    if tunes:
        tuned = tune_model(model, x, trials=1, value_type="int8")
        report = tuned.report
        assert report is not None
    else:
        report = convert(model, example_inputs=x, value_type="int8")
    assert [layer.name for layer in report.converted] == (["0", "2"] if wins else [])
    if not wins:
        assert model[0].weight is own
        assert all(
            layer.kind == "Linear of Codes" and "dense 10.0 µs" in layer.reason for layer in report.dense
        )


def test_a_race_is_of_its_dense_weights_and_its_codes() -> None:
    """A model of plain weights, one of low bits and one with other codes have races of their own."""

    def contexts() -> Iterator[str]:
        x = torch.randn(4, 96).half()
        for kind, value_type in ((Codes, None), (Codes, "int8"), (Codes, "e4m3"), (None, None)):
            model = model_of(kind or Codes)
            sparse = copy.deepcopy(model)
            convert(sparse, dense="never", value_type=value_type)
            layers = {name: sparse[int(name)] for name in "02"}
            if kind is None:
                for layer in (model[0], model[2]):
                    layer.weight = nn.Parameter(layer.weight.dequantize(), requires_grad=False)
            facts = model_facts.ModelFacts(model, x, layers, {"0": (4,), "2": (4,)}, captures=True)
            forms = dict.fromkeys(layers, in_situ.PLAIN)
            yield facts.race(forms, {})[1]

    assert len(set(contexts())) == 4
