"""Agreement of our measurement of other libraries with an independent one (peers_h100.json.xz).

    python -m benchmarks.anchors bench.json ...

For each suite, dtype and baseline: geometric mean of our time over theirs, and the row that is furthest off. Ends with
status 1 if a mean of cuBLAS, cuSPARSE's CSR or PyTorch's Triton BSR is off by more than 10 %.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from benchmarks.study import HERE, geometric_mean, read_document
from sparsegen.bench.results import result_file
from sparsegen.bench.results.merging import merge
from sparsegen.bench.results.results import Results

PEERS = HERE / "peers_h100.json.xz"
TOLERANCE = 0.10
HELD_TO_IT = ("cublas", "cusparse-csr", "torch-bsr")

Group = tuple[str, str, str]  # suite, dtype, baseline
Peers = Mapping[tuple[str, str, str], Mapping[str, float]]  # by suite, case, dtype; then by baseline


def peers() -> Peers:
    """Microseconds by baseline, for each suite, case and dtype; Triton BSR at its best block size."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in read_document(PEERS)["rows"]:
        for dtype, times in row["us"].items():
            best: dict[str, float] = {}
            for label, us in times.items():
                baseline = label.split(" ")[0]  # the block size follows
                best[baseline] = min(us, best.get(baseline, us))
            found[row["suite"], row["case"], dtype] = best
    return found


def ratios(results: Results) -> Iterator[tuple[Group, str, float]]:
    """Our time over theirs, for every cell that both have; with the case's name."""
    known = peers()
    for row in results.rows:
        for baseline, us in known.get((row.suite, row.case, row.dtype.value), {}).items():
            ours = row.us(baseline)
            if ours is not None:
                yield (row.suite, row.dtype.value, baseline), row.case, ours / us


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def main(files: tuple[Path, ...]) -> None:
    groups: dict[Group, dict[str, float]] = defaultdict(dict)
    for group, case, ratio in ratios(merge([result_file.read(path) for path in files])):
        groups[group][case] = ratio
    if not groups:
        raise click.ClickException("these files have no row in common with peers_h100.json.xz")
    off = []
    for (suite, dtype, baseline), by_case in sorted(groups.items()):
        mean = geometric_mean(by_case.values())
        worst = max(by_case, key=lambda case: abs(by_case[case] - 1))
        furthest = f"furthest {worst} {by_case[worst]:.2f}"
        click.echo(f"{suite:12} {dtype:8} {baseline:22} {mean:6.3f} over {len(by_case):2}, {furthest}")
        if baseline in HELD_TO_IT and abs(mean - 1) > TOLERANCE:
            off.append(f"{suite} {dtype} {baseline}: {mean:.3f}")
    overall: dict[str, list[float]] = defaultdict(list)
    for (_, _, baseline), by_case in groups.items():
        overall[baseline] += by_case.values()
    for baseline, all_ratios in sorted(overall.items()):
        click.echo(
            f"{'all':12} {'':8} {baseline:22} {geometric_mean(all_ratios):6.3f} over {len(all_ratios)}"
        )
    if off:
        raise click.ClickException(f"off by more than {TOLERANCE:.0%}: " + "; ".join(off))


if __name__ == "__main__":
    main()
