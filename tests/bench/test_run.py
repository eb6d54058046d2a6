"""A whole run with baselines that crash, hang and lie: what becomes of their cells, and of the others'."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from bench_fakes import CRAWLING, LIMITS, TRIALS, Fake, Trials, cases, request
from patience import patience

from sparsegen import backends
from sparsegen.bench.baselines import baselines
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.patterns.patterns import Independent, MatrixFile
from sparsegen.bench.results import result_file
from sparsegen.bench.results.results import UNTUNED, BenchDevice, Protocol, Results, RowKey, Status
from sparsegen.bench.run import run as bench_run
from sparsegen.bench.run.maker import Pair
from sparsegen.bench.run.request import TUNED_AHEAD, Step, planned
from sparsegen.bench.run.run import Finished, run
from sparsegen.bench.run.runner import Limits
from sparsegen.bench.suites import load_suite
from sparsegen.errors import ResultsError, ResultsMismatchError
from sparsegen.measure.l2 import L2
from sparsegen.operators import (
    DType,
    Epilogue,
    ItemValues,
    Problem,
    SddmmProblem,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SpmmProblem,
)
from sparsegen.tuning_db.store import Store


def quiet(step: Step) -> None: ...


def statuses(finished: Finished, baseline: str) -> list[Status]:
    cells = [row.cell(baseline) for row in finished.results.rows]
    return [cell.status for cell in cells if cell is not None]


def reason(finished: Finished, baseline: str) -> str:
    cell = finished.results.rows[0].cell(baseline)
    assert cell is not None
    return cell.reason


def test_a_failure_loses_one_cell_and_says_why() -> None:
    """Every bad baseline beside a good one, over two rows."""
    failures = {
        "crashes": (Status.CRASHED, "SIGSEGV"),
        "wrong": (Status.WRONG, "times its error bound"),
        "writes nothing": (Status.WRONG, "inf times"),
        "raises": (Status.CRASHED, "out of tea"),
        "unsupported": (Status.UNSUPPORTED, "not this one"),
        "not installed": (Status.MISSING, "pip install it"),
        "other device": (Status.MISSING, "does not run on"),
        "dies at start": (Status.MISSING, "does not start"),
    }
    bad = [Fake(name=when, when=when) for when in failures]
    finished = run(request(Fake("first"), *bad, Fake("last")), quiet)
    assert len(finished.results.rows) == 2 and not finished.left
    for good in ("first", "last"):
        assert statuses(finished, good) == [Status.OK, Status.OK], reason(finished, good)
    for when, (status, words) in failures.items():
        assert statuses(finished, when) == [status, status], reason(finished, when)
        assert words in reason(finished, when)
    assert {name for name, _ in finished.missing} == {"not installed", "other device", "dies at start"}


def test_one_that_hangs_loses_one_cell() -> None:
    """And the others none; they have as long as they like."""
    alone = replace(LIMITS, check=patience(4.0))
    finished = run(request(Fake("hangs", "hangs"), limits=alone), quiet)
    assert statuses(finished, "hangs") == [Status.TIMEOUT, Status.OK], "its process was replaced"
    assert "no answer within" in reason(finished, "hangs")
    left = subprocess.run(["pgrep", "-f", "sleep 321.5"], capture_output=True, text=True).stdout
    assert not left, "what a baseline started outlives it"


def test_ours_computes_sddmm() -> None:
    sampled = Case(
        suite="tiny",
        name="24x32x16",
        problem=SddmmProblem(24, 32, 16, DType.FLOAT16),
        dtypes=(DType.FLOAT16,),
        pattern=Independent(24, 32, 0.5),
        source="made up",
    )
    finished = run(request(baselines()[UNTUNED], cases=[sampled]), quiet)
    [cell] = [row.cell(UNTUNED) for row in finished.results.rows]
    assert cell is not None and cell.status is Status.OK, cell
    assert cell.variant is not None and cell.variant.family_name == "csr_sddmm"


def test_batches_are_measured_by_those_that_take_them() -> None:
    several = [replace(case, problem=SpmmProblem(32, 24, 1, batch=3)) for case in cases(1)]
    finished = run(request(baselines()[UNTUNED], Fake("one at a time"), cases=several), quiet)
    [row] = finished.results.rows
    mine, other = row.cell(UNTUNED), row.cell("one at a time")
    assert mine is not None and mine.status is Status.OK and mine.worst_error is not None, mine
    assert mine.worst_error <= 1 and row.batch == 3
    assert row.floor.flop == 3 * 2 * row.nnz * row.n
    assert other is not None and other.status is Status.UNSUPPORTED
    assert other.reason == "a call of it computes one batch element, not 3"


OTHERS: tuple[Problem, ...] = (
    SpmmProblem(24, 32, 8, DType.BFLOAT16, epilogue=Epilogue.BIAS_RESIDUAL),
    SpmmProblem(24, 32, 8, DType.FLOAT16, batch=2, item_values=ItemValues.OWN),
    SoftmaxProblem(24, 32, DType.FLOAT16, batch=2),
    SoftmaxBackwardProblem(24, 32),
    SparseAttentionProblem(24, 32, 16, DType.FLOAT16, batch=2),
)


def test_ours_compute_every_operator() -> None:
    """Epilogues, own values in a batch, softmax, its gradient, attention; others' cells say why they are empty."""
    pattern = Independent(24, 32, 0.5)
    listed = [Case("all", str(problem), problem, (problem.dtype,), pattern, "") for problem in OTHERS]
    finished = run(request(baselines()[UNTUNED], Fake("spmm alone"), cases=listed), quiet)
    assert {row.problem for row in finished.results.rows} == set(OTHERS)
    for row in finished.results.rows:
        mine, other = row.cells
        assert mine.status is Status.OK and mine.worst_error is not None and mine.worst_error <= 1, mine
        assert row.floor.flop == row.problem.cost(row.nnz).flop
        assert other.status is Status.UNSUPPORTED and "comput" in other.reason, other


