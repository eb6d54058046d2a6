"""Fill the tables of README.md and docs/performance.md from the raw results.

    python -m benchmarks.make_tables [--check]

A table stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``; nothing in it is typed by hand. The
comparisons come from the result files of ``sparsegen bench``: ``bench_*.json``, which together hold each row once,
and ``repeat_*.json``, the same rows measured again.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import click

from benchmarks import operator_tables
from benchmarks.anchors import peers
from benchmarks.operator_tables import NONE, table
from sparsegen.bench import result_file
from sparsegen.bench.compare import compare
from sparsegen.bench.results import TUNED, UNTUNED, Cell, Results, Row, merge
from sparsegen.bench.summary import Mean, SuiteSummary, geometric, summarize
from sparsegen.errors import SparsegenError

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "results" / "nvidia-h100-80gb-hbm3-sm90"
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
LISTED = 100  # rows, more than which are shown as means
UNITED = 20  # rows of a folder, more than which are shown for each n
TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def load(name: str) -> Mapping[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())  # type: ignore[no-any-return]


def bench(kind: str = "bench") -> Results:
    """The files of ``sparsegen bench`` as one.

    Raises:
        SparsegenError: there is none, one is malformed, or they do not belong together.
    """
    files = bench_files(kind)
    if not files:
        raise SparsegenError(f"{RESULTS} has no {kind}_*.json; benchmarks/README.md says how they are made")
    return merge(files)


def bench_files(kind: str, suites: Container[str] | None = None) -> list[Results]:
    """Those of a kind; of ``suites``: those alone that hold rows of them."""
    files = [result_file.read(file) for file in sorted(RESULTS.glob(f"{kind}_*.json"))]
    return [found for found in files if suites is None or any(row.suite in suites for row in found.rows)]


def origin(*names: str) -> str:
    """Where the figures come from, in one line."""
    documents = [load(name) for name in names]
    first = documents[0]
    commands = ", ".join(f"`{document['command']}`" for document in documents)
    return f"\n\n{first['device']}, driver {first['driver']}, {first['date']}; made by {commands}."


def bench_origin(results: Results) -> str:
    """The same of result files of ``sparsegen bench``."""
    commands = dict.fromkeys(f"`{invocation.command}`" for invocation in results.invocations)
    return f"\n\n{measured_on(results)}; made by {', '.join(commands)}."


def measured_on(results: Results) -> str:
    """Device, dates and protocol."""
    dates = sorted({f"{invocation.started:%Y-%m-%d}" for invocation in results.invocations})
    days = " to ".join(dates[:: max(1, len(dates) - 1)])
    protocol = results.protocol
    calls = f"L2 {protocol.l2}, {protocol.rounds} rounds of {protocol.samples} calls"
    return f"{results.device.name}, driver {results.device.driver}, {days}; {calls}"


def of_file(name: str, made: Callable[[Sequence[Mapping[str, Any]]], str]) -> Callable[[], str]:
    """A table out of a result file's rows, or a line that says how to get the file."""

    def fill_in() -> str:
        if not (RESULTS / f"{name}.json").is_file():
            return f"Not measured yet: `python -m benchmarks.{name}`."
        return made(load(name)["rows"]) + origin(name)

    return fill_in


def sddmm() -> str:
    """docs/performance.md: the suite of sampled products beside cuSPARSE, Sputnik and dense products."""
    files = bench_files("bench", ["sddmm"])
    if not files:
        return "Not measured yet: `sparsegen bench --suite sddmm`."
    results = merge(files)
    rows = [row for row in results.rows if row.suite == "sddmm"]
    return operator_tables.sddmm(rows, peers()) + bench_origin(results)


