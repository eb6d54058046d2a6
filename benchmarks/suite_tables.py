"""Tables of the result files of `sparsegen bench`; `benchmarks.make_tables` places them.

``bench_*.json.xz`` together hold each row once, ``untuned_*.json.xz`` what a second run told of dispatch,
``clean_*.json.xz`` and ``warm_*.json.xz`` with another state of the L2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath

from benchmarks.anchors import Peers
from benchmarks.markdown import NONE, TYPES, figure, quotient, table
from sparsegen.bench.results import result_file
from sparsegen.bench.results.merging import merge
from sparsegen.bench.results.problem_facts import in_order, of_factors
from sparsegen.bench.results.results import TOOLCHAIN, TUNED, UNTUNED, WITHOUT, Cell, Results, Row
from sparsegen.bench.results.summary import Mean, SuiteSummary, geometric, standing_for_us, summarize
from sparsegen.errors import SparsegenError
from sparsegen.operators import DType, SddmmProblem, SpmmProblem

FEW_COMMANDS = 3  # stand below a table; of more the raw files tell
PRODUCTS = (SpmmProblem.operator, SddmmProblem.operator)  # whose suites stand side by side
UNITED = 20  # rows of a folder, more than which are shown for each n
DECODING = ("llm", "llm-uneven", "spmv")
WITHOUT_SUITE = f"{WITHOUT}suite"
OLDER = "a state that its file does not name"


def read(folder: Path, kind: str = "bench", suites: Container[str] | None = None) -> list[Results]:
    """The files of a kind; of ``suites``: those alone that hold rows of them."""
    files = [_read(file, file.stat().st_mtime_ns) for file in sorted(folder.glob(f"{kind}_*.json.xz"))]
    return [found for found in files if suites is None or any(row.suite in suites for row in found.rows)]


@lru_cache(maxsize=64)  # of 30 files, which most tables need
def _read(file: Path, changed: int) -> Results:
    """A file's results, as of the time when it was changed."""
    return result_file.read(file)


def whole(folder: Path, kind: str = "bench") -> Results:
    """Reads and merges a folder's result files.

    Raises:
        SparsegenError: there is none, one is malformed, or they do not belong together.
    """
    files = read(folder, kind)
    if not files:
        raise SparsegenError(f"{folder} has no {kind}_*.json.xz; benchmarks/README.md says how they are made")
    return merge(files)


def origin(files: Sequence[Results]) -> str:
    """Describes the source of the figures: device, dates, protocol, states of the source, commands if they are few."""
    results = merge(files)
    commands = dict.fromkeys(f"`{invocation.command}`" for invocation in results.invocations)
    states = dict.fromkeys(row.state or OLDER for row in results.rows)
    made_by = ", ".join(commands) if len(commands) <= FEW_COMMANDS else "the commands that the raw files name"
    return f"\n\n{measured_on(results)}; measured by {', '.join(map(short, states))}; made by {made_by}."


def short(state: str) -> str:
    """A commit by its first digits."""
    commit, plus, rest = state.partition("+")
    return f"{commit[:10]}{plus}{rest}" if len(commit) == 40 else state


def measured_on(results: Results) -> str:
    """Device, dates and protocol."""
    protocol = results.protocol
    calls = f"L2 {protocol.l2}, {protocol.rounds} rounds of {protocol.samples} calls"
    return f"{results.device.name}, driver {results.device.driver}, {days(results)}; {calls}"


def days(results: Results) -> str:
    dates = sorted({f"{invocation.started:%Y-%m-%d}" for invocation in results.invocations})
    return " to ".join(dates[:: max(1, len(dates) - 1)])


def state_of(files: Sequence[Results], suite: str) -> str:
    """Days and compiler of a suite's rows, and the commits where the files name them."""
    own = [results for results in files if any(row.suite == suite for row in results.rows)]
    compilers = dict.fromkeys(
        "NVRTC" if r.versions.get(TOOLCHAIN, "").startswith("NVRTC") else "nvcc" for r in own
    )
    states = dict.fromkeys(
        short(row.state) for r in own for row in r.rows if row.suite == suite and row.state
    )
    return "; ".join((", ".join(dict.fromkeys(map(days, own))), ", ".join(compilers), *states))