def test_the_suite_of_softmax_on_the_emulator() -> None:
    """Its smallest mask, forward and backward."""
    small = [
        case.of_dtypes((DType.FLOAT32,))
        for case in load_suite("softmax").cases
        if case.problem.matrix_shape == (4096, 4096)
    ]
    once = Protocol(L2.WARM, rounds=1, samples=1, tune="off")
    finished = run(request(baselines()[UNTUNED], cases=small, protocol=once, limits=Limits()), quiet)
    assert [row.operator for row in finished.results.rows] == ["sparse_softmax", "sparse_softmax_backward"]
    assert statuses(finished, UNTUNED) == [Status.OK, Status.OK], reason(finished, UNTUNED)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, list[str]]:
    """A run of one row without failures, and the order in which the baselines were called."""
    log = tmp_path_factory.mktemp("log") / "log"
    pair = Fake("a", log=log), Fake("b", "one implementation wrong", log=log)
    return run(request(*pair, count=1), quiet), log.read_text().split()


def test_a_cell_holds_what_was_measured(good: tuple[Finished, list[str]]) -> None:
    row = good[0].results.rows[0]
    cell = row.cells[0]
    assert cell.timing is not None and cell.timing.samples == 4 and len(cell.timing.rounds_us) == 2
    assert 10_000 < cell.timing.low_us <= cell.timing.us <= cell.timing.high_us
    assert cell.detail == "slow and right" and cell.preparation_ms == 1.5 and cell.memory_bytes == 640
    assert cell.worst_error is not None and 0 <= cell.worst_error <= 1
    assert row.nnz == row.features.nnz > 0 and row.fingerprint == cases(1)[0].matrix().fingerprint()
    assert row.floor.flop == 2 * row.nnz * 1 and row.floor.us is None, "no rates on the emulator"


def test_a_wrong_way_does_not_stand_for_its_baseline(good: tuple[Finished, list[str]]) -> None:
    """The fastest implementation is wrong: the next one is taken, and the cell says so."""
    cell = good[0].results.rows[0].cells[1]
    assert cell.status is Status.OK and cell.detail == "slow and right (wrong, left out: 1)"


