"""Variation of row lengths in the Deep Learning Matrix Collection, for the suite `dlmc-like`.

    python -m benchmarks.fit_dlmc --data DLMC

Measures every matrix of ``DLMC/<model>/<way of pruning>/<sparsity>/`` and writes the fits of
`sparsegen.bench.suites.listed`, a few numbers for each model and way of pruning. Needs no GPU.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import scipy.stats

from sparsegen.bench.suites import listed
from sparsegen.bench.suites.collection import find_matrices
from sparsegen.bench.suites.listed import RowVariation, independent_variance
from sparsegen.matrix.features import Features
from sparsegen.matrix.load import load_matrix

SOURCE = (
    "{matrices} matrices of the Deep Learning Matrix Collection (Gale et al., Sparse GPU Kernels for Deep Learning, "
    "2020), measured by python -m benchmarks.fit_dlmc; squared CoV of row lengths = "
    "(1 - density) / (density * columns) + (scale * density^-power)^2"
)


@dataclass(frozen=True)
class Measured:
    """One matrix: its columns, density, and the CoV of its row lengths."""

    columns: int
    density: float
    row_cov: float

    @property
    def added(self) -> float:
        """Squared CoV above that of independent elements, at least 0."""
        return max(self.row_cov**2 - independent_variance(self.columns, self.density), 0.0)


def fit(matrices: Sequence[Measured]) -> RowVariation:
    """Theil-Sen's line through the logarithms of density and added CoV: outliers have no say.

    Where the median matrix varies by at most a twentieth more (in squared CoV) than independent elements
    would, nothing is added.
    """
    excess = np.array([m.added / independent_variance(m.columns, m.density) for m in matrices])
    scale = power = 0.0
    if np.median(excess) > 0.05:
        used = [m for m in matrices if m.added > 0]
        line = scipy.stats.theilslopes(
            [math.log(m.added) / 2 for m in used], [math.log(m.density) for m in used]
        )
        scale, power = math.exp(line.intercept), -float(line.slope)
    rough = RowVariation(round(scale, 4), round(power, 4), 1.0, len(matrices))
    covs = [(m.row_cov, rough.row_cov(m.columns, m.density)) for m in matrices]
    off = [abs(math.log(cov / fitted)) if cov else math.inf for cov, fitted in covs]
    return RowVariation(rough.scale, rough.power, round(math.exp(float(np.median(off))), 3), len(matrices))


def measure(data: Path) -> dict[tuple[str, str], list[Measured]]:
    """The collection's matrices by (model, way of pruning), without full and empty ones: they have no variation."""
    groups: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for path in find_matrices(data):
        model, method = path.relative_to(data).parts[:2]
        features = Features.of(load_matrix(path))
        if 0 < features.density < 1:
            groups[model, method].append(Measured(features.k, features.density, features.row_cov))
    return groups


@click.command()
@click.option("--data", required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path(listed.__file__).with_name(listed.FILE),
    help="default: the file of the package",
)
def main(data: Path, output: Path) -> None:
    groups = measure(data)
    fits: dict[str, dict[str, object]] = defaultdict(dict)
    for (model, method), matrices in sorted(groups.items()):
        result = fit(matrices)
        fits[model][method] = asdict(result)
        click.echo(f"{model:12} {method:28} {result}")
    source = SOURCE.format(matrices=sum(map(len, groups.values())))
    output.write_text(json.dumps({"source": source, "fits": fits}, indent=1) + "\n")


if __name__ == "__main__":
    main()
