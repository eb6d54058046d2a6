"""``sparsegen prune``: the report, what is written, the comparison, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import Command
from tuning_samples import baseline, timed

import sparsegen
from sparsegen import backends
from sparsegen.operators import SpmmProblem
from sparsegen.pruning.pruner import prune_file
from sparsegen.pruning.request import PruneRequest
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.store import Store


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "weights.npz"
    layers = {"conv": (16, 4, 3, 3), "up": (64, 32), "head": (10, 64)}
    arrays = {name: rng.standard_t(4, shape).astype(np.float32) for name, shape in layers.items()}
    np.savez(path, **arrays, bias=np.ones(10, np.float32))
    return path


def test_a_report_without_output_writes_nothing(run: Command, weights: Path) -> None:
    shown = run("prune", weights, "--pattern", "uniform", "--sparsity", "0.75").stdout
    for part in (
        "16 × 4 × 3 × 3",
        "one threshold over all layers",
        "copied untouched: bias (1-D)",
        "nothing written",
    ):
        assert part in shown
    assert list(weights.parent.iterdir()) == [weights]


def test_what_is_written_and_said(run: Command, weights: Path) -> None:
    out = weights.with_name("out.npz")
    arguments = (
        "prune",
        weights,
        "--pattern",
        "uniform",
        "--sparsity",
        "0.75",
        "--scope",
        "layer",
        "-o",
        out,
    )
    said = run.json(*arguments)
    with np.load(out) as written, np.load(weights) as given:
        expected = sparsegen.prune(dict(given), sparsity=0.75, scope="layer")
        assert all(np.array_equal(written[name], expected.weights[name]) for name in given)
    assert said["output"] == str(out) and said["times"] is None and said["scope"] == "layer"
    assert [layer["name"] for layer in said["layers"]] == ["conv", "up", "head"]
    conv = said["layers"][0]
    assert conv["matrix_shape"] == [16, 36] and conv["sparsity"] == 0.75 and conv["row_cov"] == 0
    assert conv["kept"] == 16 * 9 and 0 < conv["kept_energy"] < 1
    assert said["copied"] == [{"name": "bias", "shape": [10], "dtype": "float32", "reason": "1-D"}]
    error = run.json(*arguments, exit_code=3)["error"]
    assert error["type"] == "OutputExistsError" and "--force" in error["message"]
    assert f"written to {out}" in run(*arguments, "--force").stdout


def test_layers_that_tune_reads(run: Command, weights: Path) -> None:
    folder = weights.with_name("layers")
    run(
        "prune",
        weights,
        "--pattern",
        "nm",
        "--nm",
        "1:4",
        "--format",
        "csr-npz",
        "-o",
        folder,
        "--tensor",
        "u*",
    )
    assert [p.name for p in folder.iterdir()] == ["up.npz"]
    assert run.json("lookup", "--matrix", folder / "up.npz", "-n", 32)["problem"]["m"] == 64


def test_codes_and_scales_that_prepare_takes(run: Command, weights: Path) -> None:
    folder = weights.with_name("layers")
    pruned = ("prune", weights, "--pattern", "unstructured", "--sparsity", "0.5", "--scope", "layer")
    run(*pruned, "--values", "int4", "--group", "32", "--format", "csr-npz", "-o", folder)
    quantised = sparsegen.load_quantized(folder / "up.npz")
    assert (quantised.value_type, quantised.group, quantised.dtype) == ("int4", "32", "float16")
    with np.load(weights) as file:
        given = np.where(quantised.codes.to_dense() != 0, file["up"], 0)
    assert np.abs(quantised.dequantized().to_dense() - given).max() <= 0.51 * quantised.scales.max()
    assert quantised.codes.nnz == 64 * 32 // 2


def test_codes_that_a_calibration_chooses(run: Command, weights: Path) -> None:
    pruned = (
        "prune",
        weights,
        "--pattern",
        "unstructured",
        "--sparsity",
        "0.5",
        "--scope",
        "layer",
        "--tensor",
        "up",
    )
    coded = (*pruned, "--values", "int4", "--group", "32", "--format", "csr-npz", "--asymmetric")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 8)) @ rng.standard_normal((8, 32)) + 0.01 * rng.standard_normal((200, 32))
    inputs = weights.with_name("inputs.npz")
    np.savez(inputs, up=x)
    nearest = run.json(*coded, "-o", weights.with_name("nearest"))
    chosen = run.json(*coded, "--calibration", inputs, "-o", weights.with_name("chosen"))
    assert nearest["rounding_errors"].keys() == chosen["rounding_errors"].keys() == {"up"}
    assert run.json(*pruned)["rounding_errors"] is None
    made = [sparsegen.load_quantized(weights.with_name(f) / "up.npz") for f in ("nearest", "chosen")]
    with np.load(weights) as file:
        codes = made[0].codes
        rows = np.repeat(np.arange(codes.shape[0]), np.diff(codes.row_offsets))
        exact = codes.with_values(file["up"][rows, codes.column_indices])
    assert all(m.zero_points is not None for m in made)
    for report, one in zip((nearest, chosen), made, strict=True):
        assert report["rounding_errors"]["up"] == pytest.approx(one.rounding_error(exact))
    errors = [np.linalg.norm(x @ (m.dequantized().to_dense() - exact.to_dense()).T) for m in made]
    assert errors[1] < 0.8 * errors[0]
    assert "rounding error" in run(*coded, "-o", weights.with_name("third")).stdout
    np.savez(inputs, other=x)
    refused = run(*coded, "--calibration", inputs, "-o", weights.with_name("fourth"), exit_code=None)
    assert "has no inputs of up; there are other" in refused.stderr and refused.exit_code == 3
    inputs.write_bytes(b"none")
    refused = run(*coded, "--calibration", inputs, "-o", weights.with_name("fifth"), exit_code=None)
    assert "inputs.npz" in refused.stderr and refused.exit_code == 3


def test_times_are_measured_ones(run: Command, weights: Path) -> None:
    arguments = ("prune", weights, "--pattern", "uniform", "--sparsity", "0.75", "-n", "64")
    before = run.json(*arguments)["times"]
    assert [t["source"] for t in before["layers"]] == ["not measured"] * 3
    assert not run.db.exists(), "a look-up makes no database"
    assert "not measured" in run(*arguments).stdout

    layer = prune_file(weights, PruneRequest.parse("uniform", 0.75)).layers[1]
    workload = Workload(SpmmProblem(64, 32, 64), layer.fingerprint, layer.features)
    emulator = backends.emulator_device()
    with Store.open(run.db) as store:
        store.add_measurement(timed(12.5, workload, device=emulator, tile_n=32))
        store.add_baseline(replace(baseline(40, workload), device=emulator))
    times = run.json(*arguments)["times"]
    assert times["layers"][1] | {"family": ""} == {
        "layer": "up", "source": "exact", "sparse_us": 12.5, "dense_us": 40, "distance": 0, "family": "",
        "dense_source": "measured", "faster": "sparse",
    }  # fmt: skip
    assert times["sparse_us"] is None and times["known_layers"] == 1
    shown = run(*arguments).stdout
    assert "12.5 µs" in shown and "40 µs" in shown and "exact (csr_spmm)" in shown
    compared = run("prune", weights, "--compare-patterns", "--sparsity", "0.75", "-n", "64").stdout
    assert "1 of 3 (1 exact)" in compared


def test_patterns_side_by_side(run: Command, weights: Path) -> None:
    arguments = (
        "prune",
        weights,
        "--compare-patterns",
        "--sparsity",
        "0.5",
        "--block",
        "8x8",
        "--exclude",
        "head",
    )
    said = run.json(*arguments)
    assert [p["pattern"] for p in said["patterns"]] == [
        "uniform", "unstructured", "block 8x8", "blocked-uniform 8x8", "nm 2:4",
    ]  # fmt: skip
    assert all(len(p["layers"]) == 2 for p in said["patterns"])
    assert "left out: nm" in run("prune", weights, "--compare-patterns", "--sparsity", "0.9").stdout


def test_an_emptied_layer_is_said_aloud(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    np.savez(path, large=np.ones((8, 8)), small=np.full((2, 8), 1e-3))
    shown = run("prune", path, "--pattern", "unstructured", "--sparsity", "0.5").stdout
    assert "NOTHING IS LEFT of small: use --scope layer, or --exclude" in shown
    assert "rounding: to whole weights" in shown
    np.savez(path, one=np.ones((1, 1)), large=np.ones((8, 8)))
    shown = run("prune", path, "--pattern", "unstructured", "--sparsity", "0.9", "--scope", "layer").stdout
    assert "NOTHING IS LEFT of one: use --exclude" in shown


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        ((), 2, "--pattern"),
        (("--pattern", "uniform"), 3, "needs a sparsity"),
        (("--pattern", "uniform", "--sparsity", "90"), 3, "0.9 is 90 %"),
        (("--pattern", "nm", "--sparsity", "0.9"), 3, "2:4 prunes 0.5"),
        (("--pattern", "nm", "--nm", "2/4"), 3, "of the form 2:4"),
        (("--pattern", "block", "--sparsity", "0.5", "--block", "32"), 3, "of the form 32x32"),
        (("--pattern", "uniform", "--sparsity", "0.5", "--tensor", "none"), 3, "matches none of"),
        (("--pattern", "uniform", "--sparsity", "0.5", "-o", "out.npy"), 3, "name it so"),
        (("--pattern", "nm", "-n", "64", "--device", "tpu", "-o", "out.npz"), 4, "no device 'tpu'"),
        (("--pattern", "nm", "--values", "int4"), 2, "written by --format csr-npz"),
        (("--pattern", "nm", "--group", "32"), 2, "--group is for --values"),
        (("--pattern", "nm", "--asymmetric"), 2, "--asymmetric is for --values"),
        (("--pattern", "nm", "--calibration", "x.npz"), 2, "--calibration is for --values"),
        (("--pattern", "nm", "--values", "e4m3", "--asymmetric"), 3, "e4m3 is symmetric"),
        (("--compare-patterns",), 2, "needs --sparsity"),
        (("--compare-patterns", "--sparsity", "0.5", "--pattern", "nm"), 2, "goes without"),
        (("--compare-patterns", "--sparsity", "0.5", "-o", "out.npz"), 2, "goes without"),
    ],
)
def test_what_is_refused(
    run: Command, weights: Path, arguments: tuple[str, ...], exit_code: int, message: str
) -> None:
    error = run.json("prune", weights, *arguments, exit_code=exit_code)["error"]
    assert message in error["message"]
    assert not Path("out.npz").exists()
    run("prune", weights.with_name("none.npz"), "--pattern", "nm", exit_code=3)


@pytest.mark.parametrize("times", [(), ("-n", "8")], ids=["report", "times"])
def test_layers_with_long_names_are_told_apart(run: Command, tmp_path: Path, times: tuple[str, ...]) -> None:
    names = [f"model.decoder.layers.31.mlp.a_rather_long_projection.{'x' * 60}_{part}" for part in "ab"]
    path = tmp_path / "weights.npz"
    np.savez(path, **{name: np.random.default_rng(0).standard_normal((64, 32), np.float32) for name in names})
    shown = run("prune", path, "--pattern", "unstructured", "--sparsity", "0.9", *times).stdout
    assert all(name in shown for name in names) and "…" not in shown
