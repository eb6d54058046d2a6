"""Sparse networks of any pattern whose neurons stay in shared memory through all layers, without tensor cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import one_item
from sparsegen.kernels.layouts.limits import (
    capable,
    enough_registers,
    resident_blocks_fit,
    shared_memory_fits,
)
from sparsegen.kernels.layouts.padding import empty_as_padding
from sparsegen.kernels.network.cluster_network import CLUSTERS, SENT_BYTES_PER_CYCLE, resident_clusters
from sparsegen.kernels.network.network_family import launch_of, network_constants, stored_values
from sparsegen.kernels.network.resident_slices import Shape, resident_slices
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators.sparse_network import BIAS_COLUMNS, SparseNetworkProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

BANK_BYTES = 128  # bytes that shared memory delivers in a cycle
INPUTS = (2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 64)
MOST_NEURONS = 1 << 16  # that 16 bits name
OTHER_REGISTERS = 26
# Instructions of a warp for a weight of each group: these, and one or two for each input of a lane.
BESIDE_INPUTS = 4.0
CONFLICTS = 1.3  # cycles of shared memory for each that rows at random take at best
LAYER_CYCLES = 900.0  # a layer's barrier, and the first weights of its slices
CLUSTER_LAYER_CYCLES = 1800.0  # the same of clusters
SENT_BYTES = 16  # that a lane sends at a time


@dataclass(frozen=True)
class ResidentNetworkConfig(Config):
    """One point of the tuning space of `ResidentNetwork`."""

    inputs: int = tunable(16, INPUTS, "inputs of a tile, which goes through all layers together", packs=True)
    steps: int = tunable(4, (4, 8), "weights of a neuron that are loaded at once", packs=True)
    warps: int = tunable(32, (8, 16, 32), "warps of a block", packs=True)
    resident_blocks: int = tunable(1, (1, 2), "blocks that share a multiprocessor")
    cluster: int = tunable(
        1, (1, 2, 4, 8), "blocks that share a tile's neurons, of which each has all", packs=True
    )


class ResidentNetwork(Family[SparseNetworkProblem, ResidentNetworkConfig]):
    """A block takes its share of the inputs, tile by tile, through all layers; no neuron leaves the multiprocessor.

    Some lanes of a warp have a neuron of all inputs of the tile: for each of its weights they read the neuron of the
    layer before, which lies in a row of shared memory. So a weight and its place are read once for the whole tile, and
    rows at random cost what rows in order do, but for bank conflicts. Neurons with many weights are shared by all
    groups of a warp; an inspector deals slices of neurons such that all warps have as much to do.
    """

    name = "resident_network"
    summary = "Sparse networks of any pattern, all layers fused, in shared memory"
    source = (
        "one kernel over all layers of an input that fits the processor: as Hidayetoğlu et al., HPEC 2020, section "
        "III-C leaves it open; slices that are dealt and rows of inputs side by side are sparsegen's own"
    )
    template = "network/resident_network.cu.j2"
    entry = "resident_network"
    size_names = ("n", "neurons", "outputs", "layers", "bias_values")
    packed_names = ("first_slices", "first_chunks", "chunks", "rows", "index", "values")
    problem_type = SparseNetworkProblem
    config_type = ResidentNetworkConfig

    def scope(self, problem: SparseNetworkProblem) -> Iterator[Constraint]:
        yield one_item(problem)
        yield Constraint(
            problem.neurons <= MOST_NEURONS,
            f"a layer's neurons ({problem.neurons}) are at most {MOST_NEURONS}",
        )

    def constraints(
        self, problem: SparseNetworkProblem, config: ResidentNetworkConfig, device: Device
    ) -> Iterator[Constraint]:
        c = config
        yield from self.scope(problem)
        if c.cluster > 1:
            yield capable(device, CLUSTERS)
            yield Constraint(
                self._vector(problem, c.inputs) * problem.dtype.itemsize == SENT_BYTES,
                f"what a cluster's blocks (cluster {c.cluster}) send are {SENT_BYTES} bytes (inputs {c.inputs})",
            )
            yield Constraint(
                c.resident_blocks == 1,
                f"a cluster's blocks (cluster {c.cluster}) have a multiprocessor each (resident_blocks "
                f"{c.resident_blocks})",
            )
        taken = self._shared_bytes(problem, c)
        yield shared_memory_fits("two layers of neurons", taken, device)
        yield resident_blocks_fit(c.resident_blocks, taken, device)
        weights = c.steps // 2 + c.steps * problem.dtype.itemsize // 4
        yield enough_registers(
            2 * weights + 2 * self._vector(problem, c.inputs) + OTHER_REGISTERS,
            WARP * c.warps * c.resident_blocks,
            at_a_time=8,
        )

    @staticmethod
    def _shared_bytes(problem: SparseNetworkProblem, config: ResidentNetworkConfig) -> int:
        return 2 * max(1, problem.neurons, problem.outputs) * config.inputs * problem.dtype.itemsize

    @staticmethod
    def _vector(problem: SparseNetworkProblem, inputs: int) -> int:
        """Returns the inputs of a lane: what a load of 16 bytes holds, or as many as divide a tile."""
        widest = 16 // problem.dtype.itemsize
        return next((v for v in (widest, widest // 2) if inputs % v == 0), 2)

    def _shape(self, problem: SparseNetworkProblem, config: ResidentNetworkConfig) -> Shape:
        c, row = config, config.inputs * problem.dtype.itemsize
        groups = WARP // (c.inputs // self._vector(problem, c.inputs))
        return Shape(groups, c.steps, c.warps * c.cluster, BANK_BYTES // row if BANK_BYTES % row == 0 else 1)

    def is_worth_trying(
        self, problem: SparseNetworkProblem, config: ResidentNetworkConfig, device: Device
    ) -> bool:
        """True unless tiles are larger than what each multiprocessor has of the inputs, or warps have no neurons."""
        c = config
        clusters = device.multiprocessors * c.resident_blocks // c.cluster
        of_each = max(2, ceil_div(problem.n, clusters))
        return c.inputs < 2 * of_each and c.warps * c.cluster <= max(8, problem.neurons // 8)

    def constants(self, problem: SparseNetworkProblem, config: ResidentNetworkConfig) -> Mapping[str, Value]:
        return network_constants(problem)

    def pack(
        self, problem: SparseNetworkProblem, config: ResidentNetworkConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        shape = self._shape(problem, config)
        slices = resident_slices(problem, matrix, shape)
        first_slices = _offsets(slices.slices)
        first_chunks = _offsets(slices.chunks)
        source = empty_as_padding(np.concatenate((slices.biases.ravel(), slices.source)))
        return Packed(
            arrays={
                "first_slices": first_slices,
                "first_chunks": first_chunks[first_slices],
                "chunks": empty_as_one((2 * slices.chunks + slices.is_shared).astype(np.int32)),
                "rows": empty_as_one(slices.rows),
                "index": slices.index,
                "values": stored_values(problem, matrix, source),
            },
            sizes={
                "neurons": problem.neurons,
                "outputs": problem.outputs,
                "layers": problem.layers,
                "bias_values": slices.biases.size,
            },
            nnz=matrix.nnz,
            values="values",
            value_source=lambda: source,
        )

    def launch(
        self,
        problem: SparseNetworkProblem,
        config: ResidentNetworkConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        clusters = self._clusters(problem, config, device)
        return launch_of(
            problem,
            clusters * config.cluster,
            config.warps,
            self._shared_bytes(problem, config),
            persistent_cluster=config.cluster if config.cluster > 1 else 0,
        )

    @staticmethod
    def _clusters(problem: SparseNetworkProblem, config: ResidentNetworkConfig, device: Device) -> int:
        """Returns the number of blocks or clusters: as many as are resident at once and have a tile each."""
        c = config
        resident = (
            device.multiprocessors * c.resident_blocks
            if c.cluster == 1
            else resident_clusters(device, c.cluster)
        )
        return min(resident, ceil_div(problem.n, c.inputs))

    def analytic_us(
        self,
        problem: SparseNetworkProblem,
        features: Features,
        config: ResidentNetworkConfig,
        device: Device,
    ) -> float:
        """The longest of what shared memory, issue slots and the L2 take, tile after tile."""
        c, itemsize, rates = config, problem.dtype.itemsize, device.expected_rates
        if not (problem.neurons and problem.m):
            return rates.launch_us
        shape, vector = self._shape(problem, c), self._vector(problem, c.inputs)
        edges = problem.m * max(0.0, features.row_mean - BIAS_COLUMNS)
        clusters = self._clusters(problem, c, device)
        tiles = ceil_div(ceil_div(problem.n, clusters), c.inputs)
        on_one = min(c.resident_blocks, ceil_div(clusters * c.cluster, device.multiprocessors))
        shared = CONFLICTS * c.inputs * itemsize / BANK_BYTES
        issued = (BESIDE_INPUTS + vector * (1 + (itemsize < 4))) / shape.groups / 4
        loaded = (2 + itemsize) * device.cycles_per_us / device.l2_bytes_per_us
        cycles = edges / c.cluster * max(shared, issued, loaded)
        if c.cluster > 1:
            sent = problem.m / c.cluster * c.inputs * itemsize * (c.cluster - 1)
            cycles += sent / SENT_BYTES_PER_CYCLE[c.cluster] + problem.layers * CLUSTER_LAYER_CYCLES
        else:
            cycles += problem.layers * LAYER_CYCLES
        return rates.launch_us + tiles * on_one * cycles / rates.clock_mhz

    def heuristic(
        self, problem: SparseNetworkProblem, features: Features, device: Device
    ) -> ResidentNetworkConfig:
        """The inputs and blocks of a tile that take least time by the model, and as many warps as have neurons."""
        configs = [
            ResidentNetworkConfig(
                inputs=inputs,
                warps=next((w for w in (32, 16) if 8 * w * cluster <= problem.neurons), 8),
                cluster=cluster,
            )
            for cluster in (1, 2, 4, 8)
            for inputs in INPUTS
        ]
        fitting = [c for c in configs if self.is_valid(problem, c, device)] or configs[:1]
        return min(fitting, key=lambda c: self.analytic_us(problem, features, c, device))


def _offsets(counts: Array) -> Array:
    """int32: where each one begins, and the end."""
    found: Array = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))).astype(np.int32)
    return found


FAMILY = ResidentNetwork()
