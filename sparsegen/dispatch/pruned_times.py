"""Times of products with pruned layers, as far as measured: on the same pattern or on one that is near."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import How
from sparsegen.dispatch.dense_or_sparse import Faster, Source
from sparsegen.errors import NoVariantError
from sparsegen.kernels.base import Device
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, Layout, Problem
from sparsegen.system.json_object import Json
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.records import Workload

NEAR = 1.0  # octaves in feature space, see `sparsegen.dispatch.places.position`


class KnownLayer(Protocol):
    """A pruned layer, known by name and pattern only."""

    @property
    def name(self) -> str: ...

    @property
    def features(self) -> Features: ...

    @property
    def fingerprint(self) -> str: ...


class TimeSource(StrEnum):
    """The source of a time."""

    EXACT = "exact"  # measured on this very pattern
    NEAR = "near"  # scaled from a measured pattern at most `NEAR` octaves away
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class LayerTime:
    """The time of one product with a pruned layer.

    Attributes:
        sparse_us, dense_us: microseconds of the best variant and of a dense cuBLAS product; None where nothing is
            known.
        distance: octaves to the measured workload; None where nothing is known.
        family: family of the best variant.
        dense_source: source of the dense time.
        faster: the faster one, as far as known or estimated, even if too little was measured to name times.
    """

    layer: str
    source: TimeSource
    sparse_us: float | None = None
    dense_us: float | None = None
    distance: float | None = None
    family: str | None = None
    dense_source: Source | None = None
    faster: Faster = Faster.OPEN

    @property
    def fastest_us(self) -> float | None:
        """The time of what runs by default, dense or sparse; None where the sparse one is not known."""
        if self.sparse_us is None or self.dense_us is None:
            return self.sparse_us
        return min(self.sparse_us, self.dense_us)

    @property
    def speedup(self) -> float | None:
        """Speedup over the dense product, below 1 if that is faster; None unless both times are known."""
        if self.sparse_us is None or self.dense_us is None:
            return None
        return self.dense_us / max(self.sparse_us, 1e-9)

    def to_dict(self) -> Json:
        """JSON values."""
        return {
            "layer": self.layer,
            "source": self.source,
            "sparse_us": self.sparse_us,
            "dense_us": self.dense_us,
            "distance": self.distance,
            "family": self.family,
            "dense_source": self.dense_source,
            "faster": self.faster,
        }


@dataclass(frozen=True, slots=True)
class PrunedTimes:
    """The times of all layers of a report, for products with n columns."""

    n: int
    dtype: DType
    layout: Layout
    device: Device
    layers: tuple[LayerTime, ...]

    @property
    def sparse_us(self) -> float | None:
        """The sum over the layers; None unless all are known."""
        return _sum([t.sparse_us for t in self.layers])

    @property
    def dense_us(self) -> float | None:
        return _sum([t.dense_us for t in self.layers])

    @property
    def fastest_us(self) -> float | None:
        """The sum over the layers, each dense or sparse as it is faster; None unless all are known."""
        return _sum([t.fastest_us for t in self.layers])

    @property
    def speedup(self) -> float | None:
        """The speedup of all layers together over dense ones; None unless all times are known."""
        sparse, dense = self.sparse_us, self.dense_us
        return None if sparse is None or dense is None else dense / max(sparse, 1e-9)

    @property
    def known(self) -> int:
        """Layers with a time."""
        return sum(t.sparse_us is not None for t in self.layers)

    def to_dict(self) -> Json:
        """JSON values."""
        return {
            "n": self.n,
            "dtype": self.dtype,
            "layout": self.layout,
            "device": self.device.key,
            "sparse_us": self.sparse_us,
            "dense_us": self.dense_us,
            "fastest_us": self.fastest_us,
            "known_layers": self.known,
            "layers": [t.to_dict() for t in self.layers],
        }


def layer_time(
    layer: KnownLayer,
    problem: Problem,
    device: Device,
    database: Layer,
) -> LayerTime:
    """Returns the time that dispatch knows for a product with a layer, if a measurement is near."""
    try:
        choice = choose(Workload(problem, layer.fingerprint, layer.features), device, database)
    except NoVariantError:
        return LayerTime(layer.name, TimeSource.NOT_MEASURED)
    distance = (
        0.0 if choice.how is How.EXACT else choice.neighbours[0].distance if choice.neighbours else None
    )
    if choice.expected_us is None or distance is None or distance > NEAR:
        return LayerTime(layer.name, TimeSource.NOT_MEASURED, faster=choice.faster)
    source = TimeSource.EXACT if choice.how is How.EXACT else TimeSource.NEAR
    return LayerTime(
        layer.name,
        source,
        choice.expected_us,
        choice.dense_us,
        distance,
        choice.family.name,
        None if choice.dense is None else choice.dense.source,
        choice.faster,
    )


def _sum(times: Sequence[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return sum(known) if known and len(known) == len(times) else None
