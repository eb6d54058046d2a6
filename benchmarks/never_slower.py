"""Check that nothing is slower than dense without any tuning: single products, an encoder, a decoder.

    python -m benchmarks.never_slower [--dlmc FOLDER] [--part products] [--limit 6] ...

Needs a GPU that PyTorch can use; ``--tiny`` tries the program itself, with small sizes and anywhere. Everything is
prepared with a database of its own, empty at the start. ``--limit`` takes that many cases of each part and dtype,
spread over all of them. Given again, the command goes on where a time limit ended it. Raw output:
``never_slower.json.xz``.

- products: 36 patterns that are in no packaged result, in both dtypes. With ``--dlmc`` they are the ``.smtx`` and
  ``.smtx.gz`` files of a folder (of held-out layers; all of them), else random ones of DLMC's shapes with rows of
  different lengths. For each the default choice, the variant (``dense="never"``), and `torch.nn.functional.linear`, in
  turn with a cold L2.
- encoder: six layers of MiniLM's sizes with random pruned weights (80 and 90 %), 16, 128 and 512 tokens, called from
  Python and as a CUDA graph; converted with ``example_inputs``, which has Q, K and V of a layer share a launch and GELU
  become part of the layer before it where the model is faster so (timed as it is then called), and converted without.
- decoder: linear layers of LLaMA's sizes at 50 to 80 %, 8 tokens, as a CUDA graph.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from timeit import timeit
from typing import Any, TypeVar

import click
import numpy as np
import scipy.sparse
import torch
from torch import nn

import sparsegen
from benchmarks.graph_capture import captured
from benchmarks.study import known_rows, times_in_turn, write_results
from benchmarks.study_tables import SLOWER
from sparsegen.backends import find_device
from sparsegen.integrations.torch import convert
from sparsegen.measure.l2 import L2
from sparsegen.tuning_db.records import Called

SHAPES = ((512, 512), (512, 2048), (2048, 512), (1024, 1024), (256, 2304), (2048, 2048))
SPARSITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
TOKENS = 256
DTYPES = ("float32", "float16")
NAME = "never_slower"
WIDTH, HEADS, HIDDEN, LAYERS = 384, 12, 1536, 6  # of MiniLM-L6
DECODER = {"qkv": (6144, 4096), "out": (4096, 4096), "up": (11008, 4096), "down": (4096, 11008)}

Run = Callable[[], Any]
Case = TypeVar("Case")


@dataclass(frozen=True)
class Sizes:
    """Sizes and devices of the measurements."""

    place: str
    shapes: Sequence[tuple[int, int]]
    tokens: int
    width: int
    heads: int
    hidden: int
    layers: int
    batches: Sequence[int]
    decoder: Mapping[str, tuple[int, int]]
    l2: L2  # of products; a model's calls find it as they leave it


FULL = Sizes("cuda", SHAPES, TOKENS, WIDTH, HEADS, HIDDEN, LAYERS, (16, 128, 512), DECODER, L2.COLD)
TINY = Sizes(
    "cuda" if torch.cuda.is_available() else "cpu",
    ((32, 48), (48, 32)), 16, 32, 2, 64, 2, (8,),
    {"qkv": (48, 32), "out": (32, 32), "up": (64, 32), "down": (32, 64)}, L2.COLD,
)  # fmt: skip


def times_us(runs: Sequence[Run], l2: L2, place: str, is_ahead: bool = True) -> list[float]:
    """Medians of calls in turn, between events; without a GPU by the clock.

    Args:
        l2: state of the second-level cache before each call.
        is_ahead: the GPU waits while the host queues a call; otherwise the host's time counts too.
    """
    if place == "cpu":
        return [timeit(run, number=1) * 1e6 for run in runs]
    return times_in_turn(runs, called=Called.DEVICE if is_ahead else Called.HOST, l2=l2)


def graph_of(run: Run) -> Run:
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    return captured(run, torch.device("cuda"))[0]


def random_pattern(m: int, k: int, sparsity: float, seed: int) -> scipy.sparse.csr_array:
    """Rows keep different numbers of weights, as those of pruned layers do."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((m, k)) * np.exp(0.3 * rng.standard_normal((m, 1)))
    kept = np.abs(scores) > np.quantile(np.abs(scores), sparsity)
    return scipy.sparse.csr_array(np.where(kept, rng.standard_normal((m, k)), 0.0).astype(np.float32))


