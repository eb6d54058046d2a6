"""A request worked out for some weights: first where the cut is, then each layer's mask, in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from sparsegen.errors import PruningError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import as_csr
from sparsegen.pruning.cut import Cut, find_cuts, weights_kept
from sparsegen.pruning.groups import Groups, RankedPattern, Scope, energy
from sparsegen.pruning.patterns import NM, Unstructured
from sparsegen.pruning.report import LayerReport, PruneReport
from sparsegen.pruning.request import PruneRequest
from sparsegen.pruning.score import importance
from sparsegen.pruning.selection import Selection
from sparsegen.pruning.torch_weights import TorchWeights
from sparsegen.pruning.weights import Weights, WeightSpec, read_matrix
from sparsegen.system.numpy_types import Array, NumpyType


class Stage(StrEnum):
    RANKING = "ranking"  # reading layers to find one cut through all of them
    PRUNING = "pruning"  # making each layer's mask


@dataclass(frozen=True, slots=True)
class Step:
    """A layer that is about to be read, ``number`` (from 1) of ``layers``."""

    stage: Stage
    layer: str
    number: int
    layers: int


Progress = Callable[[Step], None]


def silent(step: Step) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class PrunedLayer:
    """A layer after pruning.

    Attributes:
        mask: m × k booleans, the weights that stay: an array, or a tensor where its weights lie.
        matrix: the pruned m × k matrix.
    """

    mask: Any
    matrix: CsrMatrix


class Plan:
    """Masks of the layers, worked out when they are asked for; one layer is in memory at a time.

    For a global scope the constructor goes through the layers: once for the patterns with groups of many weights,
    whose scores it keeps, and several times for single weights, whose scores are read again instead.

    Attributes:
        layers: layers to prune, by name.
    """

    def __init__(
        self,
        weights: Weights,
        selection: Selection,
        request: PruneRequest,
        progress: Progress = silent,
        gradients: Weights | None = None,
    ) -> None:
        self._weights, self._selection, self._request = weights, selection, request
        self._gradients = _checked(gradients, weights, selection, request)
        self.layers = {spec.name: spec for spec in selection.pruned}
        self._pattern = request.pattern
        self._progress = progress
        self._reports: dict[str, LayerReport] = {}
        self._cuts: Mapping[str, Cut] = {}
        if request.scope is Scope.GLOBAL and not isinstance(self._pattern, NM):
            self._cuts = self._global_cuts(self._pattern)

    def prune(self, name: str) -> PrunedLayer:
        """The layer of this name.

        Raises:
            MatrixError: NaN or infinity, or a tensor that cannot be read.
        """
        spec = self.layers[name]
        self._progress(Step(Stage.PRUNING, name, len(self._reports) + 1, len(self.layers)))
        return self._pruned_there(spec) or self._pruned_here(spec)

    def _pruned_there(self, spec: WeightSpec) -> PrunedLayer | None:
        """Pruned where its tensor lies; None where the host is to do it."""
        is_unstructured = isinstance(self._pattern, Unstructured)
        if not (isinstance(self._weights, TorchWeights) and is_unstructured) or self._gradients:
            return None
        keep = weights_kept(self._request.sparsity, spec.size)
        found = self._weights.pruned_there(spec, keep, self._cuts.get(spec.name))
        if found is None:
            return None
        matrix = as_csr(found.pruned, source=spec.name)
        self._report(spec, found.kept, matrix, found.energy, found.energy_before)
        return PrunedLayer(found.mask, matrix)

    def _pruned_here(self, spec: WeightSpec) -> PrunedLayer:
        values = read_matrix(self._weights, spec)
        ranked = self._importance(spec, values)
        mask = self._mask(spec, ranked)
        room = ranked if ranked.dtype == values.dtype else None  # memory that is at hand
        pruned = np.multiply(values, mask, out=room)
        matrix = as_csr(pruned, source=spec.name)
        self._report(spec, int(np.count_nonzero(mask)), matrix, energy(pruned), energy(values))
        return PrunedLayer(mask, matrix)

    def _report(self, spec: WeightSpec, kept: int, matrix: CsrMatrix, after: float, before: float) -> None:
        self._reports[spec.name] = LayerReport(
            spec.name,
            spec.shape,
            spec.dtype,
            kept,
            Features.of(matrix),
            matrix.fingerprint(),
            energy=after,
            energy_before=before,
        )

    def report(self) -> PruneReport:
        """The report of the layers pruned so far."""
        layers = tuple(self._reports[name] for name in self.layers if name in self._reports)
        return PruneReport(self._weights.source, self._request, layers, self._selection.copied)

    def _importance(self, spec: WeightSpec, values: Array) -> Array:
        gradients = None if self._gradients is None else read_matrix(self._gradients, spec)
        return importance(values, gradients, spec.name)

    def _mask(self, spec: WeightSpec, magnitudes: Array) -> Array:
        if isinstance(self._pattern, NM):
            return self._pattern.mask(magnitudes)
        groups = self._pattern.groups(magnitudes)
        cut = self._cuts.get(spec.name)
        if cut is None:
            keep = weights_kept(self._request.sparsity, spec.size)
            cut = find_cuts(lambda: [(spec.name, groups)], keep, groups.scores.dtype)[spec.name]
        return self._pattern.mask(magnitudes, cut.kept(groups))

    def _global_cuts(self, pattern: RankedPattern) -> dict[str, Cut]:
        names = sorted(self.layers)
        known: dict[str, Groups] = {}

        def scored() -> Iterator[tuple[str, Groups]]:
            for number, name in enumerate(names, start=1):
                groups = known.get(name)
                if groups is None:
                    self._progress(Step(Stage.RANKING, name, number, len(names)))
                    spec = self.layers[name]
                    groups = pattern.groups(self._importance(spec, read_matrix(self._weights, spec)))
                    if not pattern.elementwise or self._gradients:
                        known[name] = groups
                yield name, groups

        keep = weights_kept(self._request.sparsity, sum(spec.size for spec in self.layers.values()))
        return find_cuts(scored, keep, self._score_type(pattern))

    def _score_type(self, pattern: RankedPattern) -> NumpyType:
        """Common type of all layers' scores."""
        if not pattern.elementwise or self._gradients:
            return np.dtype(np.float64)
        kinds = [spec.value_type for spec in self.layers.values() if spec.value_type is not None]
        return np.result_type(*kinds)


def _checked(
    gradients: Weights | None, weights: Weights, selection: Selection, request: PruneRequest
) -> Weights | None:
    """The gradients, of the shapes of all that is pruned.

    Raises:
        PruningError: there are none where the score needs them, or some where it does not, or of other tensors.
    """
    if gradients is None:
        if request.score.needs_gradients:
            raise PruningError(
                f"the score {request.score} needs gradients of the loss by the weights: give gradients"
            )
        return None
    if not request.score.needs_gradients:
        raise PruningError(
            f"the score {request.score} needs no gradients: leave them out, or score by taylor"
        )
    found = {spec.name: spec for spec in gradients.specs}
    for spec in selection.pruned:
        of_it = found.get(spec.name)
        if of_it is None or of_it.shape != spec.shape or of_it.value_type is None:
            there = "none" if of_it is None else f"{of_it.dtype} of {of_it.shape}"
            raise PruningError(f"{spec.name}: expected a gradient of its shape {spec.shape}, got {there}")
    return gradients
