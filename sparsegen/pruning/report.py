"""Report of a pruning, for each layer and for all of them."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.matrix.features import Features
from sparsegen.pruning.request import PruneRequest
from sparsegen.pruning.selection import Copied
from sparsegen.system.json_object import Json


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One pruned tensor.

    Attributes:
        shape, dtype: stored shape and type.
        kept: weights that the pattern keeps. Those of them that were zero before are no nonzeros.
        features: features of the pruned m × k matrix: nonzeros, row lengths, block fill.
        fingerprint: fingerprint of its sparsity pattern, the key of the tuning database.
        energy, energy_before: sum of squares of the weights after and before.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kept: int
    features: Features
    fingerprint: str
    energy: float
    energy_before: float

    @property
    def size(self) -> int:
        return self.features.m * self.features.k

    @property
    def sparsity(self) -> float:
        """Zeros over weights; 0 where there are none."""
        return 1 - self.features.nnz / self.size if self.size else 0.0

    @property
    def kept_energy(self) -> float:
        """Sum of squares after over before; 1 where nothing was to be lost."""
        return self.energy / self.energy_before if self.energy_before else 1.0

    def to_dict(self) -> Json:
        """JSON values."""
        f = self.features
        return {
            "name": self.name,
            "shape": list(self.shape),
            "matrix_shape": [f.m, f.k],
            "dtype": self.dtype,
            "size": self.size,
            "kept": self.kept,
            "nonzeros": f.nnz,
            "sparsity": self.sparsity,
            "row_mean": f.row_mean,
            "row_max": f.row_max,
            "row_cov": f.row_cov,
            "block_fill": f.block_fill,
            "kept_energy": self.kept_energy,
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True)
class PruneReport:
    """Result of pruning some weights.

    Attributes:
        layers: the pruned layers, in the order of the weights.
        copied: the tensors that were copied unchanged.
    """

    source: str
    request: PruneRequest
    layers: tuple[LayerReport, ...]
    copied: tuple[Copied, ...]

    def __repr__(self) -> str:
        return f"<PruneReport: {self.summary}>"

    @property
    def summary(self) -> str:
        """The report in a line."""
        pattern = self.request.pattern.describe()
        return f"{len(self.layers)} pruned ({pattern}), {self.sparsity:.1%} of {self.size} weights are zeros"

    @property
    def size(self) -> int:
        """Weights of all pruned tensors."""
        return sum(layer.size for layer in self.layers)

    @property
    def kept(self) -> int:
        return sum(layer.kept for layer in self.layers)

    @property
    def nonzeros(self) -> int:
        return sum(layer.features.nnz for layer in self.layers)

    @property
    def sparsity(self) -> float:
        """Zeros over weights, of all pruned tensors."""
        return 1 - self.nonzeros / self.size if self.size else 0.0

    @property
    def kept_energy(self) -> float:
        before = sum(layer.energy_before for layer in self.layers)
        return sum(layer.energy for layer in self.layers) / before if before else 1.0

    @property
    def row_cov(self) -> float:
        """Mean of the layers' variation of row lengths, weighted by size."""
        return self._mean([layer.features.row_cov for layer in self.layers])

    @property
    def block_fill(self) -> float:
        """Mean of the layers' block fill, weighted by size."""
        return self._mean([layer.features.block_fill for layer in self.layers])

    @property
    def emptied(self) -> tuple[str, ...]:
        """Layers that lost all that was not zero: a network that needs them is broken."""
        return tuple(layer.name for layer in self.layers if layer.energy_before and not layer.kept)

    def _mean(self, values: list[float]) -> float:
        weighted = (layer.size * value for layer, value in zip(self.layers, values, strict=True))
        return sum(weighted) / self.size if self.size else 0.0

    def to_dict(self) -> Json:
        """JSON values."""
        return {
            "source": self.source,
            "pattern": self.request.pattern.describe(),
            "scope": self.request.scope,
            "score": self.request.score,
            "sparsity_asked": self.request.sparsity,
            "rounding": self.request.pattern.rule,
            "size": self.size,
            "kept": self.kept,
            "nonzeros": self.nonzeros,
            "sparsity": self.sparsity,
            "kept_energy": self.kept_energy,
            "row_cov": self.row_cov,
            "block_fill": self.block_fill,
            "emptied": list(self.emptied),
            "layers": [layer.to_dict() for layer in self.layers],
            "copied": [
                {"name": c.name, "shape": list(c.shape), "dtype": c.dtype, "reason": c.reason}
                for c in self.copied
            ],
        }
