"""Table of the problems that stood in no list: what `benchmarks.off_the_list` measured, nothing tuned.

Ratios are of times of one row, below 1 ours is faster. Dense is the fastest dense baseline: cuBLAS or the first eight
algorithms of cuBLASLt, or cuDNN in benchmark mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.drawn_tables import RATIOS, Times
from benchmarks.markdown import NONE, table
from benchmarks.off_the_list import cases
from benchmarks.suite_tables import origin, read
from sparsegen.operators import DType, FilterSize, MaskedConv2dProblem, MaskedProblem, Stride

KIND = "off_the"  # of files: off_the_list.json.xz
COLUMNS = {
    "ours / dense": "our kernel",
    "default / min(ours, dense)": "default",
    "the same in a graph": "in a graph",
}


def problems(folders: Iterable[Path]) -> str:
    """A line for each problem: of the three products of one size their ratios, of a convolution its own."""
    devices = [files for folder in folders if (files := read(folder, KIND))]
    if not devices:
        return f"Not measured yet: there is no `{KIND}*.json.xz` (benchmarks/README.md)."
    order = {case.name: number for number, case in enumerate(cases())}
    rows = [row for files in devices for results in files for row in results.rows]
    lines: dict[str, list[Times]] = {}
    for row in sorted(rows, key=lambda row: order[row.case]):
        lines.setdefault(line_of(row.problem), []).append(Times.of(row))
    head = ["half of the blocks live; `dsd` / `sdd` / `dsd_transposed`", "our kernel over dense"]
    head += ["default over the faster of both", "in a graph"]
    told = [[name, *(_ratios(times, ratio) for ratio in COLUMNS)] for name, times in lines.items()]
    return table(head, told) + "".join(map(origin, devices))


def line_of(problem: object) -> str:
    """The words of a problem's line, which the three products of one size share."""
    if isinstance(problem, MaskedProblem):
        m, k, n = problem.m, problem.k, problem.n
        return f"{m} × {k} × {n}, blocks of {problem.block.rows}"
    assert isinstance(problem, MaskedConv2dProblem), problem
    sizes = f"{problem.batch} × {problem.channels} × {problem.height} × {problem.width}"
    sizes += f" → {problem.filters}" if problem.filters != problem.channels else ""
    size = problem.filter_size
    unusual = [f"{size.rows} × {size.columns} filters"] if size != FilterSize(3, 3) else []
    unusual += [f"stride {problem.stride.rows}"] if problem.stride != Stride(1, 1) else []
    unusual += ["in planes"] if problem.layout.has_planes else []
    unusual += [problem.dtype.value] if problem.dtype is not DType.FLOAT16 else []
    return ", ".join((f"`masked_conv2d` {sizes}", *unusual, f"{problem.density.share:.0%} live"))


def _ratios(times: Iterable[Times], name: str) -> str:
    found = [RATIOS[name](one) for one in times]
    return " / ".join(NONE if ratio is None else f"{ratio:.2f}" for ratio in found)
