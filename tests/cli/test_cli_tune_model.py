"""``sparsegen tune-model`` on the emulator, and what it says of models that it cannot tune."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import Command

from sparsegen.matrix.generators import random_uniform

pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    arrays = {
        f"{name}.weight": random_uniform(32, 48, density, seed).to_scipy().toarray()
        for seed, (name, density) in enumerate({"up": 0.2, "gate": 0.2, "out": 0.9}.items())
    }
    path = tmp_path / "model.npz"
    np.savez(path, **arrays, **{"up.bias": np.zeros(32, dtype=np.float32)})
    return path


def test_it_tunes_and_goes_on(run: Command, model: Path) -> None:
    options = ("tune-model", model, "--tokens", "8", "--trials", "1")
    text = run(*options)
    assert "[1 of 1] up.weight: 32 × 48" in text.stderr and "shared by 1 other layer" in text.stderr
    assert "up.weight" in text.stdout and "gate.weight" in text.stdout
    assert "8 tokens: dense products were not timed" in text.stdout
    assert "1 search for 2 products: 1 searched" in text.stdout
    assert "not tuned: out.weight (" in text.stdout and "up.bias (1-D)" in text.stdout

    data = run.json(*options)
    assert data["searches"][0]["outcome"] == "known from before"
    assert data["searches"][0]["layers"] == ["up.weight", "gate.weight"]
    assert [t["source"] for t in data["times"][0]["layers"]] == ["exact", "near"]
    assert data["times"][0]["n"] == 8 and data["times"][0]["layout"] == "column"
    assert data["database"] == str(run.db) and data["interrupted"] is False
    (looked_up,) = [
        run.json("lookup", "--matrix", model, "--tensor", "gate.weight", "-n", 8, "--layout", "column")
    ]
    assert looked_up["how"] in ("bucket", "nearest")  # the search's winner, or what should be faster yet
    assert [neighbour["problem"]["operator"] for neighbour in looked_up["neighbours"]] == ["spmm"]


def test_it_tunes_products_with_codes(run: Command, model: Path) -> None:
    options = ("tune-model", model, "--tokens", "8", "--trials", "1", "--values", "int4", "--group", "32")
    data = run.json(*options, "--dtype", "float16")
    assert {o["problem"]["operator"] for o in data["searches"]} == {"quantized_spmm"}
    assert {o["problem"]["value_type"] for o in data["searches"]} == {"int4"}
    assert {o["problem"]["scale_group"] for o in data["searches"]} == {"32"}
    searched, near = (t["family"] for t in data["times"][0]["layers"])
    assert searched == "quantized_stream_spmm" and near in ("quantized_stream_spmm", "quantized_csr_spmm")
    assert "scales are float16 or bfloat16" in run(*options, exit_code=3).stderr
    assert "--group is for --values" in run(*options[:4], "--group", "32", exit_code=2).stderr


def test_it_deals_to_several_devices(run: Command, model: Path) -> None:
    run.environment["SPARSEGEN_EMULATORS"] = "2"
    options = ("tune-model", model, "--tokens", "8,16", "--trials", "1")
    text = run(*options, "--devices", "all")
    assert "[1 of 2] up.weight" in text.stderr and "[2 of 2] up.weight" in text.stderr
    assert "on emulator\n" in text.stderr and "on emulator:1\n" in text.stderr
    data = run.json(*options, "--devices", "emulator:1", "--again")
    assert {o["where"] for o in data["searches"]} == {"emulator:1"}
    assert {(o["outcome"], o["attempts"]) for o in data["searches"]} == {("searched", 1)}
    devices = run.json("devices")["devices"]
    assert [d["device"] for d in devices if d["backend"] == "emulator"] == ["emulator", "emulator:1"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "complaint"),
    [
        (("--tokens", "1", "--devices", "emulator:1"), 4, "SPARSEGEN_EMULATORS"),
        (("--tokens", "1", "--devices", "all", "--device", "emulator"), 2, "either --device or --devices"),
        (("--tokens", "1", "--address", "auto"), 2, "--engine ray"),
        (("--tokens", "1", "--engine", "ray", "--device", "emulator"), 2, "--devices KEY"),
        (("--tokens", "0"), 2, "not like 1,8,256"),
        (("--tokens", "1,x"), 2, "not like 1,8,256"),
        ((), 2, "--tokens"),
        (("--tokens", "1", "--no-graph"), 2, "--example-inputs"),
        (("--tokens", "1", "--min-sparsity", "0.95"), 3, "no pruned layer"),
        (("--tokens", "1", "--tensor", "nonesuch"), 3, "matches none"),
    ],
)
def test_wrong_requests(
    run: Command, model: Path, arguments: tuple[str, ...], exit_code: int, complaint: str
) -> None:
    assert complaint in run.json("tune-model", model, *arguments, exit_code=exit_code)["error"]["message"]
    assert not run.db.exists()


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("missing.safetensors", None, "there is no such file"),
        ("broken.safetensors", b"\x01", "header"),
        ("model.pth", b"x", "weights are read from"),
        ("broken.npz", b"PK no archive", "broken.npz"),
    ],
)
def test_files_that_cannot_be_read(
    run: Command, tmp_path: Path, name: str, content: bytes | None, complaint: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    error = run.json("tune-model", tmp_path / name, "--tokens", "1", exit_code=3)["error"]
    assert complaint in error["message"] and name in error["message"]


def test_an_exported_program(run: Command, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "model.pt2"
    dense = torch.nn.Sequential(torch.nn.Linear(48, 32))
    torch.export.save(torch.export.export(dense, (torch.zeros(1, 48),)), path)
    error = run.json("tune-model", path, "--tokens", "8", exit_code=3)["error"]
    assert "0.weight (0.0% zeros), 0.bias (1-D)" in error["message"]

    path.write_bytes(b"PK no program")
    error = run.json("tune-model", path, "--tokens", "8", exit_code=3)["error"]
    assert error["type"] == "MatrixError" and "torch.export.save" in error["message"]


def test_an_exported_program_needs_pytorch(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    for name in [n for n in sys.modules if n.startswith("sparsegen.integrations.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "model.pt2").write_bytes(b"x")
    error = run.json("tune-model", tmp_path / "model.pt2", "--tokens", "8", exit_code=4)["error"]
    assert error["type"] == "PackageMissingError" and "pip install" in error["message"]


def test_ray_has_to_be_installed(run: Command, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "sparsegen.tuning.engines.ray_cluster", raising=False)
    monkeypatch.delitem(sys.modules, "sparsegen.tuning.engines.ray_worker", raising=False)
    error = run.json("tune-model", model, "--tokens", "8", "--engine", "ray", exit_code=4)["error"]
    assert error["type"] == "PackageMissingError" and "pip install 'ray>=2.40'" in error["message"]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with a pruned model, and inputs for it."""
    pytest.importorskip("torch")
    (tmp_path / "made_for_tuning.py").write_text(
        """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 8))
    with torch.no_grad():
        made[0].weight.mul_(torch.rand(48, 32) < 0.2)
    return made

def inputs():
    return torch.randn(8, 32)

def nothing():
    return None
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "made_for_tuning"


def test_a_model_that_is_called_is_tuned_and_decided_inside(run: Command, made: str, tmp_path: Path) -> None:
    little = ("--trials", "1", "--no-baselines")
    text = run("tune-model", f"{made}:model", "--example-inputs", f"{made}:inputs", *little)
    assert "[1 of 2] 0: 48 × 32" in text.stderr and "tokens, bias, on" in text.stderr
    assert "[2 of 2] 0: 48 × 32" in text.stderr and "tokens, bias and gelu, on" in text.stderr
    assert "2 searches: 2 searched" in text.stdout and "the model takes" in text.stdout
    assert "2 (Linear) stays dense: not pruned" in text.stdout

    np.save(tmp_path / "x.npy", np.ones((8, 32), np.float32))
    data = run.json("tune-model", f"{made}:model", "--example-inputs", tmp_path / "x.npy", *little)
    assert {o["outcome"] for o in data["searches"]} == {"known from before"}
    assert {o["problem"]["epilogue"] for o in data["searches"]} == {"bias", "bias_gelu"}
    assert data["model"]["in_situ"]["steps"][0]["layers"] == ["0"]
    assert data["database"] == str(run.db) and data["interrupted"] is False


@pytest.mark.parametrize(
    ("model", "arguments", "exit_code", "complaint"),
    [
        ("{}:model", ("--example-inputs", "{}:inputs", "--tokens", "8"), 2, "go without --tokens"),
        ("{}:model", ("--example-inputs", "{}:inputs", "--tensor", "x"), 2, "go without --tensor"),
        ("{}:model", ("--example-inputs", "{}:inputs", "--devices", "all"), 2, "give --device"),
        ("{}:model", ("--example-inputs", "{}:nothing"), 3, "example_inputs"),
        ("{}:model", ("--example-inputs", "x.json"), 3, ".npz"),
        ("{}:model", (), 2, "--tokens"),
        ("{}:nothing", ("--example-inputs", "{}:inputs"), 3, "NoneType"),
        ("{}:missing", ("--example-inputs", "{}:inputs"), 3, "no function"),
        ("model.npz", ("--example-inputs", "{}:inputs"), 3, "module:function"),
        ("{}:model", ("--example-inputs", "{}:inputs", "--min-sparsity", "0.99"), 3, "no pruned layer"),
    ],
)
def test_wrong_requests_for_models_that_are_called(
    run: Command, made: str, model: str, arguments: tuple[str, ...], exit_code: int, complaint: str
) -> None:
    given = [text.format(made) for text in (model, *arguments)]
    assert complaint in run.json("tune-model", *given, exit_code=exit_code)["error"]["message"]
    assert not run.db.exists()
