"""Predicted times beside measured ones, on one GPU or on two.

    python -m benchmarks.predicted_variants record                   # on an H100
    python -m benchmarks.predicted_variants record --same h100.json.xz  # on an H200: the same variants
    python -m benchmarks.predicted_variants report h100.json.xz h200.json.xz -o prediction.svg

``record`` measures for every workload the eight variants that the cost model puts first, every family's heuristic
config and some drawn at random from all valid ones, in turn and with a cold L2, and writes predicted_variants.json.xz.
``report`` prints how good the first variants are and draws predicted against measured times; with two files also the
second device's by the first one's measured times, scaled by the ratio of the model's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks import fitting, pictures
from benchmarks.study import SideBySide, Workload, geometric_mean, known_rows, read_document, write_results
from sparsegen import backends
from sparsegen.errors import SparsegenError
from sparsegen.kernels import families_of, read_config
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.operators import DType
from sparsegen.tuning.prediction.model import cost_model
from sparsegen.tuning.prediction.targets import described, find_target
from sparsegen.tuning.search.predicted_search import Estimate
from sparsegen.tuning.space import Space
from sparsegen.tuning_db.records import Workload as Known
from sparsegen.tuning_db.seeds_reader import seeds

BELOW_LINES = 0  # the order of drawing in which points come
NAME = "predicted_variants"
FIRST = 8
RANDOM = 16
ROUNDS, SAMPLES = 5, 20
WORKLOADS = [
    (Workload(f"{m}x{k}x{n} {sparsity}", m, k, n, sparsity), dtype)
    for dtype in (DType.FLOAT32, DType.FLOAT16)
    for m, k, n, sparsity in (
        (2048, 1536, 192, 0.8),
        (1536, 3072, 96, 0.95),
        (6144, 1536, 48, 0.9),
        (3072, 3072, 768, 0.7),
        (1024, 1280, 1536, 0.9),
        (12288, 3072, 24, 0.85),
        (768, 6144, 384, 0.98),
        (5120, 5120, 160, 0.6),
    )
]

Row = Mapping[str, Any]


def candidates(workload: Known, device: Device) -> dict[Config, str]:
    """Returns the configs to measure, with the reason why each was picked."""
    problem, features = workload.problem, workload.features
    families = families_of(problem.operator)
    heuristics = [f.heuristic(problem, features, device) for f in families]
    heuristics = [
        c for f, c in zip(families, heuristics, strict=True) if f.suits(problem, features, c, device)
    ]
    space = Space.build(families, problem, device, features=features, first=heuristics).candidates
    times = Estimate(workload, device, seeds(), cost_model()).times(space)
    order = sorted(range(len(space)), key=times.__getitem__)
    found = {space[i]: "predicted" for i in order[:FIRST]}
    drawn = random.Random(0).sample(space, min(RANDOM, len(space)))
    return {**dict.fromkeys(drawn, "random"), **dict.fromkeys(heuristics, "heuristic"), **found}


def measured(workload: Workload, dtype: DType, device: Device, same: Sequence[Row]) -> list[dict[str, Any]]:
    """The variants of a workload with the model's and the measured times; those that fail are left out."""
    matrix, problem = workload.matrix(), workload.problem(dtype)
    known = Known.of(problem, matrix)
    modelled = described(device)
    chosen = (
        {read_config(v["family"], v["config"]): v["picked"] for v in same}
        if same
        else candidates(known, modelled)
    )
    chosen = {c: picked for c, picked in chosen.items() if c.is_known}
    bench = SideBySide(matrix, problem, device)
    try:
        bench.compile(chosen)
        calls = {}
        for config in chosen:
            try:
                calls[str(config)] = bench.variant(config.family_name, config.to_dict())
            except SparsegenError as error:
                click.echo(f"  {config}: {error}", err=True)
        times = bench.times(calls, rounds=ROUNDS, samples=SAMPLES)
    finally:
        bench.close()
    return [
        {
            "family": config.family_name,
            "config": config.to_dict(),
            "picked": picked,
            "model_us": round(cost_model().predicted_us(known, config, modelled), 3),
            "us": round(times[str(config)], 3),
        }
        for config, picked in chosen.items()
        if str(config) in times
    ]


