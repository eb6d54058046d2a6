"""Tables of `softmax`, `attention` and parts of `benchmarks.attention_masks`; `benchmarks.make_tables` places them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.anchors import Peers
from benchmarks.markdown import NONE, TYPES, figure, quotient, table
from benchmarks.study import read_document
from benchmarks.suite_tables import origin, read, short
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


def fixed(devices: Sequence[Path]) -> str:
    """A row for each fixed mask: µs of each implementation, expected ones in brackets, and what is chosen by these."""
    document = _newest(devices, "fixed")
    if document is None:
        return _no_part("fixed")
    lines = []
    for row in document["rows"]:
        of_mask = f"window {row['window']}" if row["window"] else _blocks(row)
        cells = []
        for found, expected, names, chosen in (
            ("forward_us", "expected_forward_us", ("blocks", "fused", "steps"), "forward"),
            ("training_us", "expected_training_us", ("blocks", "steps"), "training"),
        ):
            cells += [_beside(row[found][name], row[expected].get(name)) for name in names]
            cells += [_whole(row[found]["cudnn_dense"]), row["chosen"][chosen]]
        lines.append([f"{of_mask}, {row['head_dim']}", *cells])
    head = ["mask, head_dim", "blocks", "fused", "steps", "cuDNN, dense", "chosen"]
    return table([*head, "training: blocks", "steps", "cuDNN, dense", "chosen"], lines) + _made_by(document)


def warps(devices: Sequence[Path]) -> str:
    """A row for each mask: µs of kernels of single warps, of warpgroups, and of flash attention with nothing dead."""
    document = _newest(devices, "warps")
    if document is None:
        return _no_part("warps")
    lines = []
    for row in document["rows"]:
        forward, backward = row["forward_us"], row["backward_us"]
        passes = "mma", "tma_one_pass", "tma_two_passes", "flash_dense"
        cells = [_whole(forward[name]) for name in ("mma", "tma", "flash_dense")]
        lines.append(
            [f"{_blocks(row)}, {row['head_dim']}", *cells, *(_whole(backward[name]) for name in passes)]
        )
    head = ["mask, head_dim", "`mma`", "`tma`", "flash, dense", "gradients: `mma`", "`tma`", "in two passes"]
    return table([*head, "flash, dense"], lines) + _made_by(document)


def _newest(devices: Sequence[Path], part: str) -> dict[str, Any] | None:
    """The newest file of the study that holds timed rows of a part, with these alone."""
    found = []
    for device in devices:
        for file in device.glob("attention_masks*.json.xz"):
            document = read_document(file)
            rows = [row for row in document["rows"] if row.get("part") == part and "forward_us" in row]
            if rows:
                found.append({**document, "rows": rows})
    return max(found, key=lambda document: document["rows"][-1]["measured"], default=None)


def _blocks(row: Mapping[str, Any]) -> str:
    if row["block"]:
        return f"blocks of {row['block']}, {row['live']:.0%}"
    return f"{row['live']:.0%} of all" if row["live"] < 1 else "nothing dead"


def _beside(found: float, expected: float | None) -> str:
    return _whole(found) if expected is None else f"{_whole(found)} ({_whole(expected)})"


def _whole(us: float) -> str:
    return f"{us:.0f}"


def _made_by(document: Mapping[str, Any]) -> str:
    first = document["rows"][0]
    sizes = f"{first['heads']} heads × {first['tokens']} tokens, fp16, µs, L2 {document['l2']}"
    states = ", ".join(dict.fromkeys(short(row["state"]) for row in document["rows"]))
    return f"\n\n{sizes}; {document['device']}, {document['date']}; measured by {states}."


def _no_part(part: str) -> str:
    return f"Not measured yet: `python -m benchmarks.attention_masks --part {part}`."


def _not_measured(suite: str) -> str:
    return f"Not measured yet: no `bench_*.json.xz` holds rows of the suite {suite} (benchmarks/README.md)."


def _rows(folder: Path, suite: str) -> tuple[list[Results], list[Row]]:
    """The files that hold rows of a suite, and these rows."""
    files = read(folder, suites=[suite])
    return files, [row for results in files for row in results.rows if row.suite == suite]
