"""Packing of a network: variant, plan of memory, segments."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from sparsegen import api, backends
from sparsegen.dispatch.chosen import Choice
from sparsegen.dispatch.named import named_choice
from sparsegen.errors import DeviceMemoryError, SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.kernels.layouts.limits import resident_clusters
from sparsegen.kernels.network.cluster_network import ClusterNetworkConfig
from sparsegen.kernels.network.fused_network import FusedNetworkConfig
from sparsegen.kernels.network.streamed_network import Sharing, StreamedNetworkConfig
from sparsegen.matrix.csr import MAX_INDEX, CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.networks.model.network import Network
from sparsegen.networks.packed.memory_plan import MemoryPlan, in_core, planned
from sparsegen.networks.packed.packed_network import (
    PackedNetwork,
    Segment,
    batch_bytes,
    segment_problem,
)
from sparsegen.operators import DType
from sparsegen.operators.base.overflow import require_held
from sparsegen.operators.sparse_network import (
    BIAS_COLUMNS,
    Activation,
    Readout,
    SparseNetworkProblem,
    largest,
)
from sparsegen.plan.variants import RenderedVariant
from sparsegen.system.integers import ceil_div, round_up
from sparsegen.system.quantities import size_text
from sparsegen.tuning_db.shared_layers import described

log = logging.getLogger(__name__)

PROBED_LAYERS = 4
LEAST_BATCH = 16  # inputs of the smallest tile that pays
USUAL_TILE = 64
TURNS = 4  # turns of a device: the inputs of one are sent while those before are computed
TURN_BYTES = 16 << 20  # bytes of a turn's bits, at least: less is sent in the time of a few launches
COMPILED_AHEAD = 1 << 24  # weights of which packing takes longer than compiling
EXPECTED_BYTES = 8  # bytes of memory for a weight, with which all layers together are sure to fit


@dataclass(frozen=True, slots=True)
class Wanted:
    """Request: a network, its inputs and its devices.

    Attributes:
        count: number of all inputs.
        devices: all devices; the variant is chosen for the first one.
        budget: bytes of memory on each; None for as many as needed.
    """

    network: Network
    dtype: DType
    activation: Activation
    readout: Readout
    count: int
    devices: Sequence[Device]
    budget: int | None
    db: str | Path | None
    family: str | None
    config: Mapping[str, object] | None

    @property
    def share(self) -> int:
        """Inputs of a device, where all do the same."""
        return ceil_div(self.count, len(self.devices))


def inputs_at_once(config: Config, device: Device) -> int:
    """Number of inputs that gives every multiprocessor one tile: batches of as many leave none idle."""
    match config:
        case StreamedNetworkConfig() | FusedNetworkConfig():
            return config.inputs * device.multiprocessors
        case ClusterNetworkConfig():
            return config.inputs * resident_clusters(device, config.cluster)
    return USUAL_TILE * device.multiprocessors


def granule(config: Config, device: Device) -> int:
    """Inputs that are computed together anyway: those of a batch where all multiprocessors share each layer, else a
    tile for every multiprocessor.
    """
    if isinstance(config, StreamedNetworkConfig) and config.sharing == Sharing.LAYERS:
        return config.inputs * config.sets * config.set_tiles
    return inputs_at_once(config, device)


def packed_network(wanted: Wanted, known: PackedNetwork | None = None) -> PackedNetwork:
    """Choose a variant, plan memory, and pack all layers on the host.

    Args:
        known: the same network packed before, perhaps for other batches; segments that are alike are taken from it.

    Raises:
        NoVariantError, ConfigError: no family computes this on these devices, or not the one that was named.
        DeviceMemoryError: the budget does not hold a layer and a tile of inputs.
        MatrixError: weights that become infinite in the dtype.
    """
    return _Packing(wanted, known).made()


class _Packing:
    def __init__(self, wanted: Wanted, known: PackedNetwork | None) -> None:
        self.wanted, self.network, self.known = wanted, wanted.network, known
        self.kind = (wanted.dtype, wanted.activation, wanted.readout)
        self.layers = range(len(self.network.layers))
        expected = EXPECTED_BYTES * self.network.edges
        is_whole = wanted.budget is None or expected <= wanted.budget
        is_whole = is_whole and wanted.family is None  # a named family needs no look-up
        is_whole = is_whole and len(self.layers) <= self._most_indexed
        self.probed = self.layers if is_whole else self.layers[:PROBED_LAYERS]
        self.packed: dict[range, Segment] = {}
        self.scratches: dict[int, Mapping[str, int]] = {}

    def made(self) -> PackedNetwork:
        """All of it."""
        wanted, network = self.wanted, self.network
        for device in wanted.devices:
            self.choice.family.require_valid(self.choice.problem, self.choice.config, device)
        if network.edges >= COMPILED_AHEAD:
            threading.Thread(target=self._compile_ahead, name="compile ahead", daemon=True).start()
        plan = self._indexed(self._plan())
        segments = self._cut(plan)
        if len(segments) > plan.segments == 1:
            # Whole it is larger than the few layers that were probed let expect.
            plan = replace(plan, batch_bytes=self._batch_bytes(plan.batch, True), slots=2)
            segments = self._cut(plan)
        plan = replace(
            plan,
            segments=len(segments),
            segment_layers=max(len(segment.layers) for segment in segments),
            segment_bytes=max(segment.image.nbytes for segment in segments),
        )
        scratch = self._scratch(plan.batch)
        return PackedNetwork(
            self.choice.config,
            *self.kind,
            network.inputs,
            network.neurons,
            network.outputs,
            network.edges,
            min(network.clip, largest(wanted.dtype)),
            plan,
            tuple(segment.for_batches(plan.batch, scratch) for segment in segments),
        )

    # --- variant ---

    @cached_property
    def matrix(self) -> CsrMatrix:
        """The layers by which the variant is chosen: all of them where they are packed together."""
        return self.network.stacked(self.wanted.dtype, self.probed)

    @cached_property
    def choice(self) -> Choice:
        wanted, device = self.wanted, self.wanted.devices[0]
        problem = self._problem(self.probed)
        if wanted.family is not None:
            return named_choice(problem, self.features, device, wanted.family, wanted.config or {})
        return api.lookup(self.matrix, problem, device=device, db=wanted.db)

    @cached_property
    def features(self) -> Features:
        """Features of these layers."""
        return self._problem(self.probed).features(self.matrix)

    def _problem(self, layers: range) -> SparseNetworkProblem:
        return segment_problem(self.network, layers, self.wanted.share, *self.kind)

    def _compile_ahead(self) -> None:
        """Compile the last layers' kernel while they are packed; whoever runs it finds it in the cache, or learns why
        not.
        """
        problem, toolchain = self._problem(self.layers), backends.toolchain(self.wanted.devices[0])
        try:
            RenderedVariant.of(self.choice.config, problem, toolchain).compile(toolchain)
        except SparsegenError as error:
            log.info("not compiled ahead: %s", error)

    # --- plan ---

    def _plan(self) -> MemoryPlan:
        wanted, layers, layer_us = self.wanted, len(self.layers), self._layer_us()
        turn, most = self._inputs_of_a_turn(), wanted.share
        if wanted.budget is None:
            return in_core(turn, layers, self._batch_bytes(turn, False), layer_us)
        wave, least = inputs_at_once(self.choice.config, wanted.devices[0]), min(most, LEAST_BATCH)
        sizes = {most, turn, least, *(wave * k for k in (1, 2, 3, 4, 6, 8))}
        sizes |= {max(least, wave >> i) for i in range(1, 12)}
        layer_bytes, constant_bytes = self._layer_bytes()
        return planned(
            wanted.budget,
            count=wanted.share,
            layers=layers,
            layer_bytes=layer_bytes,
            constant_bytes=constant_bytes,
            batch_bytes=self._batch_bytes,
            batches=sorted(size for size in sizes if size <= most),
            most_whole=turn,
            layer_us=layer_us,
        )

    @property
    def _most_indexed(self) -> int:
        """Upper limit of layers that are one matrix, whose nonzeros 32 bits tell apart."""
        widest = max(layer.nnz for layer in self.network.layers) + BIAS_COLUMNS * self.network.neurons
        return max(1, MAX_INDEX // widest)

    def _indexed(self, plan: MemoryPlan) -> MemoryPlan:
        """The plan with segments of no more layers than are one matrix; they lie on the device together if all do."""
        if plan.segment_layers <= self._most_indexed:
            return plan
        segments = ceil_div(len(self.layers), self._most_indexed)
        return replace(
            plan,
            batch_bytes=self._batch_bytes(plan.batch, True),
            segment_layers=ceil_div(len(self.layers), segments),
            segments=segments,
            slots=segments if plan.segments == 1 else plan.slots,
        )

    def _layer_bytes(self) -> tuple[int, int]:
        """Bytes of each packed layer, and of a segment beside its layers, as the probed ones have them."""
        one, several = (self._segment(layers).image.nbytes for layers in (range(1), self.probed))
        per = ceil_div(several - one, max(1, len(self.probed) - 1))
        return max(1, per), max(0, one - per)

    def _inputs_of_a_turn(self) -> int:
        """A part of a device's share, if that takes long to send, in whole tiles: they are sent while others are
        computed.
        """
        wanted = self.wanted
        turns = max(1, min(TURNS, wanted.share * ceil_div(self.network.inputs, 8) // TURN_BYTES))
        step = granule(self.choice.config, wanted.devices[0])
        return min(wanted.share, round_up(ceil_div(wanted.share, turns), step))

    def _layer_us(self) -> float:
        """Microseconds of a layer for an input."""
        choice = self.choice
        device = described(self.wanted.devices[0], self.wanted.db)
        us = choice.family.analytic_us(choice.problem, self.features, choice.config, device)
        alone = max(us - device.expected_rates.launch_us, us / 2)
        return float(alone / (self.wanted.share * len(self.probed)))

    def _batch_bytes(self, batch: int, is_cut: bool) -> int:
        """Bytes of a batch on a device, besides the weights."""
        scratch = sum(self._scratch(batch).values())
        return scratch + batch_bytes(self.network, batch, *self.kind, is_cut=is_cut)

    def _scratch(self, batch: int) -> Mapping[str, int]:
        """Bytes of scratch memory for ``batch`` inputs: those of the family's packing of a layer without weights."""
        if batch not in self.scratches:
            problem = replace(self._problem(range(1)), n=batch)
            packed = self.choice.family.pack(problem, self.choice.config, _weightless(problem))
            self.scratches[batch] = packed.scratch
        return self.scratches[batch]

    # --- segments ---

    def _cut(self, plan: MemoryPlan) -> list[Segment]:
        """All layers; a segment that becomes larger than its slot is cut in two.

        Raises:
            DeviceMemoryError: a layer alone is larger.
        """
        budget, per = self.wanted.budget, plan.segment_layers
        most = None if budget is None else (budget - plan.batch_bytes) // plan.slots
        waiting = [range(i, min(i + per, len(self.layers))) for i in range(0, len(self.layers), per)][::-1]
        found = []
        while waiting:
            layers = waiting.pop()
            segment = self._segment(layers)
            if most is None or segment.image.nbytes <= most:
                found.append(segment)
                continue
            middle = (layers.start + layers.stop) // 2
            if middle == layers.start:
                raise DeviceMemoryError(
                    f"layer {layers.start} takes {size_text(segment.image.nbytes)} of memory, twice, beside "
                    f"{size_text(plan.batch_bytes)} of inputs: give more than {size_text(budget or 0)}"
                )
            waiting += [range(middle, layers.stop), range(layers.start, middle)]
        return found

    def _segment(self, layers: range) -> Segment:
        problem = self._problem(layers)
        if layers not in self.packed:
            self.packed[layers] = self._known(layers, problem) or self._packed(layers, problem)
        return self.packed[layers]

    def _packed(self, layers: range, problem: SparseNetworkProblem) -> Segment:
        """
        Raises:
            MatrixError: weights that become infinite in the dtype.
        """
        matrix = self.matrix if layers == self.probed else self.network.stacked(self.kind[0], layers)
        require_held(problem, matrix, allow_overflow=False)
        return Segment.of(problem, layers, self.choice.family.pack(problem, self.choice.config, matrix))

    def _known(self, layers: range, problem: SparseNetworkProblem) -> Segment | None:
        """The same layers packed alike."""
        config, family = self.choice.config, self.choice.family
        if self.known is None or type(self.known.config) is not type(config):
            return None
        if family.packing_key(problem, self.known.config) != family.packing_key(problem, config):
            return None
        alike = (
            s for s in self.known.segments if s.layers == layers and s.problem.readout is problem.readout
        )
        return next(alike, None)


def _weightless(problem: SparseNetworkProblem) -> CsrMatrix:
    offsets = np.zeros(problem.m + 1, np.int64)
    return CsrMatrix((problem.m, problem.k), offsets, np.zeros(0, np.int32), np.zeros(0, np.float32))