def quality(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Returns for each order of the variants the geometric means of the first one's and of the first eight's best time
    over the best measured one's, over all workloads with two variants or more.
    """
    found: dict[str, tuple[float, float]] = {}
    for name in ("model_us", "scaled_us"):
        first, of_eight = [], []
        for row in rows:
            listed = [v for v in row["variants"] if name in v]
            if len(listed) < 2:
                continue
            one, eight = first_and_best_of_eight([v["us"] for v in listed], [v[name] for v in listed])
            first.append(one)
            of_eight.append(eight)
        if first:
            found[name] = geometric_mean(first), geometric_mean(of_eight)
    return found


def scaled(there: Sequence[Row], here: Sequence[Row]) -> list[dict[str, Any]]:
    """``here`` with ``scaled_us``: measured there, times the ratio of the model's times here and there."""
    known = {(row["workload"], _key(v)): v["us"] / v["model_us"] for row in there for v in row["variants"]}

    def with_scaled(row: Row) -> dict[str, Any]:
        ratios = [(v, known.get((row["workload"], _key(v)))) for v in row["variants"]]
        variants = [v if r is None else {**v, "scaled_us": v["model_us"] * r} for v, r in ratios]
        return {**row, "variants": variants}

    return [with_scaled(row) for row in here]


def _key(variant: Row) -> str:
    return json.dumps([variant["family"], variant["config"]], sort_keys=True)


def plot(documents: Sequence[Row], file: Path) -> None:
    """Predicted against measured times, a panel for each device and way; an SVG has its points as an image."""
    from matplotlib.figure import Figure

    panels = [
        (document["device"], name, words)
        for document in documents
        for name, words in (("model_us", "cost model"), ("scaled_us", "scaled from the other device"))
        if any(name in v for row in document["rows"] for v in row["variants"])
    ]
    by_device = {document["device"]: document["rows"] for document in documents}
    figure = Figure(figsize=(5 * len(panels), 5), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)
    for axis, (device, name, words) in zip(axes[0], panels, strict=True):
        variants = [v for row in by_device[device] for v in row["variants"] if name in v]
        for picked in ("random", "heuristic", "predicted"):
            mine = [v for v in variants if v["picked"] == picked]
            points = [v["us"] for v in mine], [v[name] for v in mine]
            axis.scatter(*points, s=10, linewidths=0, label=picked, zorder=BELOW_LINES)
        axis.set_rasterization_zorder(BELOW_LINES + 1)
        ends = [min(v["us"] for v in variants), max(v["us"] for v in variants)]
        axis.plot(ends, ends, linewidth=0.8, color="grey")
        axis.set(
            xscale="log",
            yscale="log",
            xlabel="measured, µs",
            ylabel="predicted, µs",
            title=f"{device}\n{words}",
        )
        axis.minorticks_off()
    axes[0][0].legend()
    pictures.save(figure, file, dpi=96)


@click.group()
def main() -> None:
    """See the module's text."""


@main.command()
@click.option(
    "--same", type=click.Path(path_type=Path, exists=True), help="Another device's file: its variants."
)
def record(same: Path | None) -> None:
    """Measure on this GPU; rows that the result file holds stay."""
    device = backends.find_device()
    other = {row["workload"]: row for row in read_document(same)["rows"]} if same else {}
    rows = known_rows(device, NAME, "workload")
    for workload, dtype in WORKLOADS:
        name = f"{workload.name} {dtype}"
        if name not in rows:
            rows[name] = {
                "workload": name,
                "variants": measured(workload, dtype, device, other.get(name, {}).get("variants", ())),
            }
            click.echo(f"{name}: {len(rows[name]['variants'])} variants")
            write_results(device, NAME, list(rows.values()), model=cost_model().digest)


def evidence_of(file: Path, device: Device, usual_registers: int) -> dict[str, list[fitting.Known]]:
    """Returns the measurements of a result file, by workload, as the model is fitted to them, without compiled code."""
    rows = {row["workload"]: row["variants"] for row in read_document(file)["rows"]}
    found = {}
    for workload, dtype in WORKLOADS:
        name = f"{workload.name} {dtype}"
        if name not in rows:
            continue
        where = Known.of(workload.problem(dtype), workload.matrix())
        configs = [(read_config(v["family"], v["config"]), v["us"]) for v in rows[name]]
        measured = ((where, device, config, us, None) for config, us in configs if config.is_known)
        found[name] = fitting.known(measured, usual_registers)
    return found


def described_as(name: str) -> Device:
    """The device of a result file, as `tune --for` has it."""
    return find_target("h200" if "H200" in name else "h100").device


def first_and_best_of_eight(measured: Sequence[float], predicted: Sequence[float]) -> tuple[float, float]:
    """The times of the first predicted one and of the best of eight, over the best measured one's.

    Equal predictions are taken in the order that is worst.
    """
    order = sorted(range(len(measured)), key=lambda i: (predicted[i], -measured[i]))
    best = min(measured)
    return measured[order[0]] / best, min(measured[i] for i in order[:FIRST]) / best


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Draw here (.svg, .png).")
def report(files: tuple[Path, ...], output: Path | None) -> None:
    """Print the table of one or two result files, and draw."""
    if len(files) > 2:
        raise click.UsageError("give one file, or two")
    documents = [read_document(file) for file in files]
    if len(documents) == 2:
        documents[1]["rows"] = scaled(documents[0]["rows"], documents[1]["rows"])
    click.echo("| device | ordered by | workloads | first | best of 8 |\n|---|---|---|---|---|")
    for document in documents:
        for name, (first, of_eight) in quality(document["rows"]).items():
            words = "cost model" if name == "model_us" else f"{documents[0]['device']}, scaled"
            click.echo(
                f"| {document['device']} | {words} | {len(document['rows'])} | {first:.3f} | {of_eight:.3f} |"
            )
    if output is not None:
        plot(documents, output)


if __name__ == "__main__":
    main()
