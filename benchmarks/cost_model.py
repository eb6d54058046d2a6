"""Fit the cost model of predicted times, and say how well it ranks what it was not fitted to.

    python -m benchmarks.cost_model instructions   # counts of the seeds' sources; nvcc and nvdisasm, no GPU; goes on
    python -m benchmarks.cost_model fit            # writes sparsegen/tuning/prediction/cost_model.json
    python -m benchmarks.cost_model quality        # suites and families left out
    python -m benchmarks.cost_model held-out h100.json.xz h200.json.xz  # workloads of one shape left out; 20 seconds

docs/internals/predictions.md keeps what ``quality`` prints.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.evidence import known_variants, read_counts, source_key, write_counts
from benchmarks.fitting import Known, fit, fit_without
from benchmarks.predicted_variants import described_as, evidence_of, first_and_best_of_eight
from benchmarks.study import HERE, geometric_mean, read_document
from sparsegen.backends.cuda.compiler import CudaToolchain
from sparsegen.backends.cuda.inspection import sass
from sparsegen.backends.cuda.instructions import Instructions
from sparsegen.errors import CompileError
from sparsegen.plan.variants import compile_variant
from sparsegen.settings import Settings
from sparsegen.tuning.prediction import model as cost
from sparsegen.tuning.prediction.model import CostModel, difference_from
from sparsegen.tuning_db.seeds_reader import packaged

RESULTS = HERE / "results" / "nvidia-h100-80gb-hbm3-sm90"
COUNTS = RESULTS / "instructions.json.xz"
DRAWN = RESULTS / "predicted_variants.json.xz"
OFTEN = 3  # counts each of these: of the packaged variants, which searches chose, few are slow
FIRST = 8  # of which the best is compared, too


def packaged_evidence() -> tuple[list[Known], int]:
    """The packaged measurements with the recorded instruction counts, and the usual number of registers."""
    return known_variants(packaged().all_measurements(), read_counts(COUNTS))


def evidence() -> tuple[list[Known], int]:
    """All that the model is fitted to: the packaged measurements, and variants drawn at random on this device."""
    packaged, usual = packaged_evidence()
    drawn = evidence_of(DRAWN, packaged[0].device, usual) if DRAWN.is_file() else {}
    return packaged + [v for variants in drawn.values() for v in variants] * OFTEN, usual


def document(model: CostModel, variants: Sequence[Known]) -> dict[str, object]:
    """Returns the content of the package's file."""
    workloads = {(v.workload.problem, v.workload.fingerprint) for v in variants}
    once = {
        (v.workload.problem, v.workload.fingerprint, v.device.key, v.config): v for v in variants
    }.values()
    counted = sum(v.resources is not None and v.resources.instructions is not None for v in once)
    source = (
        f"python -m benchmarks.cost_model fit: {len(once)} variants on {len(workloads)} workloads, measured on "
        + ", ".join(sorted({v.device.name for v in variants}))
        + f"; of {counted} the instructions are known"
    )
    return {"source": source, "model": model.to_dict()}


def suites() -> dict[str, str]:
    """The suite of every workload that the committed benchmark results name, by fingerprint."""
    found: dict[str, str] = {}
    for file in sorted(RESULTS.glob("bench_*.json.xz")):
        for row in read_document(file)["rows"]:
            found.setdefault(row["fingerprint"], row["suite"])
    return found


@dataclass(frozen=True)
class Quality:
    """Quality of an order of workloads' recorded variants.

    Attributes:
        first, of_eight: time of the first one, and of the best of the first eight, over the best recorded one's; of
            eight only where more than eight were recorded.
        second, mean: time of the second best of all over the best one's, and the geometric mean of all.
    """

    first: list[float]
    of_eight: list[float]
    second: list[float]
    mean: list[float]

    @classmethod
    def of(
        cls, variants: Sequence[Known], times: Sequence[float], group: Callable[[Known], Hashable]
    ) -> Quality:
        """Equal predictions are taken in the order that is worst."""
        groups: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
        for v, time_us in zip(variants, times, strict=True):
            groups[group(v)].append((float(f"{time_us:.5g}"), -v.time_us))
        found = cls([], [], [], [])
        for listed in groups.values():
            if len(listed) < 2:
                continue
            measured = [-t for _, t in sorted(listed)]
            order = sorted(measured)
            found.first.append(measured[0] / order[0])
            found.second.append(order[1] / order[0])
            found.mean.append(geometric_mean(measured) / order[0])
            if len(measured) > FIRST:
                found.of_eight.append(min(measured[:FIRST]) / order[0])
        return found

    def row(self, name: str) -> str:
        within = sum(s <= 1.15 for s in self.first) / max(1, len(self.first))
        eight = f"{geometric_mean(self.of_eight):.3f} ({len(self.of_eight)})" if self.of_eight else "-"
        return (
            f"| {name} | {len(self.first)} | {geometric_mean(self.first):.3f} | {within:.0%} | {eight} "
            f"| {geometric_mean(self.second):.3f} | {geometric_mean(self.mean):.3f} |"
        )


def predicted(model: CostModel, variants: Sequence[Known], rest: Sequence[Known]) -> list[float]:
    """The times of variants by a model that was fitted to the rest."""
    by_family: dict[str, list[int]] = defaultdict(list)
    for place, v in enumerate(variants):
        by_family[v.config.family_name].append(place)
    times = [0.0] * len(variants)
    for name, places in by_family.items():
        others = list(dict.fromkeys(v.config for v in rest if v.config.family_name == name))
        apart = difference_from(others, [variants[i].config for i in places])
        for i, difference in zip(places, apart, strict=True):
            times[i] = model.corrected_us(variants[i].described, difference)
    return times