def test_a_way_that_crawls_is_called_twice(tmp_path: Path) -> None:
    log = tmp_path / "log"
    cell = (
        run(request(Fake("a", "one implementation crawls", log=log), count=1), quiet).results.rows[0].cells[0]
    )
    assert cell.status is Status.OK and cell.detail == "slow and right"
    assert log.read_text().split().count(CRAWLING) == 2


def test_baselines_take_turns(good: tuple[Finished, list[str]]) -> None:
    lines = good[1]
    turns = [name for i, name in enumerate(lines) if i == 0 or lines[i - 1] != name]
    assert "".join(turns).endswith("abab"), turns


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    first = run(request(Fake("a"), count=1, output=output), quiet)
    second = run(request(Fake("a"), count=3, output=output), quiet)
    assert (len(first.measured), second.kept, len(second.measured)) == (1, 1, 2)
    held = result_file.read(output)
    assert held == second.results and len(held.rows) == 3 and len(held.invocations) == 2
    assert held.rows[0] == first.results.rows[0]
    third = run(request(Fake("a"), count=3, output=output), quiet)
    assert third.kept == 3 and not third.measured and third.results.rows == held.rows
    anew = run(request(Fake("a"), Fake("b"), count=1, output=output, remeasure=True), quiet)
    assert len(anew.results.rows) == 3 and len(anew.results.rows[0].cells) == 2, "one row was replaced"
    assert anew.results.rows[1:] == held.rows[1:]


def test_an_explorer_tries_every_config(tmp_path: Path) -> None:
    """One that is wrong, one that kills its process and one that hangs are lines of the cell."""
    limits = replace(LIMITS, prepare=4.0)
    finished = run(request(Trials("trials"), count=1, limits=limits, output=tmp_path / "r.json"), quiet)
    [row] = finished.results.rows
    cell = row.cell("trials")
    assert cell is not None and cell.status is Status.OK and cell.variant == TRIALS["right"], cell
    assert cell.detail.startswith("the fastest of 2 configs, 3 more failed: ")
    outcomes = {one.variant: (one.us, one.reason) for one in cell.implementations}
    assert set(outcomes) == set(TRIALS.values())
    assert [one.variant for one in cell.implementations[:2]] == [
        TRIALS["right"],
        TRIALS["slow"],
    ], "the fastest first"
    for behaviour, word in (("wrong", "wrong: "), ("crashes", "crashed: "), ("hangs", "timeout: ")):
        us, why = outcomes[TRIALS[behaviour]]
        assert us is None and why.startswith(word), why
    assert result_file.read(tmp_path / "r.json") == finished.results


def test_an_explorer_of_which_nothing_runs_loses_its_cell() -> None:
    finished = run(request(Trials("trials", ("wrong",)), Fake("a"), count=1), quiet)
    assert statuses(finished, "trials") == [Status.CRASHED] and statuses(finished, "a") == [Status.OK]
    [cell] = [row.cell("trials") for row in finished.results.rows]
    assert cell is not None and len(cell.implementations) == 1 and cell.reason.startswith("wrong: ")


def test_no_process_for_a_baseline_without_rows() -> None:
    sampler = baselines()["cusparse-sddmm"]
    finished = run(request(Fake("a"), sampler, count=1), quiet)
    assert statuses(finished, sampler.name) == [Status.UNSUPPORTED]
    assert reason(finished, sampler.name) == "it computes sddmm" and not finished.missing


def test_time_is_up(tmp_path: Path) -> None:
    finished = run(request(Fake("a"), count=3, seconds=1e-6), quiet)
    assert not finished.measured and finished.left == 3


def test_a_kill_loses_the_row_at_most(tmp_path: Path) -> None:
    """Ctrl-C in the second row: the file holds the first."""
    output = tmp_path / "r.json"

    def interrupt(step: Step) -> None:
        if step.index == 1 and step.doing == "measuring":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(request(Fake("a"), count=3, output=output), interrupt)
    assert [row.case for row in result_file.read(output).rows] == ["32x24x1"]


