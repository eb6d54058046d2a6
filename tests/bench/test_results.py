"""Result files: complete round trip, every complaint names file and place, a kill loses nothing."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bench_samples import VARIANT, cell, results, row, sweep, timing

from sparsegen.bench.results import result_file
from sparsegen.bench.results.merging import merge, require_same_conditions
from sparsegen.bench.results.results import (
    TUNED,
    Cell,
    Floor,
    ImplementationTime,
    Kind,
    Row,
    Status,
)
from sparsegen.errors import ResultsError, ResultsMismatchError, ResultsNewerError
from sparsegen.measure.l2 import L2
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import (
    DType,
    Epilogue,
    ItemValues,
    Layout,
    Problem,
    SddmmEpilogue,
    SddmmProblem,
    SoftmaxProblem,
    SpmmProblem,
)
from sparsegen.tuning_db.json_codec import LARGEST_ERROR


def of(problem: Problem) -> Row:
    return replace(row(), problem=problem)


def explored() -> Row:
    """A row with its state and time of measurement; one cell lists its implementations."""
    made = row()
    implementations = (
        ImplementationTime("tile_n=32", 5.0, variant=VARIANT),
        ImplementationTime("tile_n=64", None, "wrong: by far"),
    )
    first = replace(made.cells[0], implementations=implementations, digest="ab" * 32)
    when = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    return replace(made, cells=(first, *made.cells[1:]), state="0" * 40 + "+changes", measured=when)


@pytest.mark.parametrize(
    "made",
    [
        results(),
        sweep(),
        replace(results(), rates=None),
        results(of(SpmmProblem(512, 512, 64, batch=4, item_values=ItemValues.OWN))),
        results(of(SddmmProblem(512, 512, 64, epilogue=SddmmEpilogue.SCALE))),
        results(of(SoftmaxProblem(512, 512, DType.BFLOAT16))),
        results(explored()),
    ],
)
def test_what_is_written_can_be_read(made: Any, tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    result_file.write(made, path)
    assert result_file.read(path) == made


def test_a_way_has_a_time_or_a_reason() -> None:
    with pytest.raises(ValueError, match="either a time or a reason"):
        ImplementationTime("csr", None)
    document = json.loads(result_file.dump(results(explored())))
    del document["rows"][0]["cells"][0]["implementations"][1]["reason"]
    with pytest.raises(ResultsError, match=r"implementations\[1\]: expected either a time"):
        result_file.load(json.dumps(document), "f.json")


def test_facts_of_any_problem() -> None:
    softmax = of(SoftmaxProblem(512, 256, batch=2))
    assert (softmax.operator, softmax.m, softmax.k, softmax.n) == ("sparse_softmax", 512, 0, 256)
    assert (softmax.layout, softmax.batch, softmax.epilogue) == (Layout.COLUMN, 2, "none")
    assert of(SpmmProblem(4, 4, 4, epilogue=Epilogue.BIAS)).epilogue == "bias"


def test_equal_results_make_equal_text() -> None:
    assert result_file.dump(sweep()) == result_file.dump(sweep())


def test_infinite_errors_are_written_as_numbers(tmp_path: Path) -> None:
    wrong = Cell("x", Kind.SPARSE, Arithmetic.FLOAT32, Status.WRONG, reason="NaN", worst_error=float("inf"))
    text = result_file.dump(results(replace(row(), cells=(wrong,))))
    assert "Infinity" not in text
    assert result_file.load(text, "x").rows[0].cells[0].worst_error == LARGEST_ERROR


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    text = result_file.dump(results())
    for length in (0, 1, len(text) // 2, len(text) - 3):
        path.write_text(text[:length])
        with pytest.raises(ResultsError, match=r"results\.json: not valid JSON"):
            result_file.read(path)


@pytest.mark.parametrize("text", ["{}", "[]", '{"schema": "sparsegen-tuning/1"}', '{"schema": 1}'])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ResultsError, match="file"):
        result_file.load(text, "file")


def test_schemas_of_before_the_first_release_are_refused() -> None:
    text = result_file.dump(results()).replace("sparsegen-bench/4", "sparsegen-bench/2", 1)
    with pytest.raises(ResultsError, match="a schema that no release of sparsegen wrote"):
        result_file.load(text, "file")


def test_newer_schemas_are_told_from_broken_ones() -> None:
    text = result_file.dump(results()).replace("sparsegen-bench/4", "sparsegen-bench/5", 1)
    with pytest.raises(ResultsNewerError, match="newer sparsegen"):
        result_file.load(text, "file")


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ResultsError, match=str(path)):
            result_file.read(path)


def _set(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        if to is ...:
            del document[path[-1]]
        else:
            document[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            _set("rows", 1, "cells", 0, "us", to=-1),
            r"\$\.rows\[1\]\.cells\[0\]\.us: expected a finite number",
        ),
        (_set("rows", 0, "cells", 2, "us", to=...), r"\$\.rows\[0\]\.cells\[2\]: expected a time"),
        (_set("rows", 0, "cells", 0, "low_us", to=99), r"\$\.rows\[0\]\.cells\[0\]\.us: expected a median"),
        (_set("rows", 0, "cells", 0, "status", to="fine"), r"\.status: expected one of ok, missing"),
        (_set("rows", 0, "cells", 5, "reason", to=None), r"\.reason: expected why the status is missing"),
        (_set("rows", 0, "cells", 1, "baseline", to="cublas"), r"\.cells: expected each baseline once"),
        (
            _set("rows", 0, "problem", "dtype", to="float64"),
            r"\$\.rows\[0\]\.problem: 'float64' is not a valid",
        ),
        (_set("rows", 0, "problem", "m", to="512"), r"\$\.rows\[0\]\.problem\.m: expected an integer"),
        (_set("rows", 0, "problem", "n", to=0), r"\$\.rows\[0\]\.problem: n = 0 is outside"),
        (
            _set("rows", 0, "problem", "operator", to="dense_sparse_add"),
            r"\.problem\.operator: expected one of spmm, block_attention, .*, found \"dense_sparse_add\"",
        ),
        (_set("rows", 0, "operator", to="spmm"), r"\$\.rows\[0\]: expected no member 'operator'"),
        (_set("rows", 0, "nnz", to=7), r"\$\.rows\[0\]\.features: expected nnz = 7"),
        (_set("rows", 0, "fingerprint", to="xyz"), r"\.fingerprint: expected text like"),
        (_set("rows", 0, "floor", to=...), r"\$\.rows\[0\]: expected a member 'floor'"),
        (_set("rows", 0, "colour", to="red"), r"\$\.rows\[0\]: expected no member 'colour'"),
        (
            _set("device", "compute_capability", to=[9]),
            r"\$\.device\.compute_capability: expected two integers",
        ),
        (_set("protocol", "rounds", to=0), r"\$\.protocol\.rounds: expected an integer"),
        (
            _set("invocations", 0, "started", to="today"),
            r"\$\.invocations\[0\]\.started: expected an ISO 8601",
        ),
        (_set("rates", "flop_per_s", "int8", to=1.0), r"\$\.rates\.flop_per_s: expected no member 'int8'"),
    ],
)
def test_complaints_name_the_place(change: Callable[[Any], None], complaint: str) -> None:
    document = json.loads(result_file.dump(results(row(), row("other"))))
    change(document)
    with pytest.raises(ResultsError, match="bench.json: .*" + complaint):
        result_file.load(json.dumps(document), "bench.json")


def test_a_row_twice_is_refused() -> None:
    document = json.loads(result_file.dump(results()))
    document["rows"] *= 2
    with pytest.raises(ResultsError, match=r"rows\[1\]: a second row for made-up: 512x512x64"):
        result_file.load(json.dumps(document), "file")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.json"
    result_file.write(results(), path)
    before = path.read_text()

    def killed(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(ResultsError, match="No space left"):
        result_file.write(sweep(), path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_csv_has_a_line_for_each_cell() -> None:
    made = results(row(case='quoted "case", with a comma'))
    lines = list(csv.DictReader(io.StringIO(result_file.to_csv(made))))
    assert len(lines) == len(made.rows[0].cells)
    assert lines[0]["case"] == 'quoted "case", with a comma'
    assert lines[0]["baseline"] == TUNED and float(lines[0]["us"]) == 5.0
    assert lines[-1]["status"] == "missing" and lines[-1]["us"] == ""
    head = ("operator", "m", "k", "n", "dtype", "layout")
    assert [lines[0][name] for name in head] == ["spmm", "512", "512", "64", "float32", "row"]


def test_with_row_replaces_what_has_the_same_key() -> None:
    made = results(row("a"), row("b"))
    again = made.with_row(row("a", ours=1.0))
    assert [r.case for r in again.rows] == ["a", "b"] and again.rows[0].us(TUNED) == 1.0
    assert [r.case for r in made.with_row(row("c")).rows] == ["a", "b", "c"]


def test_dense_is_of_the_rows_own_type() -> None:
    found = row(dense=10.0).dense()  # TF32 takes 2.5 µs
    assert found is not None and found.baseline == "cublas"


def test_the_fastest_peer_counts() -> None:
    with_two = replace(row(), cells=(*row().cells, cell("mine", Kind.SPARSE, 3.0)))
    best = with_two.best_sparse()
    assert best is not None and best.baseline == "mine"
    assert replace(row(), cells=()).best_sparse() is None


def test_floor_is_the_larger_bound() -> None:
    assert Floor(1, 1, 2.0, 3.0).us == 3.0
    assert Floor(1, 1).us is None


def test_times_and_reasons_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="x"):
        Cell("x", Kind.SPARSE, Arithmetic.FLOAT32, Status.OK)
    with pytest.raises(ValueError, match="x"):
        Cell("x", Kind.SPARSE, Arithmetic.FLOAT32, Status.CRASHED, reason="fault", timing=timing(1.0))
    with pytest.raises(ValueError, match="x"):
        Cell("x", Kind.SPARSE, Arithmetic.FLOAT32, Status.CRASHED)


def test_conditions_that_differ_are_all_named() -> None:
    old = results()
    new = replace(
        old,
        device=replace(old.device, key="other"),
        protocol=replace(old.protocol, l2=L2.WARM),
        versions={"cublas": "120000", "torch": "2.11"},
    )
    with pytest.raises(ResultsMismatchError) as caught:
        require_same_conditions(old, new)
    assert caught.value.differences == (
        "device: made-up-sm90 before, other now",
        "L2: cold before, warm now",
        "cublas: 130100 before, 120000 now",
    )


def test_minor_versions_of_the_driver_may_differ() -> None:
    old = results()
    require_same_conditions(old, replace(old, device=replace(old.device, driver="580.99.1")))


def test_merge_takes_other_tuning_times_for_other_suites_alone() -> None:
    longer = results(row("b"))
    longer = replace(longer, protocol=replace(longer.protocol, tune="30"))
    with pytest.raises(ResultsMismatchError, match="tune: "):
        merge([results(row("a")), longer])
    elsewhere = replace(longer, rows=(replace(row("b"), suite="another"),))
    merged = merge([results(row("a")), elsewhere])
    assert [r.case for r in merged.rows] == ["a", "b"] and merged.protocol.tune != "30"


def test_merge_holds_two_files_of_a_suite_against_each_other() -> None:
    first = results(replace(row("a"), suite="another"))
    longer = results(row("b"))
    longer = replace(longer, protocol=replace(longer.protocol, tune="30"))
    merged = merge([first, longer, replace(longer, rows=(row("c"),))])
    assert [r.case for r in merged.rows] == ["a", "b", "c"]
    with pytest.raises(ResultsMismatchError, match="tune: 30"):
        merge([first, longer, results(row("c"))])


def test_merge_takes_other_compilers_for_other_suites_alone() -> None:
    nvcc = replace(results(row("a")), versions={"toolchain": "nvcc", "cublas": "130100"})
    nvrtc = replace(results(row("b")), versions={"toolchain": "NVRTC"})
    with pytest.raises(ResultsMismatchError, match="toolchain: "):
        merge([nvcc, nvrtc])
    merged = merge([nvcc, replace(nvrtc, rows=(replace(row("b"), suite="another"),))])
    assert merged.versions == {"toolchain": "nvcc; NVRTC", "cublas": "130100"}


def test_merge_joins_rows_and_refuses_doubles() -> None:
    merged = merge([results(row("a")), replace(results(row("b")), versions={"torch": "2.11"})])
    assert [r.case for r in merged.rows] == ["a", "b"]
    assert set(merged.versions) == {"sparsegen", "cublas", "torch"}
    assert len(merged.invocations) == 2
    with pytest.raises(ResultsMismatchError, match="made-up: a, float32"):
        merge([results(row("a")), results(row("a"), row("a", dtype=DType.FLOAT16))])
