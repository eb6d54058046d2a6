"""The documents' tables are those that the raw results make; and what makes them, on synthetic results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bench_samples import cell, results, row
from patience import LONG

from sparsegen.backends.executor import Toolchain
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.results import result_file
from sparsegen.bench.results.results import Kind, Row
from sparsegen.bench.run.request import Progress, Request
from sparsegen.bench.run.run import Finished
from sparsegen.errors import CompileError, SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import (
    Density,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    MaskedProblem,
    Problem,
    SddProblem,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
)
from sparsegen.settings import Settings
from sparsegen.system.publish import publish_text

ROOT = Path(__file__).parents[1]
GPU = ROOT / "benchmarks" / "results" / "nvidia-h100-80gb-hbm3-sm90"


@pytest.mark.skipif(
    not list(GPU.glob("bench_*.json.xz")), reason="no bench_*.json.xz among the committed results"
)
def test_the_tables_are_up_to_date() -> None:
    command = [sys.executable, "-m", "benchmarks.make_tables", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stdout + done.stderr


def test_performance_stays_a_page() -> None:
    """A screenful a section: what was tried goes to docs/notes, rows go beside the raw results."""
    text = (ROOT / "docs" / "performance.md").read_text()
    assert len(text.splitlines()) <= 300
    assert max(section.count("\n") for section in text.split("\n## ")) <= 50


def test_notes_stay_short() -> None:
    """Notes say what holds, what bounds it and what did not help: a page each, and no diary."""
    sizes = {note.name: note.stat().st_size for note in (ROOT / "docs" / "notes").glob("*.md")}
    assert max(sizes.values()) <= 14 * 1024, sizes
    assert sum(sizes.values()) <= 90 * 1024, sizes


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`benchmarks.make_tables` with a folder of results of its own, ``tables.RESULTS``."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import make_tables

    monkeypatch.setattr(make_tables, "RESULTS", tmp_path)
    monkeypatch.setattr(make_tables, "DEVICES", [tmp_path])
    return make_tables


def test_low_bits_beside_dense_ones_of_as_many(tables: Any, tmp_path: Path) -> None:
    assert "Not measured yet" in tables.TABLES["low-bit"]()
    times = {"humming_w4": 20.0, "humming_w8": 40.0, "humming_fp8": 33.0, "50% int4": 25.0, "50% e4m3": 30.0}
    rows = [
        {"m": 512, "k": 256, "n": n, "what": what, "us": us * n, "state": "1" * 40}
        for n in (8, 1)
        for what, us in times.items()
    ]
    facts = {"device": "a GPU", "driver": "1", "date": "2026-01-01", "command": "it"}
    publish_text(tmp_path / "low_bit_race.json.xz", json.dumps(facts | {"rows": rows}))
    lines = tables.TABLES["low-bit"]().splitlines()
    assert lines[0] == "| 1, 4, 8, 16 tokens | 512 × 256 |"
    assert "| `int4`, 50 % / dense 4 bits | 0.80, –, 0.80, – |" in lines
    assert "| `e4m3`, 50 % zeros / dense 8 bits | 1.10, –, 1.10, – |" in lines
    assert (
        "| `int4`, 2:4 / dense 4 bits | – |" in lines and "| dense 8 bits, µs | 33.0, –, 264.0, – |" in lines
    )


def made(tables: Any, name: str) -> str:
    return str(tables.TABLES[name]())


def test_summary_and_rows(tables: Any) -> None:
    result_file.write(results(row("first")), tables.RESULTS / "bench_a.json.xz")
    result_file.write(results(row("second", suite="other")), tables.RESULTS / "bench_b.json.xz")
    filled = tables.fill("<!-- performance:begin -->\nold\n<!-- performance:end -->")
    assert "\nold\n" not in filled
    assert (
        "| made-up, fp32 | 1 | 2.00 × | 0.50 × | 1.60 × | 1.20 × | 1 of 1 | 1.50 | 300 | 2026-01-02; nvcc |"
        in filled
    )
    assert "Made-up GPU, driver 580.1, 2026-01-02" in filled
    assert tables.fill(filled) == filled
    pages = {name: tables.suite_tables.suite(tables.RESULTS, name) for name in ("other", "made-up")}
    assert pages["other"].startswith("# other\n\n## fp32, row-major")
    line = "| second | 5.00 | 6.00 | 10.00 | 8.00 | cusparse-csr | 2.00 | 1.60 |"
    assert line in pages["other"] and line not in pages["made-up"]
    assert "measured by a state that its file does not name" in pages["other"]


def test_a_mean_over_some_of_the_rows_says_so(tables: Any) -> None:
    sparse_alone = replace(row("large"), cells=tuple(c for c in row().cells if c.kind is not Kind.DENSE))
    result_file.write(results(row("small"), sparse_alone), tables.RESULTS / "bench_a.json.xz")
    assert "| made-up, fp32 | 2 | 2.00 × (1 of 2) | 0.50 × (1 of 2) | 1.60 × |" in made(tables, "performance")


def test_where_nothing_was_tuned_the_untuned_stand_for_us(tables: Any) -> None:
    untuned = replace(row("plain"), cells=tuple(c for c in row().cells if c.baseline != "sparsegen"))
    result_file.write(results(untuned), tables.RESULTS / "bench_a.json.xz")
    assert "made-up" not in made(tables, "performance"), "which is of tuned winners"
    page = tables.suite_tables.suite(tables.RESULTS, "made-up")
    assert "| plain | – | 6.00 | 10.00 | 8.00 | cusparse-csr | 1.67 | 1.33 |" in page


def drawn_row(case: str, default: float, graph: float, *, tuned: float = 4.0) -> Row:
    """A row in float32 that takes 5 µs untuned, 6 dense in TF32 and 3 by a peer."""
    problem = DsdProblem(1000, 1200, 900)
    cells = (
        cell("sparsegen", Kind.OURS, tuned),
        cell("sparsegen-untuned", Kind.OURS, 5.0),
        cell("sparsegen-default", Kind.OURS, default),
        cell("sparsegen-graph", Kind.OURS, graph),
        cell("cublas", Kind.DENSE, 12.0),
        replace(cell("cublaslt", Kind.DENSE, 6.0), arithmetic=Arithmetic.TF32),
        cell("triton-blocks", Kind.SPARSE, 3.0),
    )
    return replace(row(case), suite="drawn-dsd-7", problem=problem, cells=cells)


def test_drawn_rows(tables: Any, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from benchmarks import drawn_tables

    assert "no `drawn_*.json.xz`" in made(tables, "drawn")
    half = replace(drawn_row("third", 5.0, 5.0), problem=DsdProblem(1000, 1200, 900, DType.FLOAT16), cells=())
    file = tables.RESULTS / "drawn_dsd_7.json.xz"
    pair = drawn_row("first", 5.0, 5.5), drawn_row("second", 10.0, 5.0)
    more = [replace(one, case=f"{one.case} {number}") for one in pair for number in range(4)]
    ratios = "1.250 (1.25) | 1.414 (2.00) | 1.049 (1.10) | 0.667 (0.67) | 1.333 (1.33)"
    for rows in ((*pair, half), (*pair, *more, half)):
        result_file.write(results(*rows), file)
        shown = made(tables, "drawn")
        assert f"| `dsd`, 7 | {len(rows)} | {ratios} |" in shown and "Made-up GPU" in shown
        told = drawn_tables.summary([result_file.read(file)])
        assert f"| drawn-dsd-7 | {len(rows)} | {ratios} |" in told
        assert (f"| drawn-dsd-7, fp32 | 10 | {ratios} |" in told) is (len(rows) > drawn_tables.FEW)
        assert "fp16" not in told, "a row alone"
    older = [replace(one, suite="drawn-dsd-6", measured=datetime(2026, 1, 1, tzinfo=UTC)) for one in pair]
    result_file.write(results(*older, *(replace(one, measured=datetime.now(UTC)) for one in pair)), file)
    assert "| `dsd`, 7, 6 | 4 |" in made(tables, "drawn"), "seven's rows are too few"
    result_file.write(
        results(*older, *(replace(one, measured=datetime.now(UTC)) for one in (*pair, *more))), file
    )
    assert "| `dsd`, 7 | 10 |" in made(tables, "drawn"), "the newest seed has enough"
    result_file.write(results(*pair, *more, half), file)
    done = CliRunner().invoke(drawn_tables.main, [str(file), "--worst", "1"])
    assert (
        "default / min(ours, dense): drawn-dsd-7 second, fp32 | 2.00 | 4.00 | 5.00 | 10.00 |" in done.output
    )
    (tmp_path / "broken.json").write_text("{}")
    assert CliRunner().invoke(drawn_tables.main, [str(tmp_path / "broken.json")]).exit_code == 1


def test_drawn_rows_of_all_operators_in_one_run(
    tables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators take turns row by row, in the time that compiling leaves; the tables are of all rows that are there."""
    from click.testing import CliRunner

    from benchmarks import drawn_rows

    asked: list[Request] = []

    def run(request: Request, progress: Progress) -> Finished:
        asked.append(request)
        return Finished(results(drawn_row("first", 5.0, 5.0)), (), kept=1, left=3, skipped=(), missing=())

    def compile_ahead(cases: Sequence[Case], device: Device, variants: int, seconds: float) -> list[str]:
        return [f"{len(cases)} rows, {variants} variants, {seconds:.0f} s"]

    monkeypatch.setattr(drawn_rows, "run", run)
    monkeypatch.setattr(drawn_rows, "compile_ahead", compile_ahead)
    words = ["--seed", "7", "--operator", "sddmm", "--operator", "spmm", "--rows", "2", "--minutes", "5"]
    done = CliRunner().invoke(drawn_rows.main, [*words, "--into", str(tmp_path), "--device", "emulator"])
    assert done.exit_code == 0 and "| drawn-dsd-7 | 1 |" in done.output and "3 left" in done.output, (
        done.output
    )
    assert "| dsd | untuned / tuned | 1 | 1.250 (1.25) | 1.05 (1.25) | short |" in done.output
    assert "4 rows, 16 variants, 120 s" in done.output
    [request] = asked
    assert [case.suite for case in request.cases] == ["drawn-sddmm-7", "drawn-spmm-7"] * 2
    assert request.output == tmp_path / "drawn_7.json.xz" and request.protocol.tune == "16-trials"
    assert request.seconds is not None and 0 < request.seconds < 300
    assert not {one.name for one in request.baselines} & set(drawn_rows.SLOW)
    alone = CliRunner().invoke(drawn_rows.main, [*words, "--compile-for", "nvidia-h200"])
    assert alone.exit_code == 0 and "300 s" in alone.output and len(asked) == 1


