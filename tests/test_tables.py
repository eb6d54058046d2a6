"""The documents' tables are those that the raw results make; and what makes them, on synthetic results."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_samples import cell, results, row, sweep
from patience import LONG

from sparsegen.bench import result_file
from sparsegen.bench.results import Kind
from sparsegen.errors import SparsegenError
from sparsegen.operators import DType

ROOT = Path(__file__).parents[1]
GPU = ROOT / "benchmarks" / "results" / "nvidia-h100-80gb-hbm3-sm90"


@pytest.mark.skipif(not list(GPU.glob("bench_*.json")), reason="no bench_*.json among the committed results")
def test_the_tables_are_up_to_date() -> None:
    command = [sys.executable, "-m", "benchmarks.make_tables", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`benchmarks.make_tables` with a folder of results of its own, ``tables.RESULTS``."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import make_tables

    monkeypatch.setattr(make_tables, "RESULTS", tmp_path)
    return make_tables


def test_summary_and_cases(tables: Any) -> None:
    result_file.write(results(row("first")), tables.RESULTS / "bench_a.json")
    result_file.write(results(row("second", suite="other")), tables.RESULTS / "bench_b.json")
    filled = tables.fill(
        "<!-- performance:begin -->\nold\n<!-- performance:end -->\n<!-- cases:begin --><!-- cases:end -->"
    )
    assert "\nold\n" not in filled
    assert "| made-up, fp32 | 1 | 2.00 × | 1.60 × | – | 1.20 × | 1 of 1 |" in filled
    assert "### other, fp32, row-major" in filled
    assert "| second | 5.00 | 6.00 | 10.00 | 8.00 | cusparse-csr | 2.00 | 1.60 |" in filled
    assert "Made-up GPU, driver 580.1, 2026-01-02" in filled
    assert tables.fill(filled) == filled


def test_sputnik_stands_beside_the_rows_that_it_was_timed_on(tables: Any) -> None:
    [known] = [
        us["sputnik"] for key, us in tables.peers().items() if key == ("rnn", "4096x1024x32 .70", "float32")
    ]
    ours = row("4096x1024x32 .70", suite="rnn")
    result_file.write(results(ours, row("made up", suite="rnn")), tables.RESULTS / "bench_a.json")
    assert f"| {known / 5.0:.2f} × | 1.20 × | 2 of 2 |" in tables.performance()


def test_a_second_run_beside_the_first(tables: Any) -> None:
    result_file.write(sweep(), tables.RESULTS / "bench_a.json")
    result_file.write(sweep(), tables.RESULTS / "repeat_a.json")
    assert "| made-up, fp32 | 1.000 | 1.000 |" in tables.reproduction()


def test_rows_that_were_not_timed_have_a_dash(tables: Any) -> None:
    result_file.write(results(replace(row("bare"), cells=())), tables.RESULTS / "bench_a.json")
    assert "| made-up, fp32 | 1 | – | – | – | – | – |" in tables.performance()
    assert "| bare | – | – | – | – | – |" in tables.cases()


def write(tables: Any, name: str, *rows: dict[str, Any], marker: str = "") -> str:
    """A made-up result file, and its table."""
    facts = {"device": "Made-up GPU", "driver": "580.1", "date": "2026-01-02", "command": f"python -m {name}"}
    (tables.RESULTS / f"{name}.json").write_text(json.dumps({**facts, "rows": rows}))
    marker = marker or name.replace("_", "-")
    return str(tables.fill(f"<!-- {marker}:begin --><!-- {marker}:end -->"))


@pytest.mark.parametrize("name", ["sddmm", "softmax", "attention", "training", "graph-capture", "mobilenet"])
def test_what_was_not_measured_says_so(tables: Any, name: str) -> None:
    filled = tables.fill(f"<!-- {name}:begin --><!-- {name}:end -->")
    assert "Not measured yet: `" in filled and name.replace("-", "_") in filled


def test_sampled_products_beside_their_peers(tables: Any) -> None:
    case, suite = "4096x4096x64 .95", "sddmm"
    vendor = cell("cusparse-sddmm", Kind.SPARSE, 20.0)
    wide = row(case, suite=suite, ours=10.0)
    wide = replace(wide, cells=(*wide.cells, vendor))
    half = row(case, suite=suite, ours=5.0, dense=8.0, dtype=DType.FLOAT16)
    result_file.write(results(wide, half), tables.RESULTS / "bench_a.json")
    table = tables.sddmm()
    # Sputnik took 97.7 µs, so that cuSPARSE is the better; float16 is held against its float32.
    assert f"| {case} | 10.00 | 20.00 | 97.70 | 0.50 | 5.00 | 0.25 | 8.00 | 0.62 |" in table
    assert "| geometric mean | – | – | – | 0.50 | – | 0.25 | – | 0.62 |" in table


def test_sweeps(tables: Any) -> None:
    configs = [{"us": us, "config": {"warps": warps, "depth": 4}} for us, warps in ((10.0, 8), (12.0, 4))]
    facts = {"workload": "64x64x8 0.50", "vendors_us": {"cublas": 20.0}, "guess_us": 12.0, "configs": configs}
    table = write(tables, "sweep_decode_n8", facts, marker="decode-n8")
    assert "| 64x64x8 0.50 | 20.00 | 12.00 | 10.00 | 0.50 | 2 | warps=8 |" in table


def test_softmaxes(tables: Any) -> None:
    facts = {"mask": "random 12288 0.90", "dtype": "float32", "operator": "sparse_softmax"}
    times = {"ours": 50.0, "copy": 40.0, "torch padded": 300.0}
    one = facts | {"nonzeros": 15_000_000, "us": times, "copy_us": 40.0, "gb_per_s": 2400.0, "of_copy": 0.8}
    other = one | {"operator": "sparse_softmax_backward", "us": {"ours": 60.0, "copy": 40.0}}
    table = write(tables, "softmax", one, other)
    assert "| random 12288 0.90, fp32 | 15.00 | 50.00 | 2400 | 40.00 | 80 % | 300.00 | 115.10 |" in table
    assert "| random 12288 0.90, fp32, backward | 15.00 | 60.00 | 2400 | 40.00 | 80 % | – | – |" in table
    assert "Made-up GPU, driver 580.1, 2026-01-02; made by `python -m softmax`" in table


def test_attentions(tables: Any) -> None:
    ours = {"sees_mask": True, "us": 100.0, "bytes": 2**21, "error": 1e-6}
    dense = {"sees_mask": False, "us": 250.0, "bytes": None, "error": 1e-6}
    table = write(
        tables,
        "attention",
        {
            "mask": "band", "length": 12288, "heads": 8, "width": 128, "dtype": "float16",
            "contenders": {"sparsegen": ours, "dense flash": dense}, "left_out": {"flex": "no Triton"},
        },
    )  # fmt: skip
    assert "| band 12288, 8 × 128, fp16 | sparsegen | the mask | 100.00 | 1.00 | 2 |" in table
    assert "| band 12288, 8 × 128, fp16 | dense flash | dense, causal | 250.00 | 2.50 | – |" in table
    assert "- band 12288, 8 × 128, fp16, flex: no Triton" in table


def test_training_and_graphs(tables: Any) -> None:
    losses, speeds = {"sparse": 0.5, "dense": 0.50004}, {"sparse": 3.0, "dense": 2.0}
    curve = {"part": "mlp-float32", "steps": 300, "difference": 1e-5, "noise": 0.02}
    table = write(tables, "training", curve | {"last_loss": losses, "ms_per_step": speeds})
    assert "| mlp-float32 | 300 | 0.5000 | 0.5000 | 1.0e-05 | 2.0e-02 | 3.00 | 2.00 |" in table
    facts = {"dtype": "float16", "captured_in_cuda_graph": True, "host_synchronisations": 0, "error": 1e-3}
    counts = {"graphs_compiled_first": 1, "value_changes": 5, "graphs_compiled_later": 0}
    assert "| fp16 | yes | 0 | 1 | 5 | 0 | 1.0e-03 |" in write(tables, "graph_capture", facts | counts)


def test_convolutions(tables: Any) -> None:
    times = {"ours": 8.0, "cublas": 12.0, "cublaslt fused": 10.0}
    sizes = {"width": 1.3, "m": 664, "k": 664, "n": 196, "count": 5}
    table = write(tables, "mobilenet", sizes | {"us": times, "to_dense": 1.25, "family": "csr_spmm"})
    assert "| 1.3 ×: 664 × 664 × 196 | 5 | 8.00 | 12.00 | 10.00 | – | 1.25 | csr_spmm |" in table


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<!-- performance:begin --><!-- performance:end -->", "has no bench_"),
        ("<!-- layouts:begin --><!-- layouts:end -->", "no table is called layouts"),
        ("<!-- cases:begin -->", "has no <!-- cases:end -->"),
    ],
)
def test_what_cannot_be_made_is_told(tables: Any, text: str, complaint: str) -> None:
    with pytest.raises(SparsegenError, match=complaint):
        tables.fill(text)