def spread(cases: Sequence[Case], limit: int | None) -> Sequence[Case]:
    """Returns at most ``limit`` cases, the first and the last among them."""
    if limit is None or limit >= len(cases):
        return cases
    last = len(cases) - 1
    return [cases[round(i * last / max(1, limit - 1))] for i in range(limit)]


def patterns(folder: Path | None, sizes: Sizes) -> list[tuple[str, Callable[[], Any]]]:
    if folder is not None:
        paths = sorted([*folder.rglob("*.smtx"), *folder.rglob("*.smtx.gz")])
        names = [str(path.relative_to(folder)).partition(".smtx")[0] for path in paths]
        return [(name, partial(sparsegen.load_matrix, path)) for name, path in zip(names, paths, strict=True)]
    return [
        (f"{m}x{k} {sparsity:g}", partial(random_pattern, m, k, sparsity, 1000 + 10 * i + j))
        for i, (m, k) in enumerate(sizes.shapes)
        for j, sparsity in enumerate(SPARSITIES)
    ]


def products(
    folder: Path | None, db: str, sizes: Sizes, limit: int | None, known: Container[str]
) -> Iterator[dict[str, Any]]:
    for dtype in DTYPES:
        for name, pattern in spread(patterns(folder, sizes), limit):
            if (row := f"products {name} {dtype}") in known:
                continue
            matrix = sparsegen.as_csr(pattern())
            given: dict[str, Any] = {"n": sizes.tokens, "dtype": dtype, "layout": "column", "db": db}
            began = time.perf_counter()
            chosen = sparsegen.prepare(matrix, **given)
            seconds = time.perf_counter() - began
            never = sparsegen.prepare(matrix, **given, dense="never")
            kind = getattr(torch, dtype)
            weight = torch.from_numpy(matrix.to_dense()).to(sizes.place, kind)
            x = torch.randn(sizes.tokens, matrix.shape[1], device=sizes.place, dtype=kind)
            ours = x if sizes.place == "cuda" else x.numpy()  # as the emulator takes it
            runs = (partial(chosen, ours), partial(never, ours), partial(nn.functional.linear, x, weight))
            us = times_us(runs, sizes.l2, sizes.place)
            yield {
                "row": row, "part": "products", "case": name, "dtype": dtype, "default_us": us[0], "sparse_us": us[1],
                "dense_us": us[2], "ran": "dense" if chosen.variant is None else chosen.variant.family,
                "prepared_seconds": seconds, "over_best": us[0] / min(us[1:]), "over_dense": us[0] / us[2],
                "explained": chosen.explain(),
            }  # fmt: skip


