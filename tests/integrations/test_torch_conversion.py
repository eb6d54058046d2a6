"""`convert`: what becomes sparse in a model, what stays dense, and the reasons given."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from sparsegen import api  # noqa: E402
from sparsegen.dispatch.dense_or_sparse import Faster  # noqa: E402
from sparsegen.dispatch.pruned_times import LayerTime, TimeSource  # noqa: E402
from sparsegen.errors import ConfigError, MatrixError, PruningError  # noqa: E402
from sparsegen.integrations.torch import QuantizedLinear, SparseLinear, convert  # noqa: E402
from sparsegen.integrations.torch.models.conversion import ASSUMED_TOKENS  # noqa: E402
from sparsegen.pruning.pruner import prune  # noqa: E402


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 16))
        self.norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        x = self.norm(self.embedding(tokens))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.mlp(x))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


def test_what_becomes_sparse_and_why_the_rest_does_not(model: Model) -> None:
    report = convert(model, "unstructured", 0.75)
    assert [layer.name for layer in report.converted] == ["mlp.0", "mlp.2"]
    assert all(isinstance(model.get_submodule(layer.name), SparseLinear) for layer in report.converted)
    reasons = {layer.name: layer.reason for layer in report.dense}
    assert list(reasons) == ["embedding", "attention", "attention.out_proj", "head"]
    assert reasons["head"] == "its weight belongs to embedding too"
    assert reasons["attention.out_proj"] == "not a plain torch.nn.Linear"
    assert [layer.nonzeros for layer in report.converted] == [16 * 48 // 4] * 2
    assert model(torch.arange(6)[None]).shape == (1, 6, 32)
    told = str(report)
    assert "2 sparse, 4 left dense" in told and "head (Linear) stays dense: its weight" in told
    data = json.loads(json.dumps(report.to_dict()))
    assert data["converted"][0]["shape"] == [48, 16] and data["dense"][0]["name"] == "embedding"


def test_results_are_those_of_the_pruned_model(model: Model) -> None:
    pruned = prune(
        {n: model.mlp[int(n)].weight for n in "02"}, pattern="uniform", sparsity=0.5, scope="layer"
    )
    convert(model, "uniform", 0.5)
    for name in "02":
        assert torch.equal(model.mlp[int(name)].to_dense().weight, pruned.weights[name])


def test_scopes_and_other_patterns(model: Model) -> None:
    with torch.no_grad():
        model.mlp[2].weight.mul_(1e-9)
    report = convert(model, "unstructured", 0.6, scope="global")
    assert [layer.name for layer in report.converted] == ["mlp.0"]
    assert "mlp.2 (Linear) stays dense: nothing of it would be left" in str(report)
    report = convert(model, "nm", nm=(1, 4))
    assert [(layer.name, layer.sparsity) for layer in report.converted] == [("mlp.2", 0.75)]
    assert SparseLinear.from_dense(nn.Linear(8, 4), sparsity=0.5, pattern="nm").values.numel() == 16


def test_layers_can_be_left_out(model: Model) -> None:
    report = convert(model, sparsity=0.5, exclude=["mlp.2"])
    assert [layer.name for layer in report.converted] == ["mlp.0"] and type(model.mlp[2]) is nn.Linear
    assert "left out by name" in str(report)


def test_layers_whose_holder_reads_their_weights(model: Model) -> None:
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    with pytest.raises(PruningError, match="TransformerEncoderLayer reads its weight itself"):
        convert(encoder, sparsity=0.5)


def test_dense_where_that_is_measured_to_be_faster(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "mlp.0": LayerTime("mlp.0", TimeSource.EXACT, sparse_us=9.0, dense_us=4.0, faster=Faster.DENSE),
        "mlp.2": LayerTime("mlp.2", TimeSource.NEAR, sparse_us=2.0, dense_us=4.0, faster=Faster.SPARSE),
    }
    asked = []

    def pruned_times(report: Any, **options: Any) -> Any:
        asked.append(options)
        real = real_times(report, **options | {"device": "emulator"})
        return replace(real, layers=tuple(known[layer.name] for layer in report.layers))

    real_times = api.pruned_times
    monkeypatch.setattr(api, "pruned_times", pruned_times)
    report = convert(model, sparsity=0.5, tokens=64)
    assert [layer.name for layer in report.converted] == ["mlp.2"] and type(model.mlp[0]) is nn.Linear
    assert asked[0]["n"] == 64 and asked[0]["layout"] == "column" and asked[0]["dtype"] == "float32"
    assert "mlp.0 (Linear) stays dense: dense is faster for 64 tokens: 4.0 µs, sparse 9.0 µs" in str(report)
    assert "2.0 µs, dense 4.0 µs for 64 tokens (near)" in str(report)
    assert "(1 because dense is faster); for 64 tokens 1 products take 2 µs, dense 4 µs" in report.summary
    assert report.to_dict()["dense"][-1]["name"]
    asked.clear()
    assumed = convert(Model(), sparsity=0.5)
    assert sorted({options["n"] for options in asked}) == sorted(ASSUMED_TOKENS) and assumed.assumes_tokens
    assert "dense is faster for 16 tokens: 4.0 µs, sparse 9.0 µs; for 128 tokens" in str(assumed)
    never = convert(Model(), sparsity=0.5, dense="never")
    assert len(never.converted) == 2
    asked.clear()
    convert(Model(), sparsity=0.5, example_inputs=torch.zeros(2, 3, dtype=torch.long))
    assert not asked, "a look-up for each layer and number takes seconds in whole models, and decides nothing"


def test_what_was_never_measured_is_converted_and_said(
    model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    report = convert(model, sparsity=0.5, tokens=64, device="emulator")
    assert len(report.converted) == 2 and "its time was not measured" in str(report)


def test_a_model_is_converted_whole_or_not_at_all(model: Model) -> None:
    with torch.no_grad():
        model.mlp[2].weight[0, 0] = float("nan")
    with pytest.raises(MatrixError, match=r"mlp\.2"):
        convert(model, sparsity=0.5)
    assert type(model.mlp[0]) is nn.Linear
    with pytest.raises(PruningError, match="sparsity"):
        convert(model, "block")
    with pytest.raises(PruningError, match=r"it is one itself, which SparseLinear\.from_dense converts"):
        convert(nn.Linear(8, 8), "unstructured", 0.5)
    with pytest.raises(PruningError, match="3 × 3: give example_inputs"):
        convert(nn.Sequential(nn.Conv2d(3, 3, 3)), "unstructured", 0.5)
    with pytest.raises(ConfigError, match="run_dense = 'x' is none of"):
        SparseLinear.from_dense(nn.Linear(8, 8), sparsity=0.5, run_dense="x")
    with pytest.raises(PruningError, match="no linear layer"):
        convert(nn.Sequential(nn.Conv2d(3, 4, 3)), sparsity=0.5)


def test_activations_behind_layers_of_a_sequence_become_part_of_them(place: str) -> None:
    torch.manual_seed(0)
    shared = nn.ReLU()
    model = nn.Sequential(
        nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU(approximate="tanh"),
        nn.Linear(24, 24), shared, nn.Linear(24, 24), shared, nn.Linear(24, 24, bias=False), nn.ReLU(),
        nn.Sequential(nn.Linear(24, 8)), nn.ReLU(),
    )  # fmt: skip
    plain = copy.deepcopy(model)
    report = convert(model, sparsity=0.5, dense="never")
    convert(plain, sparsity=0.5, dense="never", fuse=False)
    assert {layer.name: layer.activation for layer in report.converted if layer.activation != "none"} == {
        "0": "gelu",
        "8": "relu",
    }
    assert type(model[1]) is type(model[9]) is nn.Identity and type(model[3]) is nn.GELU
    assert "0: 24 × 16, 50.0% sparse, with gelu" in str(report)
    assert model.state_dict().keys() == plain.state_dict().keys()
    x = torch.randn(5, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain(x), rtol=1e-3, atol=1e-4)
        served = model[0].prepared(tokens=5) if place == "emulator" else model[0]
        torch.testing.assert_close(
            served(x), nn.functional.gelu(model[0].to_dense()(x)), rtol=1e-3, atol=1e-4
        )
    for one in (model, plain):
        one(x).square().sum().backward()
    for ours, right in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, right.grad, rtol=1e-3, atol=1e-4)


def test_an_activation_that_hooks_see_stays() -> None:
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU())
    model[0].register_forward_hook(lambda *_: None)
    assert convert(model, sparsity=0.5, dense="never").converted[0].activation == "none"


def test_values_are_rounded(place: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 8, bias=False)).half().eval()
    report = convert(model, sparsity=0.5, value_type="int4", group=32)
    assert type(model[0]) is type(model[2]) is QuantizedLinear and type(model[1]) is nn.Identity
    errors = [layer.rounding_error for layer in report.converted]
    assert (
        errors == [model[0].rounding_error, model[2].rounding_error]
        and 0.01 < min(errors) < max(errors) < 0.2
    )
    assert f"2 rounded (error of their norm up to {max(errors):.2g})" in report.summary
    assert "values rounded to int4, a scale for 32 columns" in str(report)
    rounding = {"value_type": "int4", "group": "32", "symmetric": True}
    assert [layer["rounding"] for layer in report.to_dict()["converted"]] == [rounding] * 2
    x = torch.randn(5, 64).half()
    with torch.no_grad():
        dense = nn.Sequential(model[0].to_dense(), nn.ReLU(), model[2].to_dense())
        torch.testing.assert_close(model(x), dense(x), rtol=1e-2, atol=1e-2)
    if place == "emulator":
        assert model[0].why(5).startswith("the codes")
    again = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 8, bias=False)).half().eval()
    convert(again, sparsity=0.6, value_type="int4", group=32)
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(again(x), model(x))
    with pytest.raises(ConfigError, match="group = 32 is for codes"):
        convert(nn.Sequential(nn.Linear(8, 8)), sparsity=0.5, group=32)


def test_rounded_layers_keep_their_dtype_and_the_report_says_which_take_codes() -> None:
    model = nn.Sequential(nn.Linear(64, 40), nn.LayerNorm(40), nn.Linear(40, 8)).eval()
    bias, x = model[0].bias.clone(), torch.randn(5, 64)
    report = convert(model, sparsity=0.5, value_type="int4", group=32)
    assert model[0].dtype is torch.float32 and torch.equal(model[0].bias, bias)
    assert report.wide == ("0", "2") and "0, 2 multiply by the unquantised values" in str(report)
    with torch.no_grad():
        wide = model(x)
        torch.testing.assert_close(model.half()(x.half()), wide.half(), rtol=2e-2, atol=2e-2)
    assert model[0].takes_codes
    halves = nn.Sequential(nn.Linear(64, 40)).half()
    assert "unquantised" not in str(convert(halves, sparsity=0.5, value_type="int4", group=32))


def test_rounded_layers_are_decided_inside_the_model(place: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).half().eval()
    x = torch.randn(5, 64).half()
    report = convert(model, sparsity=0.5, value_type="int8", example_inputs=x)
    kept = set() if report.in_situ is None else set(report.in_situ.kept)
    assert {name for name in ("0", "2") if type(model[int(name)]) is QuantizedLinear} == kept
    assert len(report.converted) == len(kept) and len(report.converted) + len(report.dense) == 2
    assert all("the model is no faster with it sparse" in layer.reason for layer in report.dense)
    assert torch.isfinite(model(x)).all()


def test_a_bias_of_two_layers_stays_one() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32))
    model[1].bias = model[0].bias
    report = convert(model, "unstructured", 0.5, dense="never")
    assert model[0].bias is model[1].bias and [layer.name for layer in report.converted] == ["2"]
    assert "its bias belongs to 1 too" in str(report)


def test_what_torch_compile_wraps_is_no_layer_of_its_own() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(16, 16), nn.ReLU()))
    assert "OptimizedModule" not in str(convert(model, "unstructured", 0.5, dense="never"))


def test_a_converted_model_has_no_more_to_convert() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    convert(model, "unstructured", 0.5, dense="never")
    with pytest.raises(PruningError, match="can be sparse: others are sparse already"):
        convert(model, "unstructured", 0.9)
