"""The studies that need PyTorch, at tiny sizes on the emulator; and what a study writes."""

from __future__ import annotations

import importlib
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from patience import LONG
from zoo_fakes import Dying, Tiny, Zeros

from sparsegen import backends
from sparsegen.errors import PruningError
from sparsegen.kernels import families_of
from sparsegen.matrix.generators import random_rows
from sparsegen.operators import SpmmProblem
from sparsegen.settings import Settings
from sparsegen.system.publish import publish_text

ROOT = Path(__file__).parents[2]
NOTHING_MEASURED = json.dumps({"rows": [], "device": "emulator (CPU)"})


def read_document(path: Path) -> dict[str, Any]:
    """A study's result file."""
    return dict(json.loads(lzma.decompress(path.read_bytes())))


class Studies:
    """Runs a study of ``benchmarks`` on the emulator, with results and a database of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.db = folder, str(folder / "tuned.db")

    def run(self, name: str, *arguments: str) -> tuple[list[dict[str, Any]], str]:
        """The result file's rows, and what was printed."""
        if "--devices" not in arguments:
            arguments = ("--device", "emulator", *arguments)
        script = importlib.import_module(f"benchmarks.{name}")
        done = CliRunner().invoke(script.main, list(arguments), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        document = read_document(self.folder / f"{name}.json.xz")
        assert document["device"] == "emulator (CPU)"
        return document["rows"], done.output


def test_side_by_side(monkeypatch: pytest.MonkeyPatch, emulator_settings: Settings) -> None:
    """Compiles, checks and times variants in this process, as most studies do."""
    monkeypatch.syspath_prepend(str(ROOT))
    study = importlib.import_module("benchmarks.study")
    device = backends.find_device("emulator")
    problem, matrix = SpmmProblem(24, 40, 9), random_rows(24, 40, 0.3, 0.6, 3)
    chosen = [f for f in families_of("spmm") if f.name in ("csr_spmm", "segment_spmm")]
    configs = [f.heuristic(problem, problem.features(matrix), device) for f in chosen]
    bench = study.SideBySide(matrix, problem, device)
    try:
        bench.compile(configs)
        calls = {str(c): bench.variant(c.family_name, c.to_dict()) for c in configs}
        times = bench.times(calls, rounds=1, samples=2)
    finally:
        bench.close()
    assert times.keys() == {str(c) for c in configs} and all(us > 0 for us in times.values())


def test_errors_of_rounding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("SPARSEGEN_RESULTS", str(tmp_path))
    script = importlib.import_module("benchmarks.low_bit_error")
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((8, 64))
    np.savez(tmp_path / "weights.npz", up=rng.standard_normal((32, 64)), unseen=np.ones((8, 8)))
    np.savez(
        tmp_path / "inputs.npz",
        up=rng.standard_normal((200, 8)) @ mixing + 0.1 * rng.standard_normal((200, 64)),
    )
    files = ["--weights", str(tmp_path / "weights.npz"), "--inputs", str(tmp_path / "inputs.npz")]
    done = CliRunner().invoke(script.main, files, catch_exceptions=False)
    assert done.exit_code == 0 and "| `int4`, zero points | 128 | 70% |" in done.output, done.output
    rows = read_document(tmp_path / "low_bit_error.json.xz")["rows"]
    assert len(rows) == len(script.FORMATS) * len(script.SPARSITIES) and {row["layer"] for row in rows} == {
        "up"
    }
    errors = {(row["value_type"], row["group"]): row for row in rows if row["symmetric"]}
    assert errors["int8", "128"]["weights_nearest"] < 0.2 * errors["int4", "128"]["weights_nearest"]
    assert all(
        row["results_calibrated"] < row["results_nearest"] for row in rows if row["value_type"] == "int4"
    )
    layers, inputs = script.drawn()
    assert all(inputs[name].shape[1] == weight.shape[1] for name, weight in layers.items())
    np.savez(tmp_path / "inputs.npz", other=mixing)
    with pytest.raises(PruningError, match=r"no layer of weights.npz has inputs in inputs.npz"):
        CliRunner().invoke(script.main, files, catch_exceptions=False)


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, emulator_settings: Settings) -> Studies:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("SPARSEGEN_RESULTS", str(tmp_path))
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    monkeypatch.setenv(
        "SPARSEGEN_DEVICE", "emulator"
    )  # studies set it too, and it is to be as it was afterwards
    return Studies(tmp_path)


def test_graph_capture(studies: Studies) -> None:
    rows, _ = studies.run("graph_capture", "--tiny", "--backend", "eager")
    assert [r["dtype"] for r in rows] == ["float32", "float16"]
    for row in rows:
        assert (row["graphs_compiled_first"], row["graphs_compiled_later"], row["graph_breaks"]) == (1, 0, 0)
        assert row["captured_in_cuda_graph"] is False and row["host_synchronisations"] is None