def performance(folder: Path) -> str:
    """Geometric means for each suite and type, and what state of the source they are of."""
    files = read(folder)
    results = whole(folder)
    rows = []
    products = (row for row in results.rows if row.operator in PRODUCTS)
    summaries = [s for s in summarize(products) if s.ours == TUNED]  # others have pages of their own
    any_tf32 = any(s.to_dense_tf32.count for s in summaries)
    any_trials = any(s.tried is not None for s in summaries)
    for s in summaries:
        dense, sparse, untuned = _speedups(s)
        packing = NONE if s.preparation_ms is None else figure(s.preparation_ms)
        calls = NONE if s.break_even_calls is None else f"{s.break_even_calls:,}"
        wins = _wins(s.faster_than_dense)
        trials = [NONE if s.tried is None else f"{s.tried}, least {s.least_tried}"] * any_trials
        tf32 = [_speedup(s.to_dense_tf32, s.rows)] * any_tf32
        cells = [
            dense,
            *tf32,
            sparse,
            untuned,
            *trials,
            wins,
            packing,
            calls,
            state_of(files, s.suite),
        ]
        rows.append([f"{s.suite}, {of_factors(s.factor_type, TYPES[s.dtype])}", s.rows, *cells])
    tf32 = ["over dense in TF32"] * any_tf32
    head = [
        "geometric mean of the speedup", "rows", "over dense cuBLAS", *tf32, "over the best other sparse",
    ]  # fmt: skip
    packed = ["packing, ms", "pays after, calls"]
    trials = ["variants tried"] * any_trials
    made = table([*head, "over untuned", *trials, "faster than dense", *packed, "measured"], rows)
    return (
        f"{made}\n\n{measured_on(results)}. Packing (with the upload) is done once for a matrix; medians. It pays "
        "after so many calls in the median of the rows that are faster than dense, and in the others never."
    )


def unseen(folder: Path) -> str:
    """Dispatch without what the packaged results know of a suite, over the winner on record, timed in the same run.

    Of each suite and type the newest file counts, ``untuned_*.json.xz`` or ``bench_*.json.xz``.
    """
    newest: dict[tuple[str, DType], tuple[Results, SuiteSummary]] = {}
    files = [file for kind in ("untuned", "bench") for file in read(folder, kind)]
    for file in sorted(files, key=lambda file: max(invocation.started for invocation in file.invocations)):
        for s in summarize(file.rows):
            if WITHOUT_SUITE in s.worst_unseen:
                newest[s.suite, s.dtype] = file, s
    rows = []
    for _, s in newest.values():
        mean, worst = s.unseen_to_tuned[WITHOUT_SUITE], s.worst_unseen[WITHOUT_SUITE]
        name = f"{s.suite}, {of_factors(s.factor_type, TYPES[s.dtype])}"
        rows.append([name, mean.count, f"{mean.value:.3f}", f"{worst:.2f}"])
    states = dict.fromkeys(state_of([file], s.suite) for file, s in newest.values())
    made = table(["time over the tuned winner's", "rows", "mean", "worst"], rows)
    return f"{made}\n\nMeasured {', '.join(states)}."


def strongest(folder: Path, peers: Peers) -> str:
    """Table, for each suite and type with anchored peers, of our speedup over the fastest sparse routine of each row,
    and over each.
    """
    results = whole(folder)
    groups: dict[tuple[str, str], list[tuple[float, dict[str, float]]]] = {}
    for row in results.rows:
        ours, times = row.us(TUNED), sparse_times(row, peers)
        if ours and times and any(name in ANCHORED for name in times):
            groups.setdefault((row.suite, TYPES[row.dtype]), []).append((ours, times))
    lines = []
    for (suite, dtype), found in groups.items():
        best = [min(times, key=times.__getitem__) for _, times in found]
        over = [times[name] / ours for (ours, times), name in zip(found, best, strict=True)]
        who = ", ".join(f"{name} {count}" for name, count in Counter(best).most_common())
        of_each = [_over(found, name) for name in ANCHORED]
        won = f"{sum(x > 1 for x in over)} of {len(over)}"
        lines.append([f"{suite}, {dtype}", _times(over), won, *of_each, who])
    head = ["geometric mean of the speedup", "over the strongest of each row", "rows won"]
    return table([*head, *ANCHORED.values(), "the strongest is"], lines)


