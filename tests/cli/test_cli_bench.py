"""``sparsegen bench`` on the emulator, with the C example as the baseline that runs in no time."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import scipy.sparse
from click.testing import Result
from command_line import Command

from sparsegen.bench.drawn import distributions
from sparsegen.bench.results import result_file
from sparsegen.bench.run.request import Step
from sparsegen.cli import bench as bench_command
from sparsegen.cli.parts.bench_options import Drawing, cases_of_suites, of_dtypes
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType

EXAMPLES = Path(__file__).parents[2] / "examples" / "baseline"
QUICK = ("--device", "emulator", "--rounds", "1", "--samples", "1")
MLP = str(EXAMPLES.parent / "pruned_mlp_layer.npz")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def save_small(file: Path) -> None:
    """A matrix of 16 × 24."""
    scipy.sparse.save_npz(file, scipy.sparse.csr_matrix(random_uniform(16, 24, 0.3, 0).to_scipy()))


class Bench:
    """``sparsegen bench`` of a small matrix with the C example alone."""

    def __init__(self, run: Command, folder: Path, library: Path) -> None:
        self._run = run
        self.matrix = folder / "w.npz"
        save_small(self.matrix)
        self.fixed = ["bench", "--baseline", f"plain={library}:plain_c", "--only", "plain"]
        self.fixed += ["--rounds", "2", "--samples", "2", "--device", "emulator"]

    def __call__(self, *options: str | Path, exit_code: int = 0) -> Result:
        return self._run(*self.fixed, "--matrix", self.matrix, *options, exit_code=exit_code)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("library") / "plain_c.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", EXAMPLES / "plain_c.c", "-o", target], check=True)
    return target


@pytest.fixture
def bench(run: Command, tmp_path: Path, library: Path) -> Bench:
    return Bench(run, tmp_path, library)


def test_a_table_takes_the_place_of_no_other_file(run: Command, tmp_path: Path) -> None:
    (tmp_path / "w.npz").write_bytes(b"precious")
    given = ("bench", "--suite", "rnn", "--csv")
    assert "not a .csv file" in run(*given, "w.npz", exit_code=3).stderr
    assert (tmp_path / "w.npz").read_bytes() == b"precious"
    assert "cannot be written" in run(*given, "w.npz/r.csv", exit_code=1).stderr


@needs_compiler
def test_measure_resume_compare(bench: Bench, tmp_path: Path) -> None:
    output, table = tmp_path / "r.json", tmp_path / "r.csv"
    first = bench("-n", "4", "-n", "8", "-o", output, "--csv", table)
    assert "proves that a variant is correct" in first.stderr
    assert re.search(r"\[2 of 2, \d+\.\d s\] matrix: w.npz n=8, float32, row-major: plain", first.stderr)
    assert "2 rows measured, 0 kept" in first.stdout and "plain" in first.stdout
    assert len(table.read_text().splitlines()) == 3
    held = json.loads(output.read_text())
    assert held["invocations"][0]["command"].startswith("sparsegen bench")
    assert held["versions"]["plain"] == "plain C"

    again = bench("-n", "4", "-n", "8", "-n", "16", "-o", output, "--limit", "0.000001", "--compare", output)
    assert "time is up: 1 row left" in again.stdout and "0 rows measured, 2 kept" in again.stdout
    assert "0 times changed beyond the noise, 2 did not" in again.stdout

    facts = json.loads(bench("-n", "4", "-n", "8", "-o", output, "--compare", output, "--json").stdout)
    assert facts["kept"] == 2 and facts["differing"] == [] and facts["missing"] == {}
    assert [row["case"] for row in facts["results"]["rows"]] == ["w.npz n=4", "w.npz n=8"]

    refused = bench("-n", "4", "-o", output, "--samples", "3", exit_code=3)
    assert "samples: 2 before, 3 now" in refused.stderr


@pytest.mark.usefixtures("shared_cache")
def test_any_operator_and_every_combination_of_its_options(run: Command, tmp_path: Path) -> None:
    matrix, output = tmp_path / "w.npz", tmp_path / "r.json"
    save_small(matrix)
    fixed = ["bench", "--matrix", matrix, *QUICK, "--only", "sparsegen-untuned", "-o", output]
    run(*fixed, "-n", "4", "--epilogue", "none", "--epilogue", "bias_relu", "--batch", "2")
    run(*fixed, "--operator", "sddmm", "-k", "8", "-k", "16", "--dtype", "float16", "--dtype", "float32")
    run(*fixed, "--operator", "sparse_softmax")
    rows = result_file.read(output).rows
    assert [(row.case, row.dtype.value) for row in rows] == [
        ("w.npz n=4 batch=2", "float32"),
        ("w.npz n=4 epilogue=bias_relu batch=2", "float32"),
        ("w.npz sddmm k=8", "float32"),
        ("w.npz sddmm k=16", "float32"),
        ("w.npz sddmm k=8", "float16"),
        ("w.npz sddmm k=16", "float16"),
        ("w.npz sparse_softmax", "float32"),
    ]
    assert all(row.us("sparsegen-untuned") for row in rows)


@pytest.mark.usefixtures("shared_cache")
def test_a_matrix_is_read_as_tune_reads_it(run: Command, tmp_path: Path) -> None:
    matrix, output = tmp_path / "w.mtx", tmp_path / "r.json"
    matrix.write_text("%%MatrixMarket matrix coordinate real general\n2 3 3\n1 1 0\n2 3 1\n2 1 1\n")
    fixed = ["bench", "--matrix", matrix, *QUICK, "-n", "4", "--only", "sparsegen-untuned", "-o", output]
    run(*fixed)
    run(*fixed, "--transpose", "--drop-zeros", "--memory-limit", "1M")
    one, other = result_file.read(output).rows
    assert (one.case, one.problem.m, one.features.nnz) == ("w.mtx n=4", 2, 3)
    assert (other.case, other.problem.m, other.features.nnz) == ("w.mtx without zeros transposed n=4", 3, 2)
    assert "memory" in run(*fixed, "--transpose", "--memory-limit", "1", exit_code=3).stderr


@pytest.mark.usefixtures("shared_cache")
def test_masks_that_come_with_the_call_need_no_matrix(run: Command, tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    fixed = [
        "bench",
        "--device",
        "emulator",
        "--rounds",
        "1",
        "--samples",
        "1",
        "--only",
        "sparsegen-untuned",
    ]
    masked = ["--operator", "dsd", "-m", "64", "-k", "64", "-n", "32", "--block", "32", "--dtype", "float16"]
    run(*fixed, *masked, "--density", "0.3", "--density", "0.5", "-o", output)
    images = ["--operator", "masked_conv2d", "--image-height", "8", "--image-width", "8", "--mask-block", "4"]
    images += [
        "--channels",
        "8",
        "--filters",
        "8",
        "--dtype",
        "float16",
        "--layout",
        "nhwc",
        "--layout",
        "nchw",
    ]
    told = run(*fixed, *images, "-o", output)
    assert "float16, nchw" in told.stderr and "float16, nhwc" in told.stderr
    rows = result_file.read(output).rows
    assert all(row.us("sparsegen-untuned") for row in rows) and {row.suite for row in rows} == {"sizes"}
    assert [(row.case, row.layout) for row in rows] == [
        ("dsd m=64 k=64 n=32 block=32x32 density=0.3", "column"),
        ("dsd m=64 k=64 n=32 block=32x32", "column"),
        *[
            ("masked_conv2d height=8 width=8 channels=8 filters=8 mask_block=4x4", order)
            for order in ("nhwc", "nchw")
        ],
    ]
    again = run(*fixed, *images, "-o", output)
    assert "0 rows measured, 2 kept" in again.stdout


@pytest.mark.usefixtures("shared_cache")
def test_dispatch_without_what_is_packaged_of_the_row(run: Command, tmp_path: Path) -> None:
    matrix, output = tmp_path / "w.npz", tmp_path / "r.json"
    save_small(matrix)
    fixed = ["bench", "--matrix", matrix, *QUICK, "-n", "4"]
    shown = run(*fixed, "--only", "sparsegen-untuned", "--untuned-without", "suite", "-o", output).stdout
    [row] = result_file.read(output).rows
    assert [cell.baseline for cell in row.cells] == ["sparsegen-untuned", "sparsegen-without-suite"]
    assert row.us("sparsegen-without-suite") and "no suite" in shown
    assert "'pattern', 'shape', 'suite'" in run(*fixed, "--untuned-without", "row", exit_code=2).stderr


@needs_compiler
def test_configs_of_a_family(run: Command, tmp_path: Path) -> None:
    matrix, output = tmp_path / "w.npz", tmp_path / "r.json"
    save_small(matrix)
    fixed = ["bench", "--matrix", matrix, *QUICK, "-n", "64"]
    configs = ["--only", "sparsegen-untuned", "--configs", "csr_spmm:row_order=natural,sorted"]
    shown = run(*fixed, *configs, "--show", "1", "-o", output).stdout
    assert "csr_spmm, 2 configs" in shown and shown.count("row_order=") == 1, shown
    assert "tile_k=" not in shown, "settings that all share are left out"
    [row] = result_file.read(output).rows
    assert row.us("csr_spmm") and row.us("sparsegen-untuned"), "the fastest took its turns with the other"
    cell = row.cell("csr_spmm")
    assert cell is not None and len(cell.implementations) == 2 and row.state and row.measured
    refused = run(*fixed, "--configs", "csr_spmm:tile_n=33", exit_code=3)
    assert "tile_n = '33' is none of" in refused.output


@needs_compiler
def test_ctrl_c_keeps_what_is_measured(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(request, progress):  # type: ignore[no-untyped-def]
        def stop_at_second(step: Step) -> None:
            progress(step)
            if step.index == 1:
                raise KeyboardInterrupt

        return real(request, stop_at_second)

    real = bench_command.run
    monkeypatch.setattr(bench_command, "run", interrupted)
    output = tmp_path / "r.json"
    result = bench("-n", "4", "-n", "8", "-o", output, exit_code=130)
    assert f"interrupted after 1 row; {output} holds them" in result.stderr and "w.npz n=4" in result.stdout
    assert [row["case"] for row in json.loads(output.read_text())["rows"]] == ["w.npz n=4"]
    again = bench("-n", "16", "-n", "32", "--json", exit_code=130)
    assert json.loads(again.stdout) == {"error": {"type": "KeyboardInterrupt", "message": "interrupted"}}


def test_the_list(run: Command) -> None:
    shown = run("bench", "--list").stdout
    assert "transformer" in shown and "cusparse-csr" in shown
    facts = run.json("bench", "--list")
    rnn = next(suite for suite in facts["suites"] if suite["suite"] == "rnn")
    assert rnn["cases"] == 12 and rnn["rows"] == 24 and not rnn["needs_data"]
    assert "cublas-tf32" in facts["baselines"]
    assert list(facts["drawn"]) == list(distributions()) and "tokens" in facts["drawn"]["dsd"]["sizes"]
    assert "drawn" in shown


def test_a_suite_in_some_dtypes() -> None:
    cases = cases_of_suites(["rnn", "llm"], None, Drawing("spmm", 0, 1))
    assert of_dtypes(cases, []) == cases
    assert {case.dtypes for case in cases} > {(DType.FLOAT16,)}
    halves = of_dtypes(cases, [DType.FLOAT16])
    assert len(halves) == len(cases) and {case.dtypes for case in halves} == {(DType.FLOAT16,)}
    assert {case.suite for case in of_dtypes(cases, [DType.FLOAT32])} == {"rnn"}


@pytest.mark.parametrize(
    ("options", "exit_code", "words"),
    [
        ((), 2, "--suite NAME"),
        (("--suite", "rnn", "--matrix", "w.npz"), 2, "--suite NAME"),
        (("--suite", "rn"), 3, "did you mean 'rnn'"),
        (("--suite", "dlmc"), 3, "--data"),
        (("--suite", "dlmc", "--data", "nowhere"), 3, "nowhere"),
        (("--suite", "rnn", "--case", "no such"), 3, "no case's name contains no such"),
        (("--suite", "llm", "--dtype", "float32"), 3, "no case has float32 elements; there are float16"),
        (("--suite", "rnn", "--only", "cublass"), 3, "did you mean 'cublas'?"),
        (("--suite", "rnn", "--only", "cublas", "--except", "cublas"), 3, "no baseline is left"),
        (("--suite", "rnn", "--baseline", "x=y"), 3, "name=path.so:symbol"),
        (("--suite", "rnn", "--tune", "soon"), 3, "off, quick, normal, seconds, or variants (64-trials)"),
        (("--suite", "rnn", "--compare", "nowhere.json"), 3, "nowhere.json"),
        (("--matrix", "nowhere.npz"), 3, "nowhere.npz"),
        (("--operator", "dsd", "-m", "64"), 2, "dsd needs --m and -k"),
        (("--operator", "dsd", "--matrix", MLP), 2, "dsd takes its mask with every call: drop --matrix"),
        (("--operator", "dsd", "--suite", "rnn"), 2, "give --matrix FILE, or --suite NAME"),
        (("--matrix", MLP, "--operator", "sparse_softmax", "-n", "4"), 3, "sparse_softmax takes no n"),
        (("--matrix", MLP, "-n", "8", "-n", "0"), 2, "0 is not in the range x>=1"),
        (("--suite", "rnn", "--device", "cuda:x"), 4, "cuda"),
        (
            ("--suite", "rnn", "--rows", "4"),
            2,
            "--rows says how many problems to draw: it needs --suite drawn",
        ),
        (("--suite", "rnn", "--transpose"), 2, "say how --matrix is read"),
        (("--suite", "drawn", "--seed", "-1"), 2, "-1 is not in the range x>=0"),
        (("--suite", "drawn", "--rows", "2", "--case", "no such"), 3, "no case's name contains no such"),
    ],
)
def test_bad_input(run: Command, options: tuple[str, ...], exit_code: int, words: str) -> None:
    result = run("bench", *options, exit_code=exit_code)
    assert words in result.stderr


def test_a_half_written_file(run: Command, tmp_path: Path) -> None:
    broken = tmp_path / "r.json"
    broken.write_text('{"schema": "sparsegen-bench/1"')
    run("bench", "--suite", "rnn", "-o", broken, "--device", "emulator", exit_code=3)
    assert broken.read_text() == '{"schema": "sparsegen-bench/1"'