class EncoderLayer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, hidden = sizes.width, sizes.hidden
        self.width, self.heads = width, sizes.heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.activation, self.down = nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).view(-1, self.heads, self.width // self.heads).transpose(0, 1)
            for layer in (self.q, self.k, self.v)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(-1, self.width)
        x = self.first(x + self.out(seen))
        return self.second(x + self.down(self.activation(self.up(x))))


class DecoderLayers(nn.Module):
    """The linear layers alone: attention is dense in both."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        for name, (rows, columns) in sizes.decoder.items():
            setattr(self, name, nn.Linear(columns, rows, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.out(self.qkv(x)[:, : x.shape[1]])
        return x + self.down(nn.functional.silu(self.up(x)))


def models(
    part: str,
    make: Callable[[], nn.Module],
    width: int,
    sparsities: Sequence[float],
    tokens: Sequence[int],
    sizes: Sizes,
    limit: int | None,
    known: Container[str],
) -> Iterator[dict[str, Any]]:
    cases = [(sparsity, count) for sparsity in sparsities for count in tokens]
    for dtype in DTYPES:
        for sparsity, count in spread(cases, limit):
            case = f"{sparsity:g} {count} tokens"
            row = f"{part} {case} {dtype}"
            if f"{row} eager" in known:
                continue
            torch.manual_seed(0)
            kind = getattr(torch, dtype)
            dense = make().to(sizes.place, kind).eval().requires_grad_(False)
            x = torch.randn(count, width, device=sizes.place, dtype=kind)
            by_graph, by_calls, by_layer = (make().to(sizes.place, kind).eval() for _ in range(3))
            for copy in (by_graph, by_calls, by_layer):
                copy.load_state_dict(dense.state_dict())
                copy.requires_grad_(False)
            began = time.perf_counter()
            report = convert(by_graph, sparsity=sparsity, tokens=count, example_inputs=x)
            seconds = time.perf_counter() - began
            called = convert(by_calls, sparsity=sparsity, tokens=count, example_inputs=x, capture=False)
            convert(by_layer, sparsity=sparsity, tokens=count)
            every = [partial(m, x) for m in (dense, by_calls, by_layer)]
            graphs = [partial(m, x) for m in (dense, by_graph, by_layer)]
            with torch.inference_mode():
                for run in (*every, *graphs):
                    run()
                times = {"eager": (called, times_us(every, L2.WARM, sizes.place, is_ahead=False))}
                if sizes.place == "cuda":
                    times["graph"] = report, times_us([graph_of(run) for run in graphs], L2.WARM, sizes.place)
            names = ("dense_us", "converted_us", "converted_by_products_us")
            for mode, (made, us) in times.items():
                yield {
                    "row": f"{row} {mode}", "part": part, "case": case, "dtype": dtype, "mode": mode,
                    **dict(zip(names, us, strict=True)), "over_dense": us[1] / us[0],
                    "summary": made.summary, "conversion": made.to_dict(), "conversion_seconds": seconds,
                }  # fmt: skip


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    for part, dtype in dict.fromkeys((row["part"], row["dtype"]) for row in rows):
        mine = [row for row in rows if (row["part"], row["dtype"]) == (part, dtype)]
        over = [row["over_dense"] for row in mine]
        slower = sum(one > SLOWER for one in over)
        mean = math.exp(sum(map(math.log, over)) / len(over))
        line = (
            f"{part} {dtype}: {slower} of {len(mine)} slower than dense by over 2 %, worst {max(over):.2f}, "
        )
        line += f"geometric mean {mean:.3f} × dense"
        best = [row["over_best"] for row in mine if "over_best" in row]
        if best:
            line += f", {math.exp(sum(map(math.log, best)) / len(best)):.3f} × the best of both"
        yield line


def told(row: Mapping[str, Any]) -> str:
    """A row in a line."""
    if row["part"] == "products":
        return (
            f"{row['row']}: {row['default_us']:.1f} µs ({row['ran']}), sparse {row['sparse_us']:.1f}, dense "
            f"{row['dense_us']:.1f}; {row['over_dense']:.3f} × dense; prepared in {row['prepared_seconds']:.1f} s"
        )
    return (
        f"{row['row']}: {row['converted_us']:.0f} µs, dense {row['dense_us']:.0f}, by products "
        f"{row['converted_by_products_us']:.0f}; {row['over_dense']:.3f} × dense; "
        f"{row['summary'].partition(';')[0]}; in {row['conversion_seconds']:.1f} s"
    )


@click.command()
@click.option(
    "--dlmc",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A folder of held-out .smtx files; default random patterns.",
)
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(["products", "encoder", "decoder"]),
    help="default: all",
)
@click.option("--limit", type=click.IntRange(min=1), help="Cases of each part and dtype; default all.")
@click.option("--tiny", is_flag=True, help="Small sizes, on any device: times mean nothing.")
def main(dlmc: Path | None, parts: tuple[str, ...], limit: int | None, tiny: bool) -> None:
    sizes = TINY if tiny else FULL
    if not tiny and not torch.cuda.is_available():
        raise click.ClickException("this needs an NVIDIA GPU that PyTorch can use, or --tiny")
    device = find_device("cuda" if sizes.place == "cuda" else "emulator")
    known = known_rows(device, NAME, "row")
    with tempfile.TemporaryDirectory() as folder:
        db = str(Path(folder) / "tuning.db")

        def encoder() -> nn.Module:
            return nn.Sequential(*(EncoderLayer(sizes) for _ in range(sizes.layers)))

        os.environ["SPARSEGEN_DB"] = db  # layers of PyTorch take it from there
        decoder, rest = partial(DecoderLayers, sizes), (sizes, limit, known)
        every: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
            "products": lambda: products(dlmc, db, *rest),
            "encoder": lambda: models("encoder", encoder, sizes.width, (0.8, 0.9), sizes.batches, *rest),
            "decoder": lambda: models(
                "decoder", decoder, sizes.decoder["qkv"][1], (0.5, 0.6, 0.7, 0.8), (8,), *rest
            ),
        }
        for part in parts or every:
            for row in every[part]():
                known[row["row"]] = row
                click.echo(told(row))
                write_results(device, NAME, list(known.values()), tiny=tiny)
    for line in summary(list(known.values())):
        click.echo(line)


if __name__ == "__main__":
    main()