ANCHORED = {
    "sputnik": "Sputnik",
    "flash-llm": "Flash-LLM",
    "spinfer": "SpInfer",
    "flashsparse": "FlashSparse",
    "macko": "MACKO",
}


def sparse_times(row: Row, peers: Peers) -> dict[str, float]:
    """Microseconds of sparse routines of others: anchored ones, and those timed beside ours."""
    known = peers.get((row.suite, row.case, row.dtype.value), {})
    found = {name: us for name, us in known.items() if name in ANCHORED}
    best = row.best_sparse()
    return found | ({best.baseline: best.timing.us} if best is not None and best.timing else {})


def _over(found: Sequence[tuple[float, dict[str, float]]], name: str) -> str:
    return _times([times[name] / ours for ours, times in found if name in times])


def _times(ratios: Sequence[float]) -> str:
    return f"{geometric(ratios).value:.2f} ×" if ratios else NONE


def suite(folder: Path, name: str) -> str:
    """A page of one suite: a table of all rows for each type and layout, or of means where its cases are files."""
    files = read(folder, suites=[name])
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in (row for results in files for row in results.rows if row.suite == name):
        groups.setdefault((row.dtype, row.layout), []).append(row)
    parts = [f"# {name}"]
    for (dtype, layout), rows in groups.items():
        parts.append(f"## {TYPES[dtype]}, {in_order(layout)}")
        parts.append(_means(rows) if any(map(_is_file, rows)) else _cases(rows))
    return "\n\n".join(parts) + origin(files)


def _cases(rows: Sequence[Row]) -> str:
    head = ["case", "µs", "untuned", "dense", "best other sparse", "which", "over dense", "over sparse"]
    lines, name = [], standing_for_us(rows)
    for row in rows:
        ours, dense, sparse = row.us(name), _us(row.dense()), _us(row.best_sparse())
        cell, best = row.cell(name), row.best_sparse()
        lines.append(
            [
                row.case,
                *(figure(us) for us in (row.us(TUNED), row.us(UNTUNED), dense, sparse)),
                best.baseline if best else NONE,
                f"{dense / ours:.2f}" if dense and ours else NONE,
                f"{sparse / ours:.2f}" if sparse and ours else NONE,
                f"{100 * row.floor.us / ours:.0f} %" if row.floor.us and ours else NONE,
                cell.variant.family_name if cell and cell.variant else NONE,
            ]
        )
    head += ["of the floor", "family"]
    states = list(dict.fromkeys(row.state for row in rows))
    if len(states) > 1:  # rows of several states are marked
        head.append("state")
        lines = [[*line, states.index(row.state) + 1] for line, row in zip(lines, rows, strict=True)]
    told = (f"{number}: {short(state) or OLDER}" for number, state in enumerate(states, 1))
    return table(head, lines) + ("\n\nStates: " + "; ".join(told) + "." if len(states) > 1 else "")


def _means(rows: Sequence[Row]) -> str:
    """Lines of means of a collection of files: by its first folder and the files' own, and by n if those are many."""
    folders = {row.case: _folder(row.case) for row in rows}
    many = {folder for folder, count in Counter(folders[row.case] for row in rows).items() if count > UNITED}
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (folders[row.case], row.n)):
        folder = folders[row.case]
        groups.setdefault(f"{folder} n={row.n}" if folder in many else folder, []).append(row)
    lines = []
    for name, found in groups.items():
        [s] = summarize(found)
        lines.append(
            [name, s.rows, *_speedups(s), _wins(s.faster_than_dense), f"{100 * s.share_of_floor.value:.0f} %"]
        )
    head = [
        "geometric mean of the speedup",
        "rows",
        "over dense",
        "over the best other sparse",
        "over untuned",
    ]
    return table([*head, "faster than dense", "of the floor"], lines)


def _is_file(row: Row) -> bool:
    return "/" in row.case


def _folder(case: str) -> str:
    """The first folder and the file's own."""
    folders = PurePosixPath(case).parts[:-1]
    return "/".join(dict.fromkeys((folders[0], folders[-1])))


