"""Compiled models: products with frozen weights that have many zeros run the kernels, and the others stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._inductor import config  # noqa: E402

from sparsegen.errors import ConfigError  # noqa: E402
from sparsegen.integrations.torch import SparseLinear, inductor  # noqa: E402
from sparsegen.integrations.torch.shipping.inductor import _SparseProducts  # noqa: E402
from sparsegen.tuning_db.records import Called  # noqa: E402


@pytest.fixture(autouse=True)
def emulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    before = config.post_grad_custom_post_pass, config.freezing
    torch._dynamo.reset()
    # Prepacked weights make other operators of linear layers on the CPU; to look for vectors takes seconds.
    with config.patch({"cpp.weight_prepack": False, "cpp.vec_isa_ok": False}):
        yield
    config.post_grad_custom_post_pass, config.freezing = before
    torch._dynamo.reset()


def perceptron() -> nn.Module:
    """Three pruned layers, and one that is not."""
    torch.manual_seed(0)
    layers = nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32, bias=False), nn.Linear(32, 32), nn.Linear(32, 16)
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for layer in (model[0], model[2], model[3]):
            layer.weight *= torch.rand_like(layer.weight) < 0.2
    return model.eval()


def operators(graph: Any) -> list[str]:
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


@pytest.mark.long
def test_pruned_products_run_the_kernels() -> None:
    model, x, seen = perceptron(), torch.randn(2, 8, 64), []
    config.post_grad_custom_post_pass = lambda graph: seen.append(operators(graph))
    inductor.enable(run_dense="never")
    ours = config.post_grad_custom_post_pass
    assert isinstance(ours, _SparseProducts) and config.freezing
    config.post_grad_custom_post_pass = lambda graph: (ours(graph), seen.append(operators(graph)))
    with torch.no_grad():
        found = torch.compile(model)(x)
        sparse = [
            SparseLinear.from_dense(one, run_dense="never") if number in (0, 2, 3) else one
            for number, one in enumerate(model)
        ]
        assert torch.equal(found, nn.Sequential(*sparse)(x))
    before, after = seen
    assert sum("aten.mm" in one or "aten.addmm" in one for one in before) == 4, "other passes go first"
    assert sum("aten.mm" in one or "aten.addmm" in one for one in after) == 1
    assert sum(one.startswith("sparsegen_shipped_") for one in after) == 3
    assert any("relu" in one for one in before) and not any("relu" in one for one in after)


@pytest.mark.long
@pytest.mark.parametrize(
    ("captures", "ours_us", "sparse"), [(False, 2.0, 0), (False, 1.0, 3), (True, 2.0, 3)]
)
def test_calls_from_python_are_timed_unless_graphs_are_captured(
    monkeypatch: pytest.MonkeyPatch, captures: bool, ours_us: float, sparse: int
) -> None:
    model, x, seen, raced = perceptron(), torch.randn(8, 64), [], []

    def in_turn(runs: Any, *args: Any, **named: Any) -> list[float]:
        ours, dense = (run() for run in runs)
        assert torch.allclose(ours, dense, atol=1e-5)
        raced.append(args[1])
        return [ours_us, 1.5]

    monkeypatch.setattr("sparsegen.integrations.torch.shipping.inductor.in_turn", in_turn)
    inductor.enable()
    ours = config.post_grad_custom_post_pass
    config.post_grad_custom_post_pass = lambda graph: (ours(graph), seen.append(operators(graph)))
    with torch.no_grad(), config.patch({"triton.cudagraphs": captures}):
        assert torch.allclose(torch.compile(model)(x), model(x), atol=1e-5)
    assert sum(one.startswith("sparsegen_shipped_") for one in seen[0]) == sparse
    assert raced == [] if captures else raced == [Called.HOST] * 3


@pytest.mark.long
def test_where_dense_products_are_faster_all_stays() -> None:
    model, x, seen = perceptron(), torch.randn(8, 64), []
    config.post_grad_custom_post_pass = [lambda graph: seen.append(operators(graph))]  # a list of passes
    inductor.enable(run_dense="always")
    ours = config.post_grad_custom_post_pass
    config.post_grad_custom_post_pass = lambda graph: (ours(graph), seen.append(operators(graph)))
    with torch.no_grad():
        assert torch.allclose(torch.compile(model)(x), model(x), atol=1e-6)
    assert len(seen) == 2 and not any("sparsegen" in one for one in seen[1])


def test_it_is_turned_on_and_off() -> None:
    theirs, before = lambda graph: None, config.freezing
    config.post_grad_custom_post_pass = theirs
    inductor.enable()
    inductor.enable(run_dense="never")
    assert config.freezing and config.post_grad_custom_post_pass.before is theirs
    inductor.disable()
    assert config.post_grad_custom_post_pass is theirs and config.freezing is before
    inductor.disable()
    assert config.post_grad_custom_post_pass is theirs
    with pytest.raises(ConfigError, match="run_dense"):
        inductor.enable(run_dense="often")
