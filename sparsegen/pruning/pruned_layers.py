"""Layers of a model's weights that are pruned already, and their features for dispatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sparsegen.errors import PruningError, one_line
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import as_csr
from sparsegen.pruning.selection import Copied, select
from sparsegen.pruning.weights import Weights, WeightSpec, read_values
from sparsegen.system.json_object import Json

LEAST_SPARSITY = 0.5
_LISTED = 10

Reading = Callable[
    [str, int, int], None
]  # told before a tensor is read: its name, its number from 1, of how many


def unheard(name: str, number: int, tensors: int) -> None:
    """Ignores progress."""


@dataclass(frozen=True, slots=True)
class PrunedLayer:
    """A matrix of weights with enough zeros.

    Attributes:
        spec: the tensor, m × k: out × in features.
        features, fingerprint: properties of its nonzeros, as dispatch knows them.
    """

    spec: WeightSpec
    features: Features
    fingerprint: str

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def sparsity(self) -> float:
        """Zeros over weights."""
        return 1 - self.features.density

    def to_dict(self) -> Json:
        """JSON values."""
        return {
            "name": self.name,
            "shape": list(self.spec.shape),
            "dtype": self.spec.dtype,
            "nonzeros": self.features.nnz,
            "sparsity": self.sparsity,
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True)
class PrunedLayers:
    """The pruned layers of some weights, and why the other tensors are none; both in the order of the weights."""

    layers: tuple[PrunedLayer, ...]
    others: tuple[Copied, ...]


def pruned_layers(
    weights: Weights,
    *,
    tensors: Sequence[str] = (),
    exclude: Sequence[str] = (),
    least_sparsity: float = LEAST_SPARSITY,
    reading: Reading = unheard,
) -> PrunedLayers:
    """Finds matrices of floating-point numbers whose share of zeros is at least ``least_sparsity``, but not 1.

    One tensor is in memory at a time.

    Args:
        tensors, exclude: globs of the names to look at (default all) and to leave.
        least_sparsity: number from 0 to 1.

    Raises:
        PruningError: no layer is like that, a share out of range, or a glob that matches nothing.
        MatrixError: a tensor that cannot be read.
    """
    if not 0 <= least_sparsity <= 1:
        raise PruningError(f"a sparsity lies in [0, 1], got {least_sparsity}")
    selection = select(weights, tensors, exclude)
    found: dict[str, PrunedLayer] = {}
    reasons = {other.name: other.reason for other in selection.copied}
    for number, spec in enumerate(selection.pruned, 1):
        if len(spec.shape) != 2:
            reasons[spec.name] = f"{len(spec.shape)}-D"
            continue
        reading(spec.name, number, len(selection.pruned))
        values = read_values(weights, spec)
        nonzeros = int(np.count_nonzero(values))
        sparsity = 1 - nonzeros / values.size if values.size else 0.0
        if not nonzeros:
            reasons[spec.name] = "no weight is left"
        elif sparsity < least_sparsity:
            reasons[spec.name] = f"{sparsity:.1%} zeros"
        elif not np.isfinite(values).all():
            reasons[spec.name] = "NaN or infinity among its weights"
        else:
            matrix = as_csr(values, source=f"{weights.source}, tensor {spec.name!r}")
            found[spec.name] = PrunedLayer(spec, Features.of(matrix), matrix.fingerprint())
    others = [
        Copied(spec.name, spec.shape, spec.dtype, reasons[spec.name])
        for spec in weights.specs
        if spec.name not in found
    ]
    if not found:
        listed = ", ".join(f"{one_line(other.name)} ({other.reason})" for other in others[:_LISTED])
        raise PruningError(
            f"{weights.source} has no pruned layer, a matrix with at least {least_sparsity:.0%} zeros: {listed}; "
            "prune it first, or ask for fewer zeros"
        )
    return PrunedLayers(tuple(found.values()), tuple(others))


def matrix_of(weights: Weights, layer: PrunedLayer) -> CsrMatrix:
    """A pruned layer's weights, read again."""
    return as_csr(read_values(weights, layer.spec), source=f"{weights.source}, tensor {layer.name!r}")