def test_rows_are_compiled_ahead(emulator_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import drawn_rows
    from sparsegen.backends.emulator import device

    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    compiled: list[Config] = []

    def compile_variant(config: Config, problem: Problem, toolchain: Toolchain) -> None:
        compiled.append(config)
        if len(compiled) == 2:
            raise CompileError("it is the second")

    monkeypatch.setattr(drawn_rows, "compile_variant", compile_variant)
    [case] = drawn_rows.cases_in_turn(["masked_conv2d_weights"], 7, 1)
    [failure] = drawn_rows.compile_row(case, device(), 3)
    assert len(set(compiled)) == 3 and "it is the second" in failure and str(compiled[1]) in failure


def masked(problem: MaskedProblem, ours: float, dense: float, computed: float = 1.0) -> Row:
    """A row of the suite of structured dropout, not tuned."""
    cells = (
        cell("sparsegen-untuned", Kind.OURS, ours, problem.dtype),
        cell("cublas", Kind.DENSE, 1.1 * dense, problem.dtype),
        cell("cublaslt", Kind.DENSE, dense, problem.dtype),
        cell("triton-blocks", Kind.SPARSE, 3 * ours, problem.dtype),
        cell("torch-dropout", Kind.DENSE, 1.5 * dense, problem.dtype),
    )
    floor = replace(row().floor, computed=computed)
    return replace(row(str(problem)), suite="sparsedrop", problem=problem, cells=cells, floor=floor)


def test_masked_products(tables: Any) -> None:
    sizes, half = (4096, 4096, 4096, DType.FLOAT16), Density(0.5)
    rows = [
        masked(DsdProblem(*sizes, density=Density(1.0)), 100, 99),
        masked(DsdProblem(*sizes, density=half), 55, 100, computed=1.05),
        masked(DsdTransposedProblem(*sizes, density=half), 60, 100),
        masked(SddProblem(*sizes, density=half), 65, 100),
    ]
    result_file.write(results(*rows), tables.RESULTS / "bench_a.json.xz")
    page = made(tables, "masked-products")
    line = "| 4096³, block 128, s = 0.5, fp16 | 100.00 | 55.00 | 60.00 | 65.00 | 1.05 | 1.20 | 1.30 | 0.60 |"
    assert f"{line} 3.00 | 3.00 | 3.00 | 1.50 | 1.50 |" in page


def test_rows_of_several_states_are_marked(tables: Any) -> None:
    first, second = (
        replace(row(case), state=state) for case, state in (("a", "1" * 40), ("b", "2" * 40 + "+changes"))
    )
    result_file.write(results(first, second), tables.RESULTS / "bench_a.json.xz")
    page = tables.suite_tables.suite(tables.RESULTS, "made-up")
    assert "| of the floor | family | state |" in page
    assert [line[-5:] for line in page.splitlines() if line.startswith(("| a |", "| b |"))] == [
        "| 1 |",
        "| 2 |",
    ]
    assert "States: 1: 1111111111; 2: 2222222222+changes." in page
    assert "measured by 1111111111, 2222222222+changes;" in page
    assert "2026-01-02; nvcc; 1111111111; 2222222222+changes" in made(tables, "performance")
    alike = results(first, replace(second, state=first.state))
    result_file.write(alike, tables.RESULTS / "bench_a.json.xz")
    assert "state |" not in tables.suite_tables.suite(tables.RESULTS, "made-up")


def test_the_strongest_of_each_row(tables: Any) -> None:
    """Anchored peers beside those that were timed; what computes something else does not count."""
    peers = tables.peers()["rnn", "4096x1024x32 .70", "float16"]
    assert peers["flash-llm"] == 15.1 and peers["spinfer"] == 13.7 and peers["voltrix-without-values"] == 73.6
    ours = row("4096x1024x32 .70", suite="rnn", dtype=DType.FLOAT16, ours=10.0, sparse=8.0)
    other = row("4096x1024x32 .80", suite="rnn", dtype=DType.FLOAT16, ours=10.0, sparse=99.0)
    result_file.write(
        results(ours, other, row("not anchored", suite="other")), tables.RESULTS / "bench_a.json.xz"
    )
    [line] = [line for line in made(tables, "strongest").splitlines() if line.startswith("| rnn, fp16")]
    assert "other" not in made(tables, "strongest")
    over = (0.8 * 1.31) ** 0.5  # cuSPARSE at 8.0 and SpInfer at 13.1
    assert line.startswith(f"| rnn, fp16 | {over:.2f} × | 1 of 2 |") and "cusparse-csr 1, spinfer 1" in line


def test_rows_that_were_not_timed_have_a_dash(tables: Any) -> None:
    result_file.write(results(replace(row("bare"), cells=())), tables.RESULTS / "bench_a.json.xz")
    assert "| made-up, fp32 | 1 | – | – | – | – |" in made(tables, "performance")
    assert "| bare | – | – | – | – | – |" in tables.suite_tables.suite(tables.RESULTS, "made-up")


def write(tables: Any, name: str, *rows: dict[str, Any], marker: str = "") -> str:
    """A made-up result file, and its table."""
    facts = {"device": "Made-up GPU", "driver": "580.1", "date": "2026-01-02", "command": f"python -m {name}"}
    publish_text(tables.RESULTS / f"{name}.json.xz", json.dumps({**facts, "rows": rows}))
    return made(tables, marker or name.replace("_", "-"))


@pytest.mark.parametrize("name", ["training", "graph-capture"])
def test_what_was_not_measured_says_so(tables: Any, name: str) -> None:
    file = f"{name.replace('-', '_')}.json.xz"
    assert made(tables, name) == f"Not measured yet: there is no `{file}` (benchmarks/README.md)."


def test_sampled_products_beside_their_peers(tables: Any) -> None:
    case, suite = "4096x4096x64 .95", "sddmm"
    vendor = cell("cusparse-sddmm", Kind.SPARSE, 20.0)
    wide = row(case, suite=suite, ours=10.0)
    wide = replace(wide, cells=(*wide.cells, vendor))
    half = row(case, suite=suite, ours=5.0, dense=8.0, dtype=DType.FLOAT16)
    result_file.write(results(wide, half), tables.RESULTS / "bench_a.json.xz")
    table = made(tables, "sddmm")
    # Sputnik took 97.7 µs, so that cuSPARSE is the better; float16 is held against its float32.
    assert f"| {case} | 10.00 | 20.00 | 97.70 | 0.50 | 5.00 | 0.25 | 8.00 | 0.62 |" in table
    assert "| geometric mean | – | – | – | 0.50 | – | 0.25 | – | 0.62 |" in table


def test_sweeps(tables: Any) -> None:
    configs = [{"us": us, "config": {"warps": warps, "depth": 4}} for us, warps in ((10.0, 8), (12.0, 4))]
    facts = {"workload": "64x64x8 0.50", "vendors_us": {"cublas": 20.0}, "guess_us": 12.0, "configs": configs}
    table = write(tables, "sweep_decode_n8", facts, marker="decode-n8")
    assert "| 64x64x8 0.50 | 20.00 | 12.00 | 10.00 | 0.50 | 2 | warps=8 |" in table


@pytest.mark.parametrize("name", ["softmax", "attention"])
def test_suites_that_were_not_measured_say_so(tables: Any, name: str) -> None:
    assert made(tables, name) == (
        f"Not measured yet: no `bench_*.json.xz` holds rows of the suite {name} (benchmarks/README.md)."
    )


def test_softmaxes(tables: Any) -> None:
    case, problem = "12288x12288 .90", SoftmaxProblem(12288, 12288)
    one = row(case, suite="softmax", ours=50.0, m=12288, k=12288)
    one = replace(one, problem=problem, floor=replace(one.floor, bytes=120_000_000))
    copy, padded = cell("copy", Kind.OTHER, 40.0), cell("torch-softmax", Kind.DENSE, 300.0)
    one = replace(one, cells=(*one.cells, copy, padded))
    back = replace(one, case="12288x12288 .90 gradient", problem=SoftmaxBackwardProblem(12288, 12288))
    result_file.write(results(one, back), tables.RESULTS / "bench_a.json.xz")
    table = made(tables, "softmax")
    assert f"| {case}, fp32 | 15.10 | 50.00 | 2400 | 40.00 | 80 % | 300.00 | 115.10 |" in table
    assert f"| {case} gradient, fp32 | 15.10 | 50.00 | 2400 | 40.00 | 80 % | 300.00 | – |" in table


def test_attentions(tables: Any) -> None:
    case, problem = "4096x4096x64 batch=8 band 256", SparseAttentionProblem(4096, 4096, 64, batch=8)
    one = replace(row(case, suite="attention", ours=100.0), problem=problem)
    steps, flex = cell("sparsegen-steps", Kind.OURS, 80.0), cell("torch-flex", Kind.SPARSE, 200.0)
    one = replace(one, cells=(*one.cells, steps, flex))
    result_file.write(results(one), tables.RESULTS / "bench_a.json.xz")
    assert f"| {case} | fp32 | 100.00 | 80.00 | 200.00 (2.50) | – | – |" in made(tables, "attention")


def test_training_and_graphs(tables: Any) -> None:
    losses, speeds = {"sparse": 0.5, "dense": 0.50004}, {"sparse": 3.0, "dense": 2.0}
    curve = {"part": "mlp-float32", "steps": 300, "difference": 1e-5, "noise": 0.02}
    table = write(tables, "training", curve | {"last_loss": losses, "ms_per_step": speeds})
    assert "| mlp-float32 | 300 | 0.5000 | 0.5000 | 1.0e-05 | 2.0e-02 | 3.00 | 2.00 |" in table
    facts = {"dtype": "float16", "captured_in_cuda_graph": True, "host_synchronisations": 0, "error": 1e-3}
    counts = {"graphs_compiled_first": 1, "value_changes": 5, "graphs_compiled_later": 0}
    assert "| fp16 | yes | 0 | 1 | 5 | 0 | 1.0e-03 |" in write(tables, "graph_capture", facts | counts)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<!-- performance:begin --><!-- performance:end -->", "has no bench_"),
        ("<!-- layouts:begin --><!-- layouts:end -->", "no table is called layouts"),
        ("<!-- host:begin -->", "has no <!-- host:end -->"),
    ],
)
def test_what_cannot_be_made_is_told(tables: Any, text: str, complaint: str) -> None:
    with pytest.raises(SparsegenError, match=complaint):
        tables.fill(text)


