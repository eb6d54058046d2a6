"""Tables of the suites `softmax` and `attention`; `benchmarks.make_tables` places them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.anchors import Peers
from benchmarks.markdown import NONE, TYPES, figure, quotient, table
from benchmarks.suite_tables import origin, read
from sparsegen.bench.results.results import TUNED, UNTUNED, Results, Row
from sparsegen.bench.results.summary import standing_for_us
from sparsegen.operators import SoftmaxProblem

SPUTNIKS_WIDTH = 64  # of the rows of suite `sddmm`, on whose patterns Sputnik's softmax was timed
ATTENTIONS = ("sparsegen-steps", "torch-flex", "torch-sdpa", "torch-sdpa-causal")


def softmax(folder: Path, peers: Peers) -> str:
    """A row for each mask, operator and dtype, beside a copy of as many bytes."""
    files, rows = _rows(folder, "softmax")
    if not rows:
        return _not_measured("softmax")
    lines, ours = [], standing_for_us(rows)
    for row in rows:
        us, copy = row.us(ours), row.us("copy")
        lines.append(
            [
                f"{row.case}, {TYPES[row.dtype.value]}",
                f"{row.nnz / 1e6:.2f}",
                figure(us),
                f"{row.floor.bytes / us / 1e3:.0f}" if us else NONE,
                figure(copy),
                f"{100 * copy / us:.0f} %" if us and copy else NONE,
                figure(row.us("torch-softmax")),
                figure(_sputnik(row, peers)),
            ]
        )
    head = ["mask", "million nonzeros", "µs", "GB/s", "copy of the bytes, µs", "of its bandwidth"]
    return table([*head, "`torch.softmax`, padded, µs", "Sputnik, µs"], lines) + origin(files)


def _sputnik(row: Row, peers: Peers) -> float | None:
    """Sputnik has it in float32, and was timed on the random patterns of the suite ``sddmm``."""
    if row.operator != SoftmaxProblem.operator:
        return None
    sizes, _, pattern = row.case.partition(" ")
    key = "sddmm", f"{sizes}x{SPUTNIKS_WIDTH} {pattern}", row.dtype.value
    return peers.get(key, {}).get("sputnik-softmax")


def attention(folder: Path) -> str:
    """A row for each mask and dtype; the last two columns are of dense kernels: with the mask, and causal alone."""
    files, rows = _rows(folder, "attention")
    if not rows:
        return _not_measured("attention")
    lines = []
    for row in rows:
        us = [row.us(TUNED) or row.us(UNTUNED), *map(row.us, ATTENTIONS)]
        ours = min((time for time in us[:2] if time), default=None)
        others = [f"{figure(time)} ({figure(quotient(time, ours))})" if time else NONE for time in us[2:]]
        lines.append([row.case, TYPES[row.dtype.value], *map(figure, us[:2]), *others])
    head = [
        "heads' mask",
        "type",
        "fused, µs",
        "in steps",
        "FlexAttention (over ours)",
        "dense with the mask",
    ]
    return table([*head, "dense, causal alone"], lines) + origin(files)


def _not_measured(suite: str) -> str:
    return f"Not measured yet: no `bench_*.json.xz` holds rows of the suite {suite} (benchmarks/README.md)."


def _rows(folder: Path, suite: str) -> tuple[list[Results], list[Row]]:
    """The files that hold rows of a suite, and these rows."""
    files = read(folder, suites=[suite])
    return files, [row for results in files for row in results.rows if row.suite == suite]
