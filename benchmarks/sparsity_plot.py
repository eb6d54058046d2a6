"""Time over sparsity of masked convolutions, beside what copies whole images: a picture from the raw results.

    python -m benchmarks.sparsity_plot docs/time-over-sparsity.svg

On the left the suite `convolution` (``bench_convolution.json.xz``) as parts of cuDNN's time, on the right the
configuration of Shah and Nair from host to host (``host_convolution.json.xz``): read where the images lie, and copied
in chunks on several streams as in their report, whose time did not fall with sparsity.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from matplotlib.figure import Figure

from benchmarks import pictures, study
from benchmarks.convolution_tables import CHANNELS, SPARSITIES, Key, Rows, dense, ours, rows_of
from benchmarks.make_tables import HERE, RESULTS

HOST = HERE / "results" / "nvidia-h200-sm90"  # whose bus was measured
COLOURS = {64: "#0072b2", 128: "#d55e00", 256: "#009e73"}


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def main(file: Path) -> None:
    figure = Figure(figsize=(8.4, 3.5), layout="constrained")
    shapes, host = figure.subplots(1, 2)
    draw_shapes(shapes, rows_of(RESULTS))
    draw_host(host, study.rows_of(HOST / "host_convolution.json.xz"))
    pictures.save(figure, file)


def draw_shapes(axes: Any, rows: Rows) -> None:
    """8 images of 512², random blocks and blobs."""
    for channels in CHANNELS:
        for blobs, line in ((False, "-"), (True, ":")):
            found = []
            for sparsity in SPARSITIES:
                row = rows.get(Key(channels, sparsity=sparsity, blobs=blobs and sparsity > 0))
                mine, theirs = ours(row), dense(row)
                if mine and theirs:
                    found.append((sparsity, mine / theirs))
            label = f"{channels} channels{', blobs' if blobs else ''}"
            axes.plot(*zip(*found, strict=True), line, color=COLOURS[channels], marker="o", ms=3, label=label)
    axes.axhline(1.0, color="0.5", linewidth=1)
    axes.text(2, 1.02, "cuDNN, dense", color="0.35", fontsize=8)
    axes.plot((0, 100), (1, 0), color="0.8", linewidth=1, zorder=0)
    axes.set(title="8 images of 512², on the device", xlabel="dead blocks, %", ylabel="time over cuDNN's")
    axes.set_ylim(0, 1.15)
    axes.legend(fontsize=7)


def draw_host(axes: Any, rows: list[dict[str, float]]) -> None:
    """256 images of 512² with 3 channels, from host to host."""
    copied = [name for name in rows[0] if name.startswith("copied_")]
    series = (
        ("read where they lie", "#0072b2", [r["in_place_ms"] for r in rows]),
        ("copied in chunks (the report's way)", "#d55e00", [min(r[c] for c in copied) for r in rows]),
        ("cuDNN, copied in chunks", "0.5", [r["cudnn_copied_ms"] for r in rows]),
    )
    for label, colour, values in series:
        axes.plot([100 * r["sparsity"] for r in rows], values, color=colour, marker="o", ms=3, label=label)
    axes.set(title="the report's configuration, host to host", xlabel="dead blocks, %", ylabel="milliseconds")
    axes.set_ylim(0)
    axes.legend(fontsize=7)


if __name__ == "__main__":
    main()