def left_out(
    variants: Sequence[Known], usual: int, part: Callable[[Known], str]
) -> dict[str, tuple[list[Known], list[float]]]:
    """Returns the variants of each part, and their times by a model that was fitted to all other parts."""
    found = {}
    for name in sorted({part(v) for v in variants}):
        inside = [v for v in variants if part(v) == name]
        rest = [v for v in variants if part(v) != name]
        model = fit_without(variants, usual, lambda v, name=name: part(v) == name)  # type: ignore[misc]
        found[name] = (inside, predicted(model, inside, rest))
    return found


def workload_of(v: Known) -> Hashable:
    return v.workload.problem, v.workload.fingerprint, v.device.key


@click.group()
def main() -> None:
    """See the module's text."""


@main.command("fit")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=cost.FILE, show_default=False)
def fit_command(output: Path) -> None:
    """Fit to the packaged measurements."""
    variants, usual = evidence()
    model = fit(variants, usual)
    output.write_text(json.dumps(document(model, variants), indent=1) + "\n", encoding="utf-8")
    click.echo(f"{output}: model {model.digest}, {len(variants)} variants, unlike {model.unlike}")


@main.command()
def quality() -> None:
    """Prints the quality of the first variants, on workloads and families that the model was not fitted to."""
    variants, usual = evidence()
    names = suites()

    def suite(v: Known) -> str:
        return names.get(v.workload.fingerprint, "others")

    def family(v: Known) -> str:
        return v.config.family_name

    def of_family(v: Known) -> Hashable:
        return workload_of(v), family(v)

    columns = ("{}", "workloads", "first", "within 15 %", "best of 8 (workloads)", "second best", "mean")
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    click.echo(head.format("all, ordered by"))
    analytic = [v.described.analytic_us for v in variants]
    click.echo(Quality.of(variants, analytic, workload_of).row("analytic times"))
    model = fit(variants, usual)
    click.echo(
        Quality.of(variants, predicted(model, variants, variants), workload_of).row("model fitted to them")
    )
    parts = left_out(variants, usual, suite)
    everything = [v for inside, _ in parts.values() for v in inside]
    times = [t for _, found in parts.values() for t in found]
    click.echo(Quality.of(everything, times, workload_of).row("suites left out"))
    logs = [abs(math.log(t / v.time_us)) for v, t in zip(everything, times, strict=True)]
    click.echo(
        f"\nmedian error of a predicted time, suites left out: {math.exp(sorted(logs)[len(logs) // 2]) - 1:.0%}\n"
    )
    click.echo(head.format("suite left out"))
    for name, (inside, found) in parts.items():
        click.echo(Quality.of(inside, found, workload_of).row(name))
    click.echo("\n" + head.format("family left out"))
    parts = left_out(variants, usual, family)
    for name, (inside, found) in parts.items():
        click.echo(Quality.of(inside, found, of_family).row(name))
    everything = [v for inside, _ in parts.values() for v in inside]
    times = [t for _, found in parts.values() for t in found]
    click.echo(Quality.of(everything, times, of_family).row("all, within families"))
    click.echo(Quality.of(everything, times, workload_of).row("all, against other families"))


@main.command()
@click.option("--limit", default=0, help="Sources to compile now; 0: all that are missing.")
def instructions(limit: int) -> None:
    """Compile the seeds' sources that were not counted yet, and count their instructions."""
    toolchain, settings = CudaToolchain((9, 0)), Settings.from_environment()
    counts = read_counts(COUNTS)
    failed: Counter[str] = Counter()
    done = 0
    try:
        for m in packaged().all_measurements():
            problem, config = m.workload.problem, m.variant.config
            if not config.is_known or (key := source_key(problem, config)) in counts:
                continue
            try:
                kernel = compile_variant(config, problem, toolchain).kernel
                counts[key] = Instructions.of(sass(kernel.binary, settings))
            except CompileError:
                failed[config.family_name] += 1
                continue
            done += 1
            if done == limit:
                break
    finally:
        write_counts(
            COUNTS,
            counts,
            command="python -m benchmarks.cost_model instructions",
            toolchain=toolchain.fingerprint,
        )
    click.echo(f"{done} counted now, {len(counts)} in all; did not compile: {dict(failed) or 'none'}")


@main.command("held-out")
@click.argument("first", type=click.Path(path_type=Path, exists=True))
@click.argument("second", type=click.Path(path_type=Path, exists=True))
def held_out(first: Path, second: Path) -> None:
    """Order the variants of `predicted_variants` on two devices by models that saw no workload of their shape."""
    packaged, usual = packaged_evidence()
    names = [read_document(file)["device"] for file in (first, second)]
    measured = [
        evidence_of(file, described_as(name), usual)
        for file, name in zip((first, second), names, strict=True)
    ]
    ratios: list[list[tuple[float, float]]] = [[], []]
    for name in measured[0]:
        rest = [v for other, vs in measured[0].items() if shape_of(other) != shape_of(name) for v in vs]
        model = fit(packaged + rest * OFTEN, usual)
        for of_device, found in zip(measured, ratios, strict=True):
            variants = of_device.get(name, [])
            if len(variants) > 1:
                times = predicted(model, variants, packaged + rest)
                found.append(first_and_best_of_eight([v.time_us for v in variants], times))
    click.echo("| device | fitted to | workloads | first | best of 8 |\n|---|---|---|---|---|")
    for name, found in zip(names, ratios, strict=True):
        first_of, of_eight = (geometric_mean(r[i] for r in found) for i in (0, 1))
        click.echo(f"| {name} | {names[0]}, other shapes | {len(found)} | {first_of:.3f} | {of_eight:.3f} |")


def shape_of(workload: str) -> str:
    """The name of a workload without its dtype."""
    return workload.rsplit(" ", 1)[0]


if __name__ == "__main__":
    main()