def test_what_was_dispatched_without_its_suite(tables: Any) -> None:
    """The newest file counts for a suite and type, whichever kind it is."""

    def seen(ratios: dict[str, float]) -> list[Row]:
        made = ((row(case), ratio) for case, ratio in ratios.items())
        return [
            replace(one, cells=(*one.cells, cell("sparsegen-without-suite", Kind.OURS, 5.0 * ratio)))
            for one, ratio in made
        ]

    older, newer = results(*seen({"a": 3.0})), results(*seen({"a": 1.0, "b": 1.21}), row("without it"))
    [ran] = newer.invocations
    later = replace(ran, started=ran.started + timedelta(days=1))
    result_file.write(older, tables.RESULTS / "untuned_a.json.xz")
    result_file.write(replace(newer, invocations=(later,)), tables.RESULTS / "bench_a.json.xz")
    found = made(tables, "unseen").splitlines()
    assert found[2:] == ["| made-up, fp32 | 2 | 1.100 | 1.21 |", "", "Measured 2026-01-03; nvcc."]


def test_uniform_sparsity(tables: Any) -> None:
    def point(suite: str, case: str, ours: float) -> Row:
        return row(case, suite=suite, ours=ours, dtype=DType.FLOAT16)

    rows = [
        point("uniform-shapes", "a", 5.0),
        point("uniform-sparsity", "a", 5.0),
        point("uniform-sparsity", "b", 20.0),
        row("float32", suite="uniform"),
    ]
    result_file.write(results(*rows), tables.RESULTS / "bench_a.json.xz")
    lines = made(tables, "uniform-summary").splitlines()
    assert lines[2].endswith("| 1 | 1.60 × | 2.00 × |")
    assert lines[3].endswith("| 2 | 0.80 × | 1.00 × |")
    assert lines[4].endswith("| 0 | – | – |"), "no point of it was measured"
    assert lines[6] == "| all | 2 | 0.80 × | 1.00 × |", "each point once"
    assert "| b | csr_spmm | 20.00 | 8.00 | 10.00 | 0.40 | 0.50 |" in made(tables, "uniform")