def decode() -> str:
    """docs/performance.md: the lists of decoding beside dense cuBLAS, by the state of the L2."""
    lists = ("llm", "llm-uneven", "spmv")
    files = {
        state: bench_files(kind, lists)
        for state, kind in (("dirty", "bench"), ("clean", "clean"), ("warm", "warm"))
    }
    runs = {state: merge(names) for state, names in files.items() if names}
    made = operator_tables.decode({state: run.rows for state, run in runs.items()})
    return made + "".join(map(bench_origin, runs.values()))


def performance() -> str:
    """README: geometric means per suite and type. Sputnik's times are those of peers_h100.json."""
    results = bench()
    rows = []
    for s in summarize(results.rows):
        dense, sparse, untuned = _speedups(s)
        cells = [dense, sparse, _over_sputnik(results, s.suite, s.dtype), untuned, _wins(s.faster_than_dense)]
        rows.append([f"{s.suite}, {TYPES[s.dtype]}", s.rows, *cells])
    head = ["geometric mean of the speedup", "rows", "over dense cuBLAS", "over the best other sparse"]
    made = table([*head, "over Sputnik", "over untuned", "faster than dense"], rows)
    return f"{made}\n\n{measured_on(results)}; the commands stand below the tables of docs/performance.md."


def _over_sputnik(results: Results, suite: str, dtype: str) -> str:
    known = peers()
    ratios = [
        us / ours
        for row in results.rows
        if (row.suite, row.dtype) == (suite, dtype)
        and (us := known.get((suite, row.case, dtype), {}).get("sputnik"))
        and (ours := row.us(TUNED))
    ]
    return f"{geometric(ratios).value:.2f} ×" if ratios else NONE


def _inverse(mean: Mean) -> Mean:
    return Mean(1 / mean.value, mean.count)


def _wins(share: Mean) -> str:
    return f"{round(share.value * share.count)} of {share.count}" if share.count else NONE


def _speedup(mean: Mean) -> str:
    """Of a mean ratio of our time to another's."""
    return f"{1 / mean.value:.2f} ×" if mean.count else NONE


def cases() -> str:
    """docs/performance.md: a table for each suite, type and layout; of means where rows are very many."""
    results = bench()
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in results.rows:
        groups.setdefault((row.suite, row.dtype, row.layout), []).append(row)
    parts = [
        f"### {suite}, {TYPES[dtype]}, {layout}-major\n\n{_cases(rows) if len(rows) <= LISTED else _means(rows)}"
        for (suite, dtype, layout), rows in groups.items()
    ]
    return "\n" + "\n\n".join(parts) + bench_origin(results)


def _cases(rows: Sequence[Row]) -> str:
    head = ["case", "µs", "untuned", "dense", "best other sparse", "which", "over dense", "over sparse"]
    lines = []
    for row in rows:
        ours, dense, sparse = row.us(TUNED), _us(row.dense()), _us(row.best_sparse())
        tuned, best = row.cell(TUNED), row.best_sparse()
        lines.append(
            [
                row.case,
                *(_number(us) for us in (ours, row.us(UNTUNED), dense, sparse)),
                best.contender if best else NONE,
                f"{dense / ours:.2f}" if dense and ours else NONE,
                f"{sparse / ours:.2f}" if sparse and ours else NONE,
                f"{100 * row.floor.us / ours:.0f} %" if row.floor.us and ours else NONE,
                tuned.variant.family_name if tuned and tuned.variant else NONE,
            ]
        )
    return table([*head, "of the floor", "family"], lines)


def _means(rows: Sequence[Row]) -> str:
    """Of a collection of files: by its first folder and the files' own, and by n where those are many."""
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


def _folder(case: str) -> str:
    """The first folder and the file's own."""
    folders = PurePosixPath(case).parts[:-1]
    return "/".join(dict.fromkeys((folders[0], folders[-1])))


def _speedups(s: SuiteSummary) -> list[str]:
    """Ours over dense, over the best other sparse routine and over untuned."""
    return [_speedup(mean) for mean in (s.to_dense, s.to_best_sparse, _inverse(s.untuned_to_tuned))]


