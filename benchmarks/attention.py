"""Sparse attention of the paper's sparse Transformer against dense attention and FlexAttention: time and memory.

    python -m benchmarks.attention --db tuned.db                        # the paper's mask, within 2 minutes
    python -m benchmarks.attention --db tuned.db --mask sliding --length 4096
    python -m benchmarks.attention --device emulator --length 64 --width 16 --heads 2 --seconds 0 --db tuned.db

12288 tokens, 8 heads of width 128, band of 256 and 95 % sparsity outside it, causal (Gale et al., SC 2020, section
VII). Ours is what `sparsegen.prepare_attention` runs after each of its operators was tuned for a few seconds. Every
result is held against float64 on a sample of the queries; then all calls are timed in turn, L2 cold. Dense attentions
are causal, and those called masked compute what ours does. Memory is what a call takes beside Q, K and V: PyTorch's
peak, and of ours also what its preparation and first call took of the device. Raw output: ``attention.json``, written
anew after every dtype; what it holds is not run again without ``--again``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import click

import sparsegen
from benchmarks.common import known_rows, write_results
from benchmarks.prepared import torch_place, tune_all
from sparsegen import masks
from sparsegen.attention.choice import Way
from sparsegen.backends import find_device
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import DType, Problem, SparseAttentionProblem

NAME = "attention"


@click.command()
@click.option("--db", required=True, type=click.Path())
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--mask", "kind", type=click.Choice(["band", "sliding"]), default="band", show_default=True)
@click.option("--length", default=12288, show_default=True)
@click.option("--heads", default=8, show_default=True)
@click.option("--width", default=128, show_default=True)
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice([str(d) for d in DType]),
              default=tuple(str(d) for d in DType), show_default=True)  # fmt: skip
@click.option("--seconds", default=6.0, help="for the search of each operator; 0: none")
@click.option("--jobs", default=4, help="searches side by side")
@click.option("--again", is_flag=True, help="also dtypes that the result file holds")
@click.option("--limit", default=95.0, help="begin no dtype later, seconds")
def main(
    db: str,
    name: str,
    kind: str,
    length: int,
    heads: int,
    width: int,
    dtypes: tuple[str, ...],
    seconds: float,
    jobs: int,
    again: bool,
    limit: float,
) -> None:
    began, device = time.monotonic(), find_device(name)
    torch_place(device)
    title = f"{kind} {length}x{heads}x{width}"
    rows = known_rows(device, NAME, "case")
    wanted = [DType(dtype) for dtype in dtypes if again or f"{title} {dtype}" not in rows]
    if not wanted:
        click.echo("the result file holds all of it; --again measures it anew")
        return
    mask = mask_of(kind, length)
    click.echo(f"{title}: {mask.nnz} nonzeros, {mask.nnz / length**2:.2%} of all places")
    if seconds:
        problems = problems_of(mask, heads, width, wanted, device, db)
        tune_all([(mask, problem) for problem in problems], device, db, seconds, jobs)
    from benchmarks.attention_contenders import measured  # imports PyTorch, which searches need not wait for

    for dtype in wanted:
        if time.monotonic() - began > limit:
            click.echo(f"time is up: {dtype} and what follows is left out; run again to go on")
            break
        case = f"{title} {dtype}"
        facts = {"case": case, "mask": kind, "length": length, "heads": heads, "width": width}
        rows[case] = facts | measured(mask, heads, width, dtype, device, db)
        write_results(device, NAME, list(rows.values()))
        show(rows[case])
    click.echo(f"{time.monotonic() - began:.0f} s")


def mask_of(kind: str, length: int) -> CsrMatrix:
    """The paper's mask, or a window of 512 with 4 sinks; both causal, narrower for short sequences."""
    if kind == "sliding":
        return masks.sliding_window(length, window=min(512, max(1, length // 4)), sinks=4)
    return masks.band(length, width=min(256, max(1, length // 4)))


def problems_of(
    mask: CsrMatrix, heads: int, width: int, dtypes: Sequence[DType], device: Device, db: str
) -> list[Problem]:
    """What `prepare_attention` looks up: the three steps of every dtype, and the fused operator of 16 bits."""
    steps = sparsegen.prepare_attention(
        mask, heads=heads, width=width, dtype=dtypes[0], way=Way.STEPS, device=device, db=db
    )
    m, n = mask.shape
    found: list[Problem] = []
    for dtype in dtypes:
        found += [replace(cast(Any, c.problem), dtype=dtype) for c in steps.choices.values()]
        if dtype.itemsize == 2:
            found.append(SparseAttentionProblem(m, n, width, dtype, heads))
    return found


def show(row: dict[str, Any]) -> None:
    for contender, facts in row["contenders"].items():
        memory = "" if facts["bytes"] is None else f"{facts['bytes'] / 2**20:9.0f} MiB"
        click.echo(
            f"{row['case']:32} {contender:18} {facts['us']:12.1f} us {memory}  error {facts['error']:.1e}"
        )
    for contender, reason in row["left_out"].items():
        click.echo(f"{row['case']:32} {contender:18} left out: {reason}")
    click.echo(f"{row['case']:32} over dense {row['to_dense']} x, over flex {row['to_flex']} x")


if __name__ == "__main__":
    main()