def test_other_conditions_are_refused(tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    old = request(Fake("a"))
    result_file.write(Results(BenchDevice.of(old.device, ""), {}, old.protocol), output)
    before = output.read_bytes()
    with pytest.raises(ResultsMismatchError, match="samples: 2 before, 3 now"):
        run(request(Fake("a"), output=output, protocol=Protocol(L2.COLD, 2, 3, "off")), quiet)
    result_file.write(Results(BenchDevice.of(old.device, ""), {"a": "0.9"}, old.protocol), output)
    with pytest.raises(ResultsMismatchError, match=r"a: 0\.9 before, 1\.0 now"):
        run(request(Fake("a"), output=output), quiet)
    assert output.read_bytes() != before and not result_file.read(output).rows


def test_a_half_written_file_is_refused_and_left(tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    output.write_text('{"schema": "sparsegen-bench/2", "rows": [')
    with pytest.raises(ResultsError):
        run(request(Fake("a"), output=output), quiet)
    assert output.read_text().endswith('"rows": [')


def test_a_case_without_its_matrix_is_skipped() -> None:
    gone = Case(
        suite="tiny",
        name="gone",
        problem=SpmmProblem(3, 3, 3),
        dtypes=(DType.FLOAT32,),
        pattern=MatrixFile(3, 3, "/nowhere/w.npz"),
        source="",
    )
    finished = run(request(Fake("a"), cases=[gone, *cases(1)]), quiet)
    assert [str(key) for key, _ in finished.skipped] == ["tiny: gone, float32, row-major"]
    assert [row.case for row in finished.results.rows] == ["32x24x1"] and not finished.left


def test_rows_of_one_pattern_stand_together() -> None:
    a, b = cases(2, "a"), cases(1, "b")
    other = replace(b[0], pattern=MatrixFile(32, 24, "x"))
    order = [case.name + dtype for case, dtype in planned([a[0], other, a[1]])]
    assert order == ["32x24x1float32", "32x24x2float32", "32x24x1float32"]


def test_rows_are_tuned_on_all_devices_before_they_are_measured(tmp_path: Path) -> None:
    steps: list[Step] = []
    wanted = request(
        baselines()["sparsegen"],
        protocol=Protocol(L2.COLD, rounds=1, samples=1, tune="1"),
        db=str(tmp_path / "tuned.db"),
        devices=(backends.emulator_device(), backends.emulator_device(1)),
    )
    finished = run(wanted, steps.append)
    assert statuses(finished, "sparsegen") == [Status.OK, Status.OK], reason(finished, "sparsegen")
    ahead = [step.index for step in steps if step.doing == TUNED_AHEAD]
    assert ahead == [0, 1] and steps[2].doing != TUNED_AHEAD
    again: list[Step] = []
    with Store.open(tmp_path / "tuned.db") as store:
        before = len(store.all_measurements())
    run(replace(wanted, devices=()), again.append)
    with Store.open(tmp_path / "tuned.db") as store:
        assert len(store.all_measurements()) == before, "what was tuned is not tuned again"


def test_with_a_limit_rows_are_measured_soon_after_they_were_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that time ends has tuned few rows for nothing."""
    tuned: list[int] = []

    def tune(pairs: list[Pair], *others: object, done: Callable[[int, Pair], None], **more: object) -> None:
        tuned.append(len(pairs))
        for number, pair in enumerate(pairs, 1):
            done(number, pair)

    monkeypatch.setattr(bench_run, "tune_side_by_side", tune)
    monkeypatch.setattr(bench_run, "ROWS_OF_SEARCH", 1)
    protocol = Protocol(L2.COLD, rounds=1, samples=1, tune="quick")
    asked = request(baselines()["sparsegen"], count=5, jobs=2, protocol=protocol)
    rows = [(RowKey.of(c.suite, c.name, c.in_dtype(d)), (c, d)) for c, d in planned(asked.cases)]
    for deadline, parts in ((1.0, [2, 2, 1]), (None, [5])):
        steps: list[Step] = []
        ahead = bench_run.RowsAhead(asked, rows, deadline, steps.append)
        for index in range(5):
            ahead.before(index)
            assert sum(tuned) > index, "before it is measured"
        assert tuned == parts and [step.index for step in steps] == [0, 1, 2, 3, 4]
        tuned.clear()