def test_shipped(studies: Studies) -> None:
    (row,), told = studies.run("shipped", "--tiny", "--limit", "0")
    assert len(row["families"]) >= 9 and row["unequal_bits"] == []
    assert "time is up: 3 rows are left out; the same command goes on" in told


@pytest.mark.long
def test_a_zoo_goes_on_where_it_ended(studies: Studies, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo = importlib.import_module("benchmarks.zoo")
    monkeypatch.setattr(zoo, "ZOO", (Tiny(), Zeros(), Dying()))
    command = ["--device", "cpu", "--size", "small"]
    stopped = CliRunner().invoke(zoo.main, [*command, "--minutes", "-1"])
    assert stopped.exit_code == zoo.INCOMPLETE and "time is up: 3 models are left" in stopped.output
    done = CliRunner().invoke(zoo.main, command)
    assert done.exit_code == zoo.INCOMPLETE and "2 failed ['zeros', 'dying']" in done.output, done.output
    tiny, zeros, dying = read_document(studies.folder / "zoo.json.xz")["rows"]
    assert tiny["eager_sparse_layers"] == 2 and tiny["compiled_difference"] < 1e-6 and tiny["slower"] == []
    assert "nothing can be compared" in zeros["failed"] and "exit status 3" in dying["failed"]
    again = CliRunner().invoke(zoo.main, [*command, "--only", "tiny"])
    assert again.exit_code == 0 and "eager_s" not in again.output, "it is there"


def test_structured_dropout(studies: Studies) -> None:
    rows, _ = studies.run("structured_dropout", "--tiny")
    layers, chains = rows[:2], rows[2:4]
    assert [row["p"] for row in layers] == [row["p"] for row in chains] == [0.5, 0.1]
    assert all(row["chosen"] == "masked" and 0 < row["error"] < 1e-2 for row in layers)
    assert all({"early_adds_us", "late_adds_us", "generator_adds_us"} <= set(row) for row in chains)
    assert [row["mask"] for row in rows[4:]] == ["4 x 4"]


def test_structured_dropout_of_one_kind(studies: Studies) -> None:
    rows, _ = studies.run("structured_dropout", "--tiny", "--row", "chain", "--p", "0.5")
    assert [row.get("chain") for row in rows] == ["64 x 64 x 64"]


def test_decode(studies: Studies) -> None:
    rows, output = studies.run("decode", "--tiny")
    assert [row["queries"] for row in rows] == [1, 4] and "error" in output
    assert all(0 < error < 4e-3 for row in rows for error in row["errors"].values())


def test_generation(studies: Studies) -> None:
    rows, output = studies.run("generation", "--tiny")
    assert rows[0]["model"] == "dense float16" and "batch 2" in output
    assert all(0 < error < 4e-3 for row in rows for error in row["errors"].values())
    of_dense = {row["model"]: row["logits_error"] for row in rows}
    patterned = {row["model"]: row["sparsity"] for row in rows if row["logits_error"] is None}
    assert patterned == {"2:4 int4": 0.5, "64:2:8 int4": 0.75}
    assert of_dense["sparse float16"] < of_dense["sparse int8"] < of_dense["sparse int4"] < 1
    assert rows[0]["linear_bytes"] == 2 * 2 * sum(
        m * k for m, k in ((256, 128), (128, 128), (384, 128), (128, 192))
    )


def test_low_bit_race(studies: Studies) -> None:
    rows, output = studies.run("low_bit_race", "--tiny")
    assert len(rows) == 4 * 10 and all(0 < row["relative_error"] < 1e-3 for row in rows)
    stored = {row["what"]: row["bytes_per_weight"] for row in rows}
    assert stored["64:2:16 int4"] == 0.1015625 and stored["64:2:8 int4"] == 0.203125
    assert stored["2:4 int4"] == 0.375 < stored["70% e4m3"] and "256 x 512 x 16" in output


def test_attention_masks(studies: Studies) -> None:
    rows, output = studies.run("attention_masks", "--tiny")
    kinds = [row.get("kind", "other") for row in rows]
    parts = [row["part"] for row in rows]
    assert kinds[3:5] == ["independent", "largest"] and kinds[7:9] == ["one", "independent"]
    assert (
        parts[:3] == ["fixed"] * 3
        and parts[5:7] == ["replays", "shares"]
        and parts[9:] == [*("windows", "warps", "warps", "whole", "whole")]
    )
    assert "0.500 live" in output and "uneven: 1 rows, some 5 s on a GPU" in output
    assert all(0 < error < 4e-3 for row in rows for error in row.get("errors", {}).values())
    assert sum("errors" in row for row in rows) == 12 and rows[5]["unequal"] == 0
    assert rows[7]["errors"].keys() == {"whole", "split"}
    blocks, window, unstructured = rows[:3]
    for fixed in (blocks, window, unstructured):
        assert fixed["errors"].keys() == {"blocks", "fused", "steps", "training_blocks", "training_steps"}
        assert fixed["expected_forward_us"].keys() == {"blocks", "fused", "steps"}
        assert fixed["expected_training_us"].keys() == {"blocks", "steps"}
        assert fixed["chosen"] == {
            of: min(fixed[f"expected_{of}_us"], key=fixed[f"expected_{of}_us"].get)
            for of in ("forward", "training")
        }
    assert blocks["live"] < 0.3 and window["live"] == pytest.approx(0.2272, abs=1e-4)
    assert unstructured["live"] == pytest.approx(0.3, abs=0.01)
    warps = rows[10]
    assert warps["errors"].keys() == {"mma", "tma_one_pass", "tma_two_passes"}
    assert warps["configs"].keys() == {"mma", "tma", "mma_attention_backward"}


def test_attention_masks_go_on_where_time_was_up(studies: Studies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEGEN_COMMIT", "abc")
    command = ["--device", "emulator", "--tiny", "--part", "scores", "--part", "uneven"]
    some, _ = studies.run("attention_masks", "--tiny", "--part", "uneven")
    assert [row["kind"] for row in some] == ["one"]
    script = importlib.import_module("benchmarks.attention_masks")
    stopped = CliRunner().invoke(script.main, [*command, "--limit", "-1"])
    assert stopped.exit_code == script.INCOMPLETE and "1 rows are not measured" in stopped.output
    both, output = studies.run("attention_masks", *command[2:])
    assert [row["part"] for row in both] == ["uneven", "scores"] and both[0] == some[0]
    assert "kind one" not in output
    alone, _ = studies.run("attention_masks", *command[2:], "--row", "uneven .*kind one")
    assert [row["part"] for row in alone] == ["uneven", "scores"] and alone[0] == some[0]
    monkeypatch.setenv("SPARSEGEN_COMMIT", "abd")
    _, output = studies.run("attention_masks", *command[2:])
    assert "kind one" in output


def test_a_study_whose_time_is_up_says_what_is_left_out(studies: Studies) -> None:
    publish_text(studies.folder / "graph_capture.json.xz", NOTHING_MEASURED)
    rows, output = studies.run("graph_capture", "--tiny", "--limit", "-1")
    assert rows == [] and "time is up: torch.float32 and what follows is left out" in output


def test_networks_on_devices(studies: Studies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEGEN_EMULATORS", "2")
    sizes = (
        "--neurons",
        "64",
        "--layers",
        "4",
        "--inputs",
        "40",
        "--segment-layers",
        "2",
        "--segments",
        "3",
        "--seconds",
        "1e6",
    )
    rows, output = studies.run("network_devices", *sizes, "--devices", "all", "--family", "fused_network")
    assert [(row["case"], row["devices"]) for row in rows[:4]] == [
        *(("alive", 1), ("alive", 2)),
        *(("challenge-like", 1), ("challenge-like", 2)),
    ]
    assert [row["weights"] for row in rows[4:]] == 2 * ["resident", "pinned", "staged", "file"]
    assert all(row["ms"] > 0 for row in rows) and "# generate" in output
    assert rows[0]["living"] == 40 and rows[5]["segments_copied"] >= 3 > rows[4]["segments_copied"]


def test_a_network_on_two_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, emulator_settings: Settings
) -> None:
    pytest.importorskip("torch")
    script = ("--standalone", "--nproc-per-node", "2", "-m", "benchmarks.network_processes")
    sizes = ("--neurons", "64", "--layers", "4", "--inputs", "40", "--family", "fused_network")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *script, "--device", "emulator", *sizes],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
            "SPARSEGEN_RESULTS": str(tmp_path),
            "SPARSEGEN_DB": str(tmp_path / "tuning.db"),
        },
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.returncode == 0, done.stderr
    rows = read_document(tmp_path / "network_processes.json.xz")["rows"]
    assert [(row["case"], row["processes"], row["backend"]) for row in rows] == [
        ("challenge-like", 2, "gloo"),
        ("alive", 2, "gloo"),
    ]
    assert rows[1]["living"] == 40 and all(row["ms"] > 0 and row["ms_of_one"] > 0 for row in rows)


def test_rows_keep_the_state_that_measured_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, emulator_settings: Settings
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("SPARSEGEN_RESULTS", str(tmp_path))
    from benchmarks import study
    from sparsegen.backends import emulator_device

    device = emulator_device()
    monkeypatch.setenv("SPARSEGEN_COMMIT", "first")
    study.write_results(device, "made_up", [{"case": "a"}])
    rows = study.known_rows(device, "made_up", "case")
    monkeypatch.setenv("SPARSEGEN_COMMIT", "second")
    study.write_results(device, "made_up", [*rows.values(), {"case": "b"}])
    document = read_document(tmp_path / "made_up.json.xz")
    assert [row["state"] for row in document["rows"]] == ["first", "second"]
    assert all(row["measured"][:10] == document["date"] for row in document["rows"])
    assert study.known_rows(device, "nothing", "case") == {}


def test_mask_times(studies: Studies) -> None:
    rows, output = studies.run("mask_times", "--tiny")
    assert [row["tokens"] for row in rows] == [256] and "share=0.5" in output
