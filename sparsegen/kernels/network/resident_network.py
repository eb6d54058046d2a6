"""Sparse networks of any pattern whose neurons stay in shared memory through all layers, without tensor cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import one_batch_element
from sparsegen.kernels.layouts.limits import (
    TENSOR_CORES,
    capable,
    enough_registers,
    resident_blocks_fit,
    shared_memory_fits,
)
from sparsegen.kernels.layouts.padding import empty_as_padding
from sparsegen.kernels.network.cluster_network import CLUSTERS, SENT_BYTES_PER_CYCLE, resident_clusters
from sparsegen.kernels.network.network_family import launch_of, network_constants, offsets_of, stored_values
from sparsegen.kernels.network.resident_slices import Shape, resident_slices
from sparsegen.kernels.packed import Packed, empty_as_one
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
# Instructions of a warp: for a weight of each group in float32, beside one for each input of a lane; for two weights of
# 16 neurons, and for each plane of them.
BESIDE_INPUTS = 4.0
BESIDE_PLANES, OF_A_PLANE = 9.0, 4.0
# Cycles of shared memory for each that rows at random take at best, and for a weight itself, in float32 (an H200, tiles
# of 8 and 16 inputs) and in 16 bits.
CONFLICTS, OF_A_WEIGHT, OF_A_SHORT_WEIGHT = 1.4, 0.12, 0.03
LAYER_CYCLES = 900.0  # a layer's barrier, and the first weights of its slices
CLUSTER_LAYER_CYCLES = 1800.0  # the same of clusters


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
        """The longest of what shared memory, issue slots and the L2 take, tile after tile."""
        c, itemsize, rates = config, problem.dtype.itemsize, device.expected_rates
        if not (problem.neurons and problem.m):
            return rates.launch_us
        edges = problem.m * max(0.0, features.row_mean - BIAS_COLUMNS)
        clusters = self._clusters(problem, c, device)
        tiles = ceil_div(ceil_div(problem.n, clusters), c.inputs)
        on_one = min(c.resident_blocks, ceil_div(clusters * c.cluster, device.multiprocessors))
        shared = CONFLICTS * c.inputs * itemsize / BANK_BYTES
        if on_tensor_cores(problem):
            shared += OF_A_SHORT_WEIGHT
            issued = (BESIDE_PLANES + OF_A_PLANE * c.inputs / PLANE) / 32 / 4
        else:
            shared += OF_A_WEIGHT
            issued = (BESIDE_INPUTS + LANE_INPUTS) / self._shape(problem, c).groups / 4
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


def on_tensor_cores(problem: SparseNetworkProblem) -> bool:
    """True if products gather the neurons: those of 16 bits."""
    return problem.dtype is not DType.FLOAT32


FAMILY = ResidentNetwork()