def _us(cell: Cell | None) -> float | None:
    return None if cell is None or cell.timing is None else cell.timing.us


def _number(us: float | None) -> str:
    return NONE if us is None else f"{us:.2f}"


def reproduction() -> str:
    """docs/performance.md: a second run's times over the first's, geometric means per suite and type."""
    first, second = bench(), bench("repeat")
    groups: dict[tuple[str, str], dict[str, Mean]] = {}
    for drift in compare(first, second).drifts:
        groups.setdefault((drift.suite, drift.dtype), {})[drift.contender] = drift.ratio
    contenders = list(dict.fromkeys(name for means in groups.values() for name in means))
    rows = [
        [f"{suite}, {TYPES[dtype]}", *(f"{means[n].value:.3f}" if n in means else NONE for n in contenders)]
        for (suite, dtype), means in groups.items()
    ]
    return table(["second run's time over the first's", *contenders], rows) + bench_origin(second)


def uniform() -> str:
    """docs/performance.md: every point of the uniform-sparsity sweeps."""
    document = load("uniform")
    rows = []
    for r in document["rows"]:
        us = r["us"]
        others = (us[name] for name in ("cusparse", "cublas", "paper (1, 8)", "paper (2, 8)"))
        ratios = (r["to_cusparse"], r["paper_to_cusparse"] or NONE, r["to_cublas"], r["to_paper_settings"])
        rows.append(
            [r["workload"], r["family"], _number(us[r["family"]]), *(_number(t) for t in others)]
            + [f"{x:.2f}" if isinstance(x, float) else x for x in ratios]
        )
    head = ["m × k × n, sparsity", "family", "µs", "cuSPARSE", "cuBLAS", "setting (1, 8)", "setting (2, 8)"]
    ratios_of = ["over cuSPARSE", "the paper's", "over dense", "over the better setting"]
    return table([*head, *ratios_of], rows) + origin("uniform")


def uniform_summary() -> str:
    """README: the same as geometric means of the sweeps."""
    document = load("uniform")
    sweeps: dict[str, list[Mapping[str, Any]]] = {}
    for r in document["rows"]:
        sweeps.setdefault(r["sweep"], []).append(r)
    names = {
        "shapes": "128² to 1024² at 60 %, n = 128 and 1024",
        "sparsity": "128³ and 1024³ at 5 to 95 %",
        "columns": "1024² at 60 %, n = 256 to 16384",
        "list": "1024² at 95 %, n = 128 and 16384",
    }
    keys = ("to_cusparse", "to_paper_settings", "to_csr_spmm", "to_cublas")
    rows = [
        [names[sweep], len(found), *(_mean_of(found, key) for key in keys)] for sweep, found in sweeps.items()
    ]
    rows.append(["all", len(document["rows"]), *(_mean_of(document["rows"], key) for key in keys)])
    head = ["geometric mean of the speedup", "points", "over cuSPARSE", "over the paper's kernel"]
    return table([*head, "over our `csr_spmm`", "over dense cuBLAS"], rows) + origin("uniform")


