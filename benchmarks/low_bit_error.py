"""Error of rounding to 8- and 4-bit codes: in pruned weights, and in a layer's results for inputs that it did not see.

    python -m benchmarks.low_bit_error
    python -m benchmarks.low_bit_error --weights layers.npz --inputs inputs.npz

Layers are pruned by magnitude to 50 and 70 % zeros. Each format rounds to nearest, and in GPTQ's order with the first
half of the inputs as its calibration; results are compared for the other half. All errors are norms over norms in
float64. ``--weights`` are matrices of out × in features by name (.npz, .npy or .safetensors), ``--inputs`` an .npz file
of samples × in features under their names. Without them, layers and inputs are drawn: weights with heavy tails, inputs
of few dimensions of which some are much larger than others. No GPU is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

import sparsegen
from benchmarks.study import Rows, write_results
from sparsegen.backends import find_device
from sparsegen.errors import PruningError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import DType, Quantization, ScaleGroup, ValueType
from sparsegen.pruning.files.open import open_weights
from sparsegen.pruning.pruned_layers import matrix_of, pruned_layers
from sparsegen.system.numpy_types import Array

SPARSITIES = (0.5, 0.7)
FORMATS = (
    Quantization(ValueType.E4M3, ScaleGroup.ROW),
    Quantization(ValueType.E4M3, ScaleGroup.OF_128),
    Quantization(ValueType.INT8, ScaleGroup.ROW),
    Quantization(ValueType.INT8, ScaleGroup.OF_128),
    Quantization(ValueType.INT4, ScaleGroup.ROW),
    Quantization(ValueType.INT4, ScaleGroup.OF_128),
    Quantization(ValueType.INT4, ScaleGroup.OF_128, symmetric=False),
    Quantization(ValueType.INT4, ScaleGroup.OF_64),
    Quantization(ValueType.INT4, ScaleGroup.OF_32),
    Quantization(ValueType.INT4, ScaleGroup.OF_32, symmetric=False),
)
DRAWN = ((384, 256), (256, 512))
SAMPLES, DIMENSIONS = 1024, 64


def drawn() -> tuple[dict[str, Array], dict[str, Array]]:
    """Layers and their inputs by name."""
    rng = np.random.default_rng(0)
    layers, inputs = {}, {}
    for number, (m, k) in enumerate(DRAWN):
        layers[f"drawn{number}"] = rng.standard_t(5, (m, k)).astype(np.float32)
        mixing = rng.standard_normal((DIMENSIONS, k)) * np.geomspace(1, 0.05, k)[rng.permutation(k)]
        noise = 0.05 * rng.standard_normal((SAMPLES, k))
        inputs[f"drawn{number}"] = rng.standard_normal((SAMPLES, DIMENSIONS)) @ mixing + noise
    return layers, inputs


def from_files(weights: Path, inputs: Path) -> tuple[dict[str, Array], dict[str, Array]]:
    """Layers and their inputs by name; layers without inputs are left out.

    Raises:
        PruningError: no layer has inputs.
    """
    opened = open_weights(weights, None)
    with np.load(inputs, allow_pickle=False) as file:
        given = {name: np.asarray(file[name], dtype=np.float64) for name in file}
    found = pruned_layers(opened, least_sparsity=0.0).layers
    layers = {la.name: matrix_of(opened, la).to_dense() for la in found if la.name in given}
    if not layers:
        raise PruningError(f"no layer of {weights.name} has inputs in {inputs.name}")
    return layers, given


def relative(changed: Array, exact: Array) -> float:
    """Norm of a difference over a norm."""
    return float(np.linalg.norm(changed - exact) / np.linalg.norm(exact))


def rows_of_layer(name: str, weight: CsrMatrix, inputs: Array) -> Rows:
    """A row for each format."""
    half = inputs.shape[0] // 2
    calibration, unseen = inputs[:half], inputs[half:].astype(np.float64)
    exact = unseen @ weight.to_dense().T.astype(np.float64)
    rows: Rows = []
    for rounding in FORMATS:
        row: dict[str, Any] = {
            "layer": name,
            "m": weight.shape[0],
            "k": weight.shape[1],
            "sparsity": round(1 - weight.nnz / (weight.shape[0] * weight.shape[1]), 3),
            "value_type": rounding.value_type.value,
            "group": rounding.group.value,
            "symmetric": rounding.symmetric,
        }
        for way, given in (("nearest", None), ("calibrated", calibration)):
            made = rounding.of(weight, DType.FLOAT16, given)
            results = unseen @ made.dequantized().to_dense().T.astype(np.float64)
            row[f"weights_{way}"] = made.rounding_error(weight)
            row[f"results_{way}"] = relative(results, exact)
        rows.append(row)
    return rows


def measured(layers: Mapping[str, Array], inputs: Mapping[str, Array]) -> Rows:
    """The rows of all layers and sparsities."""
    rows: Rows = []
    for sparsity in SPARSITIES:
        for name, weight in layers.items():
            pruned = sparsegen.prune({name: weight}, sparsity=sparsity).weights[name]
            rows += rows_of_layer(name, sparsegen.as_csr(pruned), inputs[name])
    return rows


def table(rows: Rows) -> str:
    """Geometric means over the layers, in Markdown."""
    keys = ("weights_nearest", "results_nearest", "results_calibrated")
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault((row["value_type"], row["group"], row["symmetric"]), []).append(row)
    lines = [
        "| codes | scales | zeros | weights | results, to nearest | results, GPTQ's order |",
        "|---|---|---|---:|---:|---:|",
    ]
    for sparsity in SPARSITIES:
        for (kind, group, symmetric), of_format in groups.items():
            some = [row for row in of_format if abs(row["sparsity"] - sparsity) < 0.1]
            means = [float(np.exp(np.mean(np.log([row[key] for row in some])))) for key in keys]
            shown = " | ".join(f"{mean:.2g}" for mean in means)
            points = "" if symmetric else ", zero points"
            lines.append(f"| `{kind}`{points} | {group} | {sparsity:.0%} | {shown} |")
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--weights", type=click.Path(path_type=Path, exists=True), help="Matrices by name.")
@click.option("--inputs", type=click.Path(path_type=Path, exists=True), help="Samples under their names.")
def main(weights: Path | None, inputs: Path | None) -> None:
    if (weights is None) != (inputs is None):
        raise click.UsageError("--weights and --inputs go together")
    layers, given = drawn() if weights is None or inputs is None else from_files(weights, inputs)
    rows = measured(layers, given)
    click.echo(table(rows))
    click.echo(f"written to {write_results(find_device('emulator'), 'low_bit_error', rows)}")


if __name__ == "__main__":
    main()