def _inverse(mean: Mean) -> Mean:
    return Mean(1 / mean.value, mean.count)


def _wins(share: Mean) -> str:
    return f"{round(share.value * share.count)} of {share.count}" if share.count else NONE


def _speedup(mean: Mean, rows: int) -> str:
    """Speedup as text, from a mean ratio of our time to another's; a mean over some of the rows says over how many."""
    told = f" ({mean.count} of {rows})" if mean.count < rows else ""
    return f"{1 / mean.value:.2f} ×{told}" if mean.count else NONE


def _speedups(s: SuiteSummary) -> list[str]:
    """Ours over dense, over the best other sparse routine and over untuned."""
    return [_speedup(mean, s.rows) for mean in (s.to_dense, s.to_best_sparse, _inverse(s.untuned_to_tuned))]


def _us(cell: Cell | None) -> float | None:
    return None if cell is None or cell.timing is None else cell.timing.us


def sddmm(folder: Path, peers: Peers) -> str:
    """A row for each case: float32 beside cuSPARSE and Sputnik, float16 beside those and a dense product.

    Ratios are of times, below 1 where sparsegen is faster; the last row has their geometric means.
    """
    files = read(folder, suites=["sddmm"])
    rows = [row for results in files for row in results.rows if row.suite == "sddmm"]
    by_case: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_case.setdefault(row.case, {})[row.dtype.value] = row
    lines, wide, narrow, to_dense = [], [], [], []
    for case, found in by_case.items():
        single, half = found.get("float32"), found.get("float16")
        ours, ours_half = (row.us(TUNED) if row else None for row in (single, half))
        vendor = single.us("cusparse-sddmm") if single else None
        sputnik = peers.get(("sddmm", case, "float32"), {}).get("sputnik")
        others = [us for us in (vendor, sputnik) if us]
        best = quotient(ours, min(others, default=None))
        to_vendor = quotient(ours_half, vendor)
        dense = half.us("cublas") if half else None
        over_dense = quotient(ours_half, dense)
        for ratio, kept in ((best, wide), (to_vendor, narrow), (over_dense, to_dense)):
            if ratio is not None:
                kept.append(ratio)
        times = (ours, vendor, sputnik, best, ours_half, to_vendor, dense, over_dense)
        lines.append([case, *(figure(x) for x in times)])
    means = [geometric(ratios).value if ratios else None for ratios in (wide, narrow, to_dense)]
    lines.append(
        ["geometric mean", *[NONE] * 3, figure(means[0]), NONE, figure(means[1]), NONE, figure(means[2])]
    )
    head = ["m × n × k, sparsity", "fp32 µs", "cuSPARSE", "Sputnik", "to the better", "fp16 µs"]
    return table([*head, "to cuSPARSE fp32", "dense fp16", "to it"], lines) + origin(files)


def decode(folder: Path) -> str:
    """A row for each list and number of tokens: our time over dense cuBLAS's, geometric mean and worst, by the state of
    the L2.
    """
    kinds = {"dirty": "bench", "clean": "clean", "warm": "warm"}
    files = {state: found for state, kind in kinds.items() if (found := read(folder, kind, DECODING))}
    runs = {state: merge(found).rows for state, found in files.items()}
    groups: dict[tuple[str, str], dict[str, list[float]]] = {}
    for state, rows in runs.items():
        for row in rows:
            dense = row.dense()
            ratio = quotient(row.us(TUNED), dense.timing.us if dense and dense.timing else None)
            if ratio is not None:
                for which in ("all", f"n = {row.n}"):
                    found = groups.setdefault((row.suite, which), {state: [] for state in runs})
                    found[state].append(ratio)
    lines = []
    for (suite, which), found in groups.items():
        figures = [
            text
            for ratios in found.values()
            for text in (
                (
                    figure(geometric(ratios).value),
                    figure(max(ratios)),
                    f"{sum(r < 1 for r in ratios)} of {len(ratios)}",
                )
                if ratios
                else (NONE,) * 3
            )
        ]
        lines.append([f"{suite}, {which}", *figures])
    head = [column for state in runs for column in (f"{state}: mean", "worst", "faster")]
    origins = "".join(origin(found) for found in files.values())
    return table(["list", *head], lines) + origins