def _mean_of(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    found = [row[key] for row in rows if row[key] is not None]
    return f"{geometric(found).value:.2f} ×" if found else NONE


def ablation() -> str:
    """Slowdown when one idea of csr_spmm is taken away."""
    document = load("ablation_float32")
    head = [
        "without (or instead of) the idea",
        *(r["workload"].split(",")[0] for r in document["rows"]),
        "mean",
    ]
    rows = [
        [
            idea,
            *(f"{r['slowdown'][idea]:.2f}" if idea in r["slowdown"] else "–" for r in document["rows"]),
            f"{mean:.2f}",
        ]
        for idea, mean in document["summary"].items()
    ]
    return table(head, rows) + origin("ablation_float32")


def search() -> str:
    """Budgeted searches against the exhaustive one."""
    rows = [
        [
            f"{r['workload']} {r['dtype']}", r["space_size"],
            f"{r['to_exhaustive']['quick']:.3f}", f"{r['wall_seconds']['quick']:.1f}",
            f"{r['to_exhaustive']['normal']:.3f}", f"{r['wall_seconds']['normal']:.1f}",
        ]
        for r in load("search_quality")["rows"]
    ]  # fmt: skip
    head = ["problem", "configs", "quick / exhaustive", "s", "normal / exhaustive", "s"]
    return table(head, rows) + origin("search_quality")


def dispatch() -> str:
    """Dispatch to matrices that were not tuned."""
    s = load("dispatch_transfer")["summary"]
    rows = [
        ["dispatched from the database", f"{s['geometric_mean_regret']:.3f}", f"{s['worst_regret']:.2f}"],
        ["rule of thumb, nothing tuned", f"{s['geometric_mean_untuned_regret']:.3f}", "–"],
    ]
    head = [
        f"{s['tested_on']} matrices, {s['tuned_on']} others tuned",
        "geometric mean to tuning each",
        "worst",
    ]
    return table(head, rows) + origin("dispatch_transfer")


def host() -> str:
    """Host time of a call."""
    names = {
        "bare_launch_us": "bare launch of the same kernel (ctypes, `cuLaunchKernel`)",
        "torch_with_out_us": "`op(b, out)` with PyTorch tensors",
        "torch_us": "`op(b)`, the result allocated by PyTorch",
        "cupy_with_out_us": "`op(b, out)` with CuPy arrays",
        "torch_dense_mm_us": "PyTorch dense `A @ b`",
        "torch_sparse_mm_us": "PyTorch sparse CSR `A @ b`",
    }
    row = load("host_cost")["rows"][0]
    return table(["call", "µs on the host"], [[names[k], v] for k, v in row.items()]) + origin("host_cost")


TABLES: Mapping[str, Callable[[], str]] = {
    "performance": performance,
    "cases": cases,
    "reproduction": reproduction,
    "uniform": uniform,
    "uniform-summary": uniform_summary,
    "ablation": ablation,
    "search": search,
    "dispatch": dispatch,
    "host": host,
    "decode": decode,
    "decode-n8": of_file("sweep_decode_n8", operator_tables.sweep),
    "decode-n32": of_file("sweep_decode_n32", operator_tables.sweep),
    "sddmm": sddmm,
    "softmax": of_file("softmax", lambda rows: operator_tables.softmax(rows, peers())),
    "attention": of_file("attention", operator_tables.attention),
    "training": of_file("training", operator_tables.training),
    "graph-capture": of_file("graph_capture", operator_tables.graph_capture),
    "mobilenet": of_file("mobilenet", operator_tables.mobilenet),
}


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a table is out of date.")
def main(check: bool) -> None:
    stale = []
    for path in PAGES:
        text = path.read_text()
        try:
            filled = fill(text)
        except SparsegenError as error:
            click.echo(f"{path.name}: {error}")
            sys.exit(1)
        if filled != text:
            stale.append(path.name)
            if not check:
                path.write_text(filled)
    if check and stale:
        click.echo(f"out of date: {', '.join(stale)}; run python -m benchmarks.make_tables")
        sys.exit(1)


def fill(text: str) -> str:
    """The text with every table made anew.

    Raises:
        SparsegenError: a table that is not known, has no end, or cannot be made.
    """
    for name in re.findall(r"<!-- ([a-z0-9-]+):begin -->", text):
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if name not in TABLES:
            raise SparsegenError(f"no table is called {name}; there are {', '.join(TABLES)}")
        before, rest = text.split(begin, 1)
        if end not in rest:
            raise SparsegenError(f"{begin} has no {end}")
        text = f"{before}{begin}\n{TABLES[name]()}\n{end}{rest.split(end, 1)[1]}"
    return text


if __name__ == "__main__":
    main()