def test_what_is_slower_than_dense(tables: Any) -> None:
    def ran(part: str, over_dense: float, **facts: Any) -> dict[str, Any]:
        return {"part": part, "dtype": "float16", "over_dense": over_dense, **facts}

    rows = [
        ran("encoder", 1.1, mode="graph"),
        ran("products", 0.5, over_best=1.0),
        ran("products", 2.0, over_best=4.0),
    ]
    document = {"device": "made up", "driver": "1", "date": "2026-01-02", "command": "it", "rows": rows}
    publish_text(tables.RESULTS / "never_slower.json.xz", json.dumps(document))
    assert made(tables, "never-slower").splitlines()[2:4] == [
        "| products, fp16 | alone | 2 | 1 | 2.00 | 1.00 × | 2.00 × |",
        "| encoder, fp16 | a CUDA graph | 1 | 1 | 1.10 | 1.10 × | – |",
    ]


def test_parts_of_the_study_of_attention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The newest file that holds a part's rows counts; others are not read for it."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import attention_tables

    sizes = {"heads": 8, "tokens": 4096, "head_dim": 64, "block": 128, "live": 0.27, "state": "abc"}
    times = {"blocks": 20.4, "fused": 30.0, "steps": 300.0, "cudnn_dense": 50.0}
    fixed = sizes | {
        "part": "fixed",
        "window": 0,
        "forward_us": times,
        "expected_forward_us": {"blocks": 22.0, "steps": 299.0},
        "training_us": times,
        "expected_training_us": {"steps": 290.0},
        "chosen": {"forward": "blocks", "training": "steps"},
    }
    warps = sizes | {
        "part": "warps",
        "forward_us": {"mma": 40.0, "tma": 20.0, "flash_dense": 90.0},
        "backward_us": {"mma": 4.0, "tma_one_pass": 2.0, "tma_two_passes": 3.0, "flash_dense": 9.0},
    }
    assert "--part fixed" in attention_tables.fixed([tmp_path])
    assert "--part warps" in attention_tables.warps([tmp_path])
    for name, day, rows in (
        ("", 1, [warps]),
        ("_7", 2, [fixed | {"window": 512, "block": 0}]),
        ("_8", 3, [fixed]),
    ):
        measured = [row | {"measured": f"2026-11-0{day}"} for row in rows]
        document = {"device": "H200", "date": f"2026-11-0{day}", "l2": "cold", "rows": measured}
        publish_text(tmp_path / f"attention_masks{name}.json.xz", json.dumps(document))
    made = attention_tables.fixed([tmp_path])
    cells = (
        "| blocks of 128, 27%, 64 | 20 (22) | 30 | 300 (299) | 50 | blocks | 20 | 300 (290) | 50 | steps |"
    )
    assert cells in made and "512" not in made and "H200, 2026-11-03; measured by abc." in made
    assert "| blocks of 128, 27%, 64 | 40 | 20 | 90 | 4 | 2 | 3 | 9 |" in attention_tables.warps([tmp_path])
