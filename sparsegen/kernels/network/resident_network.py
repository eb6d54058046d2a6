"""Sparse networks of any pattern whose neurons stay in shared memory through all layers, without tensor cores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import one_batch_element
from sparsegen.kernels.layouts.limits import (
    CLUSTERS,
    TENSOR_CORES,
    capable,
    enough_registers,
    resident_blocks_fit,
    resident_clusters,
    shared_memory_fits,
)
from sparsegen.kernels.layouts.padding import empty_as_padding
from sparsegen.kernels.network.cluster_network import SENT_BYTES_PER_CYCLE
from sparsegen.kernels.network.network_family import (
    first_that_fits,
    launch_of,
    network_constants,
    offsets_of,
    stored_values,
)
from sparsegen.kernels.network.resident_slices import Shape, longest_unshared, resident_slices
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.kernels.rates import overlapped
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import DType
from sparsegen.operators.sparse_network import BIAS_COLUMNS, SparseNetworkProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

BANK_BYTES = 128  # bytes that shared memory delivers in a cycle
INPUTS = (4, 8, 16, 24, 32, 40, 48, 64)
MOST_NEURONS = 1 << 16  # that 16 bits name
OTHER_REGISTERS = 48
PLANE = 8  # inputs of a product
LANE_INPUTS = 4  # inputs of a lane in float32
# Cycles of shared memory for each that rows at random take at best.
CONFLICTS = {DType.FLOAT32: 1.2, DType.FLOAT16: 1.4, DType.BFLOAT16: 1.4}
# Cycles that a warp waits, on an H200: for a chunk of weights, from device memory in the first tile and from L2 in
# later ones; for a slice's places, rows and biases; and in each layer for its first slice and at the barrier.
COLD_CHUNK_CYCLES, CHUNK_CYCLES, SLICE_CYCLES, LAYER_CYCLES = 420.0, 65.0, 1300.0, 1700.0
NORM = 4  # of what warps wait for and what they share (`overlapped`)


@dataclass(frozen=True)
class ResidentNetworkConfig(Config):
    """One point of the tuning space of `ResidentNetwork`."""

    inputs: int = tunable(16, INPUTS, "inputs of a tile, which goes through all layers together", packs=True)
    warps: int = tunable(32, (8, 16, 32), "warps of a block", packs=True)
    resident_blocks: int = tunable(1, (1, 2), "blocks that share a multiprocessor")
    cluster: int = tunable(
        1, (1, 2, 4, 8), "blocks that share a tile's neurons, of which each has all", packs=True
    )


class ResidentNetwork(Family[SparseNetworkProblem, ResidentNetworkConfig]):
    """A block takes its share of the inputs, tile by tile, through all layers; no neuron leaves the multiprocessor.

    The neurons of the layer before lie in rows of shared memory, which are gathered for each weight: 16-bit ones by
    ``ldmatrix``, as operands of tensor cores whose other one is diagonal, of a weight of each of 16 neurons; float32 by
    lanes that have some inputs of a neuron. So a weight and its place are read once for the whole tile. Neurons with
    many weights are shared by all groups of a warp; an inspector deals slices of neurons such that all warps have as
    much to do, and orders weights such that neighbours meet different banks.
    """

    name = "resident_network"
    summary = "Sparse networks of any pattern, all layers fused, in shared memory"
    source = (
        "one kernel over all layers of an input that fits the processor: as Hidayetoğlu et al., HPEC 2020, section "
        "III-C leaves it open; slices that are dealt, and gathering by diagonal products, are sparsegen's own"
    )
    size_names = ("n", "neurons", "outputs", "layers", "bias_values")
    packed_names = ("first_slices", "first_chunks", "chunks", "rows", "index", "values")

    def scope(self, problem: SparseNetworkProblem) -> Iterator[Constraint]:
        yield one_batch_element(problem)
        yield Constraint(
            problem.neurons <= MOST_NEURONS,
            f"a layer's neurons ({problem.neurons}) are at most {MOST_NEURONS}",
        )

    def constraints(
        self, problem: SparseNetworkProblem, config: ResidentNetworkConfig, device: Device
    ) -> Iterator[Constraint]:
        c = config
        yield from self.scope(problem)
        if on_tensor_cores(problem):
            yield capable(device, TENSOR_CORES)
            yield Constraint(c.inputs % PLANE == 0, f"inputs ({c.inputs}) are whole planes of {PLANE}")
        else:
            yield Constraint(
                c.inputs & (c.inputs - 1) == 0,
                f"lanes share a warp evenly: inputs ({c.inputs}) are a power of two",
            )
        if c.cluster > 1:
            yield capable(device, CLUSTERS)
            yield Constraint(
                c.resident_blocks == 1,
                f"a cluster's blocks (cluster {c.cluster}) have a multiprocessor each (resident_blocks "
                f"{c.resident_blocks})",
            )
        taken = self._shared_bytes(problem, c)
        yield shared_memory_fits("two layers of neurons", taken, device)
        yield resident_blocks_fit(c.resident_blocks, taken, device)
        sums = c.inputs // 2 if on_tensor_cores(problem) else LANE_INPUTS
        yield enough_registers(sums + OTHER_REGISTERS, WARP * c.warps * c.resident_blocks, at_a_time=8)

    @staticmethod
    def _shared_bytes(problem: SparseNetworkProblem, config: ResidentNetworkConfig) -> int:
        return 2 * max(1, problem.neurons, problem.outputs) * config.inputs * problem.dtype.itemsize

    @staticmethod
    def _shape(problem: SparseNetworkProblem, config: ResidentNetworkConfig) -> Shape:
        warps = config.warps * config.cluster
        if on_tensor_cores(problem):
            return Shape(groups=16, steps=8, warps=warps, classes=PLANE, rotated=True)
        row = config.inputs * problem.dtype.itemsize
        return Shape(WARP * LANE_INPUTS // config.inputs, LANE_INPUTS, warps, max(1, BANK_BYTES // row))

    def is_worth_trying(
        self, problem: SparseNetworkProblem, config: ResidentNetworkConfig, device: Device
    ) -> bool:
        """True unless tiles are larger than what each multiprocessor has of the inputs, or warps have no neurons."""
        c = config
        clusters = max(1, device.multiprocessors * c.resident_blocks // c.cluster)
        of_each = max(2, ceil_div(problem.n, clusters))
        return c.inputs < 2 * of_each and c.warps * c.cluster <= max(8, problem.neurons // 8)

    def constants(self, problem: SparseNetworkProblem, config: ResidentNetworkConfig) -> Mapping[str, Value]:
        return network_constants(problem)

    def pack(
        self, problem: SparseNetworkProblem, config: ResidentNetworkConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        shape = self._shape(problem, config)
        slices = resident_slices(problem, matrix, shape)
        first_slices = offsets_of(slices.slices)
        first_chunks = offsets_of(slices.chunks)
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
        self, problem: SparseNetworkProblem, features: Features, config: ResidentNetworkConfig, device: Device
    ) -> float:
        """Expected time of a block's tiles, one after the other, by what its multiprocessor and its busiest warp do."""
        c, itemsize, rates = config, problem.dtype.itemsize, device.expected_rates
        if not (problem.neurons and problem.m):
            return rates.launch_us
        shape, clusters = self._shape(problem, c), self._clusters(problem, c, device)
        slices = ceil_div(problem.neurons, shape.groups)
        # Where a cluster has more warps than a layer has slices, its first blocks have them all.
        of_warp, of_block = ceil_div(slices, shape.warps), max(slices / c.cluster, min(slices, c.warps))
        weights = max(0.0, features.row_mean - BIAS_COLUMNS)
        chunks = math.ceil(weights / shape.steps)
        longest = min(features.row_max, longest_unshared(weights * problem.neurons, shape)) / shape.steps
        # A chunk's neurons, and its places and weights, which each lane reads.
        gathered = shape.groups * shape.steps * c.inputs * itemsize * CONFLICTS[problem.dtype]
        read = WARP * shape.steps * (2 + itemsize) / (1 if itemsize == 4 else 2)
        on_one = min(c.resident_blocks, ceil_div(clusters * c.cluster, device.multiprocessors))
        shared = on_one * of_block * chunks * (gathered + read) / BANK_BYTES
        of_layer = problem.neurons * chunks * shape.steps * (2 + itemsize)
        loaded = clusters * of_layer * rates.clock_mhz / device.l2_bytes_per_us
        sent = of_block * shape.groups * c.inputs * itemsize * (c.cluster - 1)
        sent /= SENT_BYTES_PER_CYCLE.get(c.cluster, 1.0)

        def of_tile(chunk_cycles: float) -> float:
            waited = max(
                of_warp * (SLICE_CYCLES + chunks * chunk_cycles), SLICE_CYCLES + longest * chunk_cycles
            )
            computed = overlapped(NORM, max(shared, loaded), waited)
            # What the last slice sends comes behind all others.
            return LAYER_CYCLES + max(computed, sent) + min(computed, sent) / of_warp

        tiles = ceil_div(ceil_div(problem.n, clusters), c.inputs)
        cycles = of_tile(COLD_CHUNK_CYCLES) + (tiles - 1) * of_tile(CHUNK_CYCLES)
        return rates.launch_us + problem.layers * cycles / rates.clock_mhz

    def heuristic(
        self, problem: SparseNetworkProblem, features: Features, device: Device
    ) -> ResidentNetworkConfig:
        """The inputs, blocks and warps of a tile that take least time by the model."""
        # Clusters of four took float32 2.6 times as long as expected.
        clusters = (1, 2, 4, 8) if on_tensor_cores(problem) else (1, 2, 8)
        configs = [
            ResidentNetworkConfig(inputs, warps, resident_blocks, cluster)
            for cluster in clusters
            for warps, resident_blocks in ((32, 1), (16, 2), (16, 1), (8, 1))
            for inputs in INPUTS
            if cluster == 1 or resident_blocks == 1
        ]
        ordered = self.by_time(problem, features, configs, device)
        return first_that_fits(ordered, lambda c: self.is_valid(problem, c, device))


def on_tensor_cores(problem: SparseNetworkProblem) -> bool:
    """True if products gather the neurons: those of 16 bits."""
    return problem.dtype is not DType.FLOAT32


FAMILY = ResidentNetwork()
