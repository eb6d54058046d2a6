"""Times of a pruned layer beside cuSPARSE and the dense product, to be read at the sparsity that networks stand.

Muralidharan, MLSys 2023, table 1: a feed-forward layer of Transformer-Big, 4096 × 1024 with 1,024 tokens, in float16.
Random weights are pruned as those of `uniform_accuracy` are. Ours is what `sparsegen.prepare` chooses among sparse
kernels, without tuning; results are held against the dense product before anything is timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import sparsegen
from benchmarks.markdown import NONE, figure, quotient, times
from benchmarks.papers.budget import seconds
from benchmarks.papers.study import Point, Row, Setting, outcome
from benchmarks.study import WrongResultError, times_in_turn

LAYER, SMALL = (4096, 1024, 1024), (64, 48, 16)  # rows, columns, tokens
SPARSITIES = (0.8, 0.6, 0.7, 0.9, 0.5)  # below, none of these kernels is faster than the dense product
WAYS = ("ours", "cuSPARSE", "dense")
TOLERANCE = 1e-2  # of the largest element, in float16
HEAD = (
    "at the highest sparsity near dense",
    "sparsity",
    *(f"{way}, µs" for way in WAYS),
    "ours over cuSPARSE",
    "over dense",
    "beside dense",
)


def points(patterns: Mapping[str, Mapping[str, Any]], setting: Setting) -> Iterator[Point]:
    """A point for each pattern and sparsity."""
    for sparsity in SPARSITIES[:1] if setting.tiny else SPARSITIES:
        for name, options in patterns.items():
            told = {"layer": name, "sparsity": sparsity}
            yield Point(
                f"layer, {name}, {sparsity:.0%}",
                lambda t=told, o=options, p=sparsity: t | measured(o, p, setting),
                expected=0.5 + seconds(compiled=0.6),
            )


def measured(options: Mapping[str, Any], sparsity: float, setting: Setting) -> dict[str, Any]:
    """Microseconds of each way; none without a GPU.

    Raises:
        WrongResultError: ours gives another result than the dense product.
    """
    import torch

    m, k, n = SMALL if setting.tiny else LAYER
    drawn = np.random.default_rng(0).standard_normal((m, k)).astype(np.float16)
    pruned = sparsegen.prune({"w": drawn}, sparsity=sparsity, scope="layer", **options).weights["w"]
    dense = torch.from_numpy(np.ascontiguousarray(pruned)).to(setting.place)
    b = torch.randn(k, n, generator=torch.Generator().manual_seed(1)).half().to(setting.place)
    ours = sparsegen.prepare(pruned, n=n, dtype="float16", dense="never", device=setting.device)
    wanted = dense.float() @ b.float()
    product = torch.as_tensor(ours(b if setting.is_timed else b.numpy()))  # the emulator takes arrays
    error = float((product.float() - wanted).abs().max() / wanted.abs().max())
    if not error <= TOLERANCE:
        raise WrongResultError(f"off by {error:.3g} of the largest result")
    found = {
        "sizes": [m, k, n],
        "reached": round(1 - np.count_nonzero(pruned) / pruned.size, 4),
        "error": error,
    }
    if not setting.is_timed:
        return found | {"us": dict.fromkeys(WAYS)}
    csr = dense.to_sparse_csr()
    us = times_in_turn([lambda: ours(b), lambda: csr @ b, lambda: dense @ b])
    return found | {"us": {way: round(one, 2) for way, one in zip(WAYS, us, strict=True)}}


def line(told: str, pattern: str, sparsity: float | None, rows: Sequence[Row]) -> list[Any]:
    """A row of the table: the times at a sparsity, of the raw file's ``rows``."""
    us = next(
        (row["us"] for row in rows if (row.get("layer"), row["sparsity"]) == (pattern, sparsity)),
        dict.fromkeys(WAYS),
    )
    over = [quotient(us[way], us["ours"]) for way in WAYS[1:]]
    beside = NONE if over[1] is None else outcome(over[1])
    at = NONE if sparsity is None else f"{sparsity:.0%}"
    return [told, at, *(figure(us[way]) for way in WAYS), *map(times, over), beside]
