"""The scripts on attention, softmax, training and MobileNet, at tiny sizes on the emulator."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sparsegen.settings import Settings

ROOT = Path(__file__).parents[2]


class Scripts:
    """Runs a script of ``benchmarks`` on the emulator, with results and a database of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.db = folder, str(folder / "tuned.db")

    def run(self, name: str, *arguments: str) -> tuple[list[dict[str, Any]], str]:
        """The result file's rows, and what was printed."""
        script = importlib.import_module(f"benchmarks.{name}")
        done = CliRunner().invoke(script.main, ["--device", "emulator", *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        document = json.loads((self.folder / f"{name}.json").read_text())
        assert document["device"] == "emulator (CPU)"
        return document["rows"], done.output


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, emulator_settings: Settings) -> Scripts:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("SPARSEGEN_RESULTS", str(tmp_path))
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    monkeypatch.setenv(
        "SPARSEGEN_DEVICE", "emulator"
    )  # scripts set it too, and it is to be as it was afterwards
    return Scripts(tmp_path)


def test_softmax(scripts: Scripts) -> None:
    arguments = (
        "--db",
        scripts.db,
        "--shrink",
        "256",
        "--seconds",
        "0",
        "--dtype",
        "float16",
        "--mask",
        "sliding",
    )
    rows, output = scripts.run("softmax", *arguments)
    assert [r["mask"] for r in rows] == ["sliding 48"] * 2
    assert {r["operator"] for r in rows} == {"sparse_softmax", "sparse_softmax_backward"}
    for row in rows:
        assert row["of_copy"] == pytest.approx(row["copy_us"] / row["us"]["ours"], rel=0.1, abs=1e-3)
        assert ("torch padded" in row["us"]) == (row["operator"] == "sparse_softmax")
        assert row["worst_error"] <= 1
    again, output = scripts.run("softmax", *arguments)
    assert again == rows and output == ""  # what the file holds is not measured again


def test_a_script_whose_time_is_up_says_what_is_left_out(scripts: Scripts) -> None:
    (scripts.folder / "softmax.json").write_text(json.dumps({"rows": [], "device": "emulator (CPU)"}))
    rows, output = scripts.run("softmax", "--db", scripts.db, "--seconds", "0", "--limit", "-1")
    assert rows == []
    assert "time is up: band 4096 and what follows is left out" in output


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_attention(scripts: Scripts) -> None:
    rows, output = scripts.run(
        "attention", "--db", scripts.db, "--length", "24", "--heads", "2", "--width", "8", "--seconds", "0",
        "--dtype", "float32",
    )  # fmt: skip
    (row,) = rows
    contenders = row["contenders"]
    assert row["case"] == "band 24x2x8 float32"
    assert {"sparsegen", "dense math", "masked math"} <= contenders.keys()
    assert not contenders["dense math"]["sees_mask"] and contenders["masked math"]["sees_mask"]
    assert all(facts["error"] < 1e-5 and facts["us"] > 0 for facts in contenders.values())
    assert set(row["choices"]) >= {"scores", "softmax", "product"}
    assert "dense cudnn" in row["left_out"] and "left out" in output


def test_training(scripts: Scripts) -> None:
    rows, _ = scripts.run("training", "--tiny", "--steps", "3", "--part", "mlp-float16")
    rows, _ = scripts.run("training", "--tiny", "--steps", "2", "--part", "transformer-float32")
    assert [r["part"] for r in rows] == ["mlp-float16", "transformer-float32"]
    for row in rows:
        assert row["difference"] < row["noise"]
        assert len(row["curves"]["sparse"].split()) == row["steps"]
        assert set(row["curves"]) == {"sparse", "dense", "dense of seed 1", "dense of seed 2"}
    assert rows[1]["difference"] < 1e-4  # float32 differs by roundings


def test_graph_capture(scripts: Scripts) -> None:
    rows, _ = scripts.run("graph_capture", "--tiny", "--backend", "eager")
    assert [r["dtype"] for r in rows] == ["float32", "float16"]
    for row in rows:
        assert (row["graphs_compiled_first"], row["graphs_compiled_later"], row["graph_breaks"]) == (1, 0, 0)
        assert row["captured_in_cuda_graph"] is False and row["host_synchronisations"] is None


def test_structured_dropout(scripts: Scripts) -> None:
    rows, _ = scripts.run("structured_dropout", "--tiny")
    assert [row["p"] for row in rows[:-1]] == [0.5, 0.1] and rows[-1]["mask"] == "4 x 4"
    assert all(row["chosen"] == "masked" and 0 < row["error"] < 1e-2 for row in rows[:-1])


def test_mobilenet(scripts: Scripts) -> None:
    rows, _ = scripts.run(
        "mobilenet", "--db", scripts.db, "--shrink", "28", "--width", "1.5", "--seconds", "0"
    )
    assert rows[0]["case"] == "1.5 8x8x16"
    assert all({"ours", "cublas", "cublaslt fused", "cudnn"} == row["us"].keys() for row in rows)
    summary = json.loads((scripts.folder / "mobilenet.json").read_text())["summary"]
    assert [s["width"] for s in summary] == [1.5]


def test_mobilenet_has_the_papers_layers(scripts: Scripts) -> None:
    mobilenet = importlib.import_module("benchmarks.mobilenet")
    wide = [str(layer) for layer in mobilenet.layers(1.8)]
    assert wide[0] == "112x56x12544" and wide[-1] == "1840x1840x49"
    assert sum(layer.count for layer in mobilenet.layers(1.8)) == 13
    assert [str(layer) for layer in mobilenet.layers(1.0)][5:7] == ["512x256x196", "512x512x196"]


def test_a_search_is_finished_once(scripts: Scripts) -> None:
    from sparsegen.backends.emulator import device
    from sparsegen.operators import SoftmaxProblem

    prepared = importlib.import_module("benchmarks.prepared")
    matrix = importlib.import_module("sparsegen.masks").sliding_window(16, 4)
    problem = SoftmaxProblem(16, 16)
    assert "tried in" in prepared.tuned_once(matrix, problem, device(), scripts.db, 1.0)
    assert prepared.tuned_once(matrix, problem, device(), scripts.db, 1.0) == "was tuned"


def test_masked_products(scripts: Scripts) -> None:
    """cuBLAS is not on the emulator: what is left are the checked configs."""
    from benchmarks import masked_products
    from sparsegen.backends import find_device, open_executor
    from sparsegen.operators import Block, Density, DsdProblem, DType

    device = find_device("emulator")
    problem = DsdProblem(128, 64, 64, DType.FLOAT16, block=Block.parse("64x64"), density=Density.parse(0.5))
    row = masked_products.Row(problem, open_executor(device))
    config = next(masked_products.configs(problem, device, "tma"))
    call, worst = row.call(config, device)
    call()
    assert 0 < worst <= 1 and 0 <= row.live <= 1
    assert {c.declared_by for c in masked_products.configs(problem, device, "")} == {"mma_dsd", "tma_dsd"}
