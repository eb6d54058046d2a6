"""Times of the dense way of products with masks: live blocks kept in one launch, and PyTorch's product.

    python -m benchmarks.where_live                           # a minute
    python -m benchmarks.where_live --device emulator --tiny  # a check without times
    python -m benchmarks.where_live --told FILE               # how well the untuned choice fits the times; no GPU

Each row: live blocks kept out of place and in place, PyTorch's own operations for the same, a copy of as many elements,
the product alone, and each operator by dense products and by masked ones; behind a busy queue with the L2 cold, and
from Python. Beside them the fewest bytes that the launches can move. Raw output: ``where_live.json.xz``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from benchmarks.study import geometric_mean, read_document, times_in_turn, torch_place, write_results
from sparsegen.backends import find_device
from sparsegen.dispatch.dense_or_sparse import Faster, Source, Time, compare, estimated_dense
from sparsegen.errors import ResultsError
from sparsegen.integrations.torch import dsd, dsd_transposed, sdd
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor
from sparsegen.integrations.torch.blocks.plain_products import LiveTensorBlocks
from sparsegen.kernels import families_of
from sparsegen.kernels.base import Device
from sparsegen.measure.l2 import L2
from sparsegen.operators import (
    Block,
    Density,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Layout,
    MaskedProblem,
    SddProblem,
)
from sparsegen.tuning.prediction.targets import named_target
from sparsegen.tuning_db.records import Called

CALLS = 4  # behind each other, as of a model's layers
SHARES = (0.5, 0.1)


@dataclass(frozen=True)
class Row:
    """X of tokens × features, in blocks, times a square matrix."""

    tokens: int
    features: int
    block: int
    share: float
    dtype: str = "float16"


SIZES = ((1024, 1024), (2048, 2048), (4096, 4096), (16384, 3072), (3000, 2500))
ROWS = (
    *(Row(*sizes, block, share) for sizes in SIZES for block in (16, 32, 128) for share in SHARES),
    Row(4096, 4096, 32, 0.5, "float32"),
    Row(4096, 4096, 32, 0.5, "bfloat16"),
)
TINY = (Row(48, 56, 16, 0.5),)


def calls_of(row: Row, place: torch.device, device: Device) -> tuple[dict[str, Callable[[], Any]], float]:
    """The calls by what they do, and the share of live blocks."""
    torch.manual_seed(0)
    dtype, shape = getattr(torch, row.dtype), (row.tokens, row.features)
    x, d, y = (torch.randn(shape, device=place).to(dtype) for _ in range(3))
    weight = torch.randn(row.features, row.features, device=place).to(dtype)
    counts = [-(-side // row.block) for side in shape]
    bools = torch.rand(counts, device=place) < row.share
    mask = BlockMaskTensor.from_blocks(bools, row.block, shape, density=row.share)
    live = LiveTensorBlocks(shape, mask.block, device)
    by_pytorch = LiveTensorBlocks(shape, mask.block, None)

    def by(dense: str) -> dict[str, Callable[[], Tensor]]:
        return {
            f"dsd, dense={dense}": lambda: dsd(x, weight, mask, dense=dense),
            f"dsd_transposed, dense={dense}": lambda: dsd_transposed(x, d, mask, dense=dense),
            f"sdd, dense={dense}": lambda: sdd(d, weight, mask, dense=dense),
        }

    return {
        "live": lambda: live.of(x, mask.words),
        "live, in place": lambda: live.without_dead(y, mask.words),
        "live, by PyTorch": lambda: by_pytorch.of(x, mask.words),
        "copy": lambda: y.copy_(x),
        "product": lambda: torch.mm(x, weight),
        **by("always"),
        **by("never"),
    }, float(bools.float().mean())


def measured(row: Row, place: torch.device, device: Device) -> dict[str, Any]:
    calls, share = calls_of(row, place, device)
    for call in calls.values():
        call()
    nbytes = row.tokens * row.features * getattr(torch, row.dtype).itemsize
    found: dict[str, Any] = asdict(row) | {
        "live_share": share,
        "least_bytes": {"live": round(nbytes * (1 + share)), "live, in place": round(nbytes * (1 - share))},
    }
    if place.type == "cuda":
        runs = list(calls.values())
        with torch.no_grad():
            us = times_in_turn(runs, l2=L2.COLD)
            host_us = times_in_turn(runs, called=Called.HOST, calls=CALLS)
        found |= {"us": dict(zip(calls, us, strict=True)), "host_us": dict(zip(calls, host_us, strict=True))}
    return found


def problems_of(row: Row) -> dict[str, MaskedProblem]:
    """The problems that PyTorch's layers ask for, by operator."""
    sizes = row.tokens, row.features, row.features
    given = DType(row.dtype), Block(row.block, row.block), Density(row.share)
    return {
        "dsd": DsdProblem(*sizes, *given, w_layout=Layout.COLUMN),
        "dsd_transposed": DsdTransposedProblem(*sizes, *given, y_layout=Layout.COLUMN),
        "sdd": SddProblem(*sizes, *given, w_layout=Layout.COLUMN),
    }


def tell(path: Path) -> None:
    """Print for each row and operator what is expected of both ways, what they took, and what the choice loses."""
    document = read_document(path)
    target = named_target(document["device"])
    if target is None:
        raise ResultsError(f"{path}: no description of {document['device']}")
    regrets: dict[Faster, list[float]] = defaultdict(list)
    for stored in document["rows"]:
        row = Row(**{field.name: stored[field.name] for field in fields(Row)})
        for operator, problem in problems_of(row).items():
            features = problem.features(problem.without_pattern)
            ours_us = min(
                family.predicted_us(problem, features, target.device)
                for family in families_of(operator)
                if family.computes(problem)
            )
            ours = Time.of_sparse(ours_us, Source.PREDICTED)
            dense = estimated_dense(problem, target.device, ())
            assert dense is not None
            times = {word: stored["us"][f"{operator}, dense={word}"] for word in ("never", "always")}
            chosen = times["never" if ours.is_at_most(dense) else "always"]
            regret, told = chosen / min(times.values()), compare(ours, dense)
            regrets[told].append(regret)
            click.echo(
                f"{row} {operator}: ours {times['never']:.1f} us, expected {ours.us:.1f}; dense {times['always']:.1f}, "
                f"expected {dense.us:.1f}; {told}, {regret:.2f}"
            )
    for told, found in regrets.items():
        click.echo(
            f"{told}: {len(found)}, estimates alone take {geometric_mean(found):.3f} times the faster one (worst "
            f"{max(found):.2f})"
        )


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--tiny", is_flag=True, help="a small row alone, for a test")
@click.option(
    "--told",
    type=click.Path(path_type=Path, exists=True),
    help="A file of these kernels' times; none are taken.",
)
def main(name: str, tiny: bool, told: Path | None) -> None:
    if told is not None:
        tell(told)
        return
    device = find_device(name)
    place = torch_place(device)
    rows = []
    for row in TINY if tiny else ROWS:
        rows.append(measured(row, place, device))
        click.echo(str(row))
        for what, us in rows[-1].get("us", {}).items():
            click.echo(f"    {us:8.1f} us, from Python {rows[-1]['host_us'][what]:8.1f}  {what}")
        write_results(device, "where_live", rows, l2="cold")


if __name__ == "__main__":
    main()
