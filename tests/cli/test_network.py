"""``sparsegen network``: from a generated network to verified categories, on the emulator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from sparsegen.cli.main import cli
from sparsegen.matrix.formats import as_csr
from sparsegen.networks.files.challenge_files import read_categories
from sparsegen.networks.files.network_file import save_network
from sparsegen.networks.model.network import Network
from sparsegen.networks.sparse_network import SparseNetwork
from sparsegen.settings import Settings


@pytest.fixture
def call(tmp_path: Path, emulator_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(*words: str, exit_code: int = 0) -> Any:
        given = () if words[0] == "generate" else ("--device", "emulator", "--db", "tuning.db")
        result = CliRunner().invoke(cli, ["network", *words, *given, "--json"])
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout)

    return run


def test_generate_run_verify_and_tune(call: Any) -> None:
    made = call("generate", "--neurons", "64", "--layers", "5", "-o", "net.npz")
    assert made["edges"] == 64 * 32 * 5
    found = call("run", "net.npz", "--images", "30", "--exact", "-o", "live.tsv")
    assert found["inputs"] == 30 and read_categories(Path("live.tsv"), 30).size == found["live"]
    assert call("verify", "net.npz", "--images", "30")["right"] is True
    assert call("verify", "net.npz", "--images", "30", "--exact", "--truth", "live.tsv")["right"] is True
    tuned = call("tune", "net.npz", "--batch", "30", "--trials", "1")
    assert tuned["us"] > 0 and tuned["family"] == "fused_network"


def test_what_is_there_stays_without_force(call: Any) -> None:
    make = "generate", "--neurons", "64", "--layers"
    call(*make, "3", "-o", "net.npz")
    before = Path("net.npz").read_bytes()
    for words in (
        (*make, "2", "-o", "net.npz"),
        ("pack", "net.npz", "--batch", "4", "-o", "net.npz"),
        ("run", "net.npz", "--images", "4", "-o", "net.npz"),
    ):
        refused = call(*words, exit_code=3)["error"]
        assert refused["type"] == "OutputExistsError" and "--force" in refused["message"]
    assert Path("net.npz").read_bytes() == before
    call(*make, "2", "-o", "net.npz", "--force")
    assert Path("net.npz").read_bytes() != before
    call(*make, "3", "--tsv", "-o", "layers")
    call(*make, "2", "--tsv", "-o", "layers", exit_code=3)
    call(*make, "2", "--tsv", "-o", "layers", "--force")
    assert sorted(path.name for path in Path("layers").iterdir()) == ["n64-l1.tsv", "n64-l2.tsv"]


def test_run_within_memory_on_several_devices_and_from_a_packed_file(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("generate", "--neurons", "64", "--layers", "8", "--bias", "-0.1", "-o", "net.npz")
    right = call("run", "net.npz", "--images", "40")
    within = call("run", "net.npz", "--images", "40", "--memory", "60 kB", "--exact")
    assert within["live"] == right["live"]
    assert within["plan"]["bytes"] <= within["plan"]["budget_bytes"] == 60_000
    packed = call("pack", "net.npz", "--batch", "40", "--memory", "60kB", "-o", "net.packed")
    assert packed["plan"] == within["plan"]
    streamed = call("run", "net.packed", "--images", "40", "-o", "live.tsv")
    assert streamed["live"] == right["live"] and streamed["plan"] == within["plan"]
    refused = call("run", "net.packed", "--exact", exit_code=3)["error"]
    assert "is packed" in refused["message"]
    monkeypatch.setenv("SPARSEGEN_EMULATORS", "2")
    words = ["network", "run", "net.npz", "--images", "40", "--devices", "all", "--db", "tuning.db", "--json"]
    dealt = CliRunner().invoke(cli, words)
    assert dealt.exit_code == 0 and json.loads(dealt.stdout)["live"] == right["live"], dealt.output
    both = CliRunner().invoke(cli, [*words, "--device", "emulator"])
    assert both.exit_code == 2 and "either --device or --devices" in both.output
    small = call("run", "net.npz", "--memory", "1 kB", exit_code=1)["error"]
    assert small["type"] == "DeviceMemoryError" and "give at least" in small["message"]


def test_wrong_categories_end_with_5(call: Any, tmp_path: Path) -> None:
    call("generate", "--neurons", "64", "--layers", "2", "--tsv", "-o", "folder")
    (tmp_path / "truth.tsv").write_text("".join(f"{i}\n" for i in range(1, 21)))
    wrong = call("verify", "folder", "--images", "20", "--truth", "truth.tsv", exit_code=5)
    assert wrong["right"] is False and wrong["wrong"]


def test_what_no_file_can_be_is_told_before_the_work(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    call("generate", "--neurons", "64", "--layers", "2", "-o", "net.npz")
    Path("folder").mkdir()
    monkeypatch.setattr(SparseNetwork, "categories", lambda *_, **__: pytest.fail("it ran"))
    monkeypatch.setattr(SparseNetwork, "pack", lambda *_, **__: pytest.fail("it packed"))
    for words in (
        ("generate", "-o", "folder"),
        ("generate", "--neurons", "64", "--layers", "2", "--tsv", "-o", "net.npz"),
        ("run", "net.npz", "-o", "folder"),
        ("pack", "net.npz", "-o", "folder"),
    ):
        error = call(*words, exit_code=1)["error"]
        assert error["type"] == "OutputError" and words[-1] in error["message"]


def test_only_run_takes_packed_networks(call: Any) -> None:
    call("generate", "--neurons", "64", "--layers", "2", "-o", "net.npz")
    call("pack", "net.npz", "--batch", "20", "-o", "net.packed")
    for command in (["verify"], ["tune"], ["pack", "-o", "again.packed"]):
        assert "is packed" in call(*command, "net.packed", exit_code=3)["error"]["message"]


def test_an_interrupted_search_ends_with_130(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    call("generate", "--neurons", "64", "--layers", "2", "-o", "net.npz")
    tune = SparseNetwork.tune

    def interrupted(*given: Any, **options: Any) -> Any:
        return replace(tune(*given, **options), was_interrupted=True)

    monkeypatch.setattr(SparseNetwork, "tune", interrupted)
    found = call("tune", "net.npz", "--batch", "20", "--trials", "1", exit_code=130)
    assert found["interrupted"] is True and found["database"].endswith("tuning.db")


def test_people_are_told_which_categories_are_wrong_and_of_the_emulator(
    call: Any, tmp_path: Path, emulator_settings: Settings
) -> None:
    call("generate", "--neurons", "64", "--layers", "2", "-o", "net.npz")
    (tmp_path / "truth.tsv").write_text("3\n")
    words = ["network", "verify", "net.npz", "--images", "3", "--truth", "truth.tsv", "--device", "emulator"]
    live = set(read_live(call)) ^ {3}
    wrong = CliRunner().invoke(cli, words)
    assert wrong.exit_code == 5 and f"WRONG: {len(live)} of 3 inputs" in wrong.stdout
    assert ": " + ", ".join(map(str, sorted(live))) + ";" in wrong.stdout and "--exact" in wrong.stdout
    run = CliRunner().invoke(cli, ["network", "run", "net.npz", "--images", "3", "--device", "emulator"])
    assert run.exit_code == 0 and "The emulator proves" in run.stderr


def read_live(call: Any) -> list[int]:
    """The inputs that live, counted from one."""
    call("run", "net.npz", "--images", "3", "-o", "live.tsv")
    return [int(number) for number in Path("live.tsv").read_text().split()]


def test_missing_files_are_told(call: Any) -> None:
    error = call("run", "nothing.npz", exit_code=3)["error"]
    assert error["type"] == "MatrixError" and "nothing.npz" in error["message"]


def test_bias_clip_and_activation_are_options(call: Any) -> None:
    matrix = as_csr(np.diag([1.0, -1.0] * 8).astype(np.float32))
    save_network(Network.of([matrix, matrix], -0.5, 32.0), "net.npz")
    np.save("y.npy", np.eye(16, dtype=np.float32))

    def live(*options: str) -> int:
        return int(call("run", "net.npz", "--inputs", "y.npy", *options)["live"])

    assert live() == 0  # 1 - 0.5 - 0.5
    assert live("--bias", "-0.25") == 8
    assert live("--bias", "-0.25", "--activation", "none") == 16
    assert live("--bias", "-0.25", "--clip", "0.125") == 0
    assert call("verify", "net.npz", "--inputs", "y.npy", "--bias", "-0.25")["live"] == 8
    call("pack", "net.npz", "--batch", "4", "-o", "packed.npz")
    said = call("run", "packed.npz", "--images", "4", "--bias", "-0.25", exit_code=3)["error"]["message"]
    assert "give none of them" in said


def test_tuning_on_the_emulator_takes_a_small_batch(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = []
    real = SparseNetwork.tune

    def tune(self: SparseNetwork, batch: int, *given: Any, **options: Any) -> Any:
        batches.append(batch)
        return real(self, batch, *given, **options)

    monkeypatch.setattr(SparseNetwork, "tune", tune)
    call("generate", "--neurons", "64", "--layers", "2", "-o", "net.npz")
    call("tune", "net.npz", "--trials", "1")
    assert batches == [64]
