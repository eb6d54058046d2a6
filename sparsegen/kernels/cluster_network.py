"""Sparse networks too wide for one multiprocessor: all layers fused, in the shared memories of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import one_item
from sparsegen.kernels.layouts.cluster_tiles import (
    COPIED,
    FETCHED_RANK,
    POSITION_BITS,
    blocks_kept,
    cluster_tiles,
)
from sparsegen.kernels.layouts.limits import capable, enough_registers, shared_memory_fits
from sparsegen.kernels.layouts.network_tiles import (
    GROUP_CYCLES,
    INPUT_CYCLES,
    LIVING,
    UNIT,
    drops_inputs,
    positions_of,
    shares_columns,
    tiles_of_a_group,
)
from sparsegen.kernels.layouts.tile_groups import SIDE
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import DType
from sparsegen.operators.sparse_network import Activation, Readout, SparseNetworkProblem

WARP = 32
CLUSTERS = (9, 0)  # compute capability with clusters of blocks
MOST_BLOCKS_KEPT = (
    1 << POSITION_BITS
) // SIDE - 1  # of neurons; one more place is for those that nobody reads
ROWS_APART = 8  # behind a buffer: one for neurons that nobody reads, and up to a multiple of 128 bytes
CONTROL_BYTES = 1024
OTHER_REGISTERS = 34
# From a multiprocessor to others beside what it computes, by blocks of the cluster. Measured on an H100, 4096 neurons,
# for clusters of 2 and 4 (these in two waves, of which the second was one cluster); that of 8 is a cautious guess.
SENT_BYTES_PER_CYCLE = {2: 9.4, 4: 10.4, 8: 5.0}
# Of a device's multiprocessors in clusters that are resident at once: those of a graphics processing cluster come in
# pairs, and not all have the same number. Of clusters of 16 an H100 had 7, of 8.25.
RESIDENT_SHARE = {2: 1.0, 4: 0.94, 8: 0.91}


def resident_clusters(device: Device, cluster: int) -> int:
    """How many clusters of that many blocks a device probably has at once, one block on each multiprocessor."""
    return max(1, int(RESIDENT_SHARE[cluster] * device.multiprocessors / cluster))


@dataclass(frozen=True)
class ClusterNetworkConfig(Config):
    """One point of the tuning space of `ClusterNetwork`."""

    cluster: int = tunable(2, (2, 4, 8), "blocks that share a tile's neurons", packs=True)
    inputs: int = tunable(
        24, (8, 24, 40, 56), "inputs of a tile, which goes through all layers together", searched=(24, 40, 56)
    )
    warps: int = tunable(16, (4, 8, 16), "warps of a block", packs=True, searched=(8, 16))
    run: int = tunable(
        4,
        (1, 2, 4, 8),
        "groups of 16 neurons that a warp takes one after another, keeping what they share",
        packs=True,
        searched=(2, 4, 8),
    )
    sending: str = tunable(
        "sought",
        ("sought", "listed"),
        "neurons that another block reads are sought among a group's, or, in clusters of 2, listed beforehand",
        packs=True,
    )
    first_check: int = tunable(
        5,
        (0, 1, 2, 3, 4, 5, 6, 8, 12),
        "layers before dead inputs are dropped for the first time; 0: never",
        searched=(0, 4, 5, 6, 8),
    )
    checks: int = tunable(3, (1, 2, 3, 4, 6), "how often dead inputs are dropped")


class ClusterNetwork(Family[SparseNetworkProblem, ClusterNetworkConfig]):
    """A cluster takes its share of the inputs, tile by tile, through all layers; no neuron leaves its shared memories.

    Each block computes some of a layer's groups and keeps the neurons that these read (`cluster_tiles`). Neurons that
    another block reads are sent there as they are made, and counted by its barrier: no block waits for all others at
    the end of a layer, only for what it needs.
    """

    name = "cluster_network"
    summary = "Sparse networks on tensor cores, all layers fused, in the shared memories of a cluster"
    source = (
        "one kernel over all layers of inputs that fit a few processors together, which Hidayetoğlu et al., HPEC 2020, "
        "leave open; distributed shared memory and asynchronous stores: NVIDIA, PTX ISA 8, st.async"
    )
    template = "sparse_network/cluster_network.cu.j2"
    entry = "cluster_network"
    size_names = (
        "n",
        "neurons",
        "outputs",
        "layers",
        "positions",
        "width",
        "output_share",
        "rank_groups",
        "rank_general",
        "rank_tiles",
        "rank_units",
    )
    packed_names = (
        "layer_table",
        "places",
        "copies",
        "general",
        "blocks",
        "in_use",
        "input_places",
        "values",
    )
    scratch_names = ("kept", "kept_ids")
    problem_type = SparseNetworkProblem
    config_type = ClusterNetworkConfig

    def scope(self, problem: SparseNetworkProblem) -> Iterator[Constraint]:
        yield Constraint(problem.dtype is DType.FLOAT16, f"elements ({problem.dtype}) are float16")
        yield one_item(problem)

    def constraints(
        self, problem: SparseNetworkProblem, config: ClusterNetworkConfig, device: Device
    ) -> Iterator[Constraint]:
        c = config
        yield from self.scope(problem)
        yield capable(device, CLUSTERS)
        kept = blocks_kept(problem, c.cluster)
        yield Constraint(
            kept <= MOST_BLOCKS_KEPT,
            f"a block of the cluster ({c.cluster}) keeps {SIDE * kept} neurons, at most {SIDE * MOST_BLOCKS_KEPT}",
        )
        yield shared_memory_fits("two buffers of neurons", self._shared_bytes(problem, c), device)
        yield enough_registers(self._registers(c), WARP * c.warps, at_a_time=8)
        yield Constraint(
            c.sending != "listed" or c.cluster == 2,
            f"what is sent is listed (sending {c.sending}) in clusters of 2 (cluster {c.cluster})",
        )
        yield from drops_inputs(problem, c.first_check, c.checks)

    def requirements(
        self, problem: SparseNetworkProblem, features: Features, config: ClusterNetworkConfig
    ) -> Iterator[Constraint]:
        yield shares_columns(problem, features)

    @staticmethod
    def _registers(config: ClusterNetworkConfig) -> int:
        """Weights of a run, what is loaded beside them, two blocks and sums of a tile, and addresses."""
        tiles = config.inputs // 8
        return 11 * config.run + 8 * tiles + OTHER_REGISTERS

    @staticmethod
    def _shared_bytes(problem: SparseNetworkProblem, config: ClusterNetworkConfig) -> int:
        """Two buffers, what warps send from, totals of each block, and the rest."""
        rows = 2 * (SIDE * blocks_kept(problem, config.cluster) + ROWS_APART) + SIDE * config.warps
        totals = 4 * (config.cluster + 1) if problem.readout is Readout.TOTALS else 0
        return config.inputs * (2 * rows + totals) + CONTROL_BYTES

    def is_worth_trying(
        self, problem: SparseNetworkProblem, config: ClusterNetworkConfig, device: Device
    ) -> bool:
        groups = -(-problem.neurons // SIDE)
        return config.cluster * config.warps * config.run <= max(4, groups)

    def constants(self, problem: SparseNetworkProblem, config: ClusterNetworkConfig) -> Mapping[str, Value]:
        return {
            "dtype": problem.dtype.value,
            "activation": problem.activation.value,
            "readout": problem.readout.value,
            "aligned_rows": problem.neurons % 8 == 0,
            "even_outputs": problem.outputs % 2 == 0,
            "position_bits": POSITION_BITS,
            "copied": COPIED,
            "fetched_rank": FETCHED_RANK,
        }

    def pack(
        self, problem: SparseNetworkProblem, config: ClusterNetworkConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        c = config
        tiles = cluster_tiles(problem, matrix, c.run, c.warps * c.run, c.cluster, c.sending == "listed")
        values = problem.dtype.to_storage(np.append(matrix.values, np.float32(0))[tiles.source])
        kept = problem.activation is Activation.DYING_RELU
        return Packed(
            arrays={
                "layer_table": empty_as_one(tiles.layers),
                "places": tiles.places,
                "copies": tiles.copies,
                "general": tiles.general,
                "blocks": tiles.blocks,
                "in_use": tiles.kept,
                "input_places": tiles.inputs,
                "values": values,
            },
            sizes={
                "neurons": problem.neurons,
                "outputs": problem.outputs,
                "layers": problem.layers,
                "positions": tiles.positions,
                "width": positions_of(problem),
                "output_share": SIDE * -(-positions_of(problem) // SIDE // c.cluster),
                "rank_groups": tiles.places.shape[1],
                "rank_general": tiles.general.shape[1],
                "rank_tiles": tiles.blocks.shape[1],
                "rank_units": tiles.source.shape[1] // UNIT,
            },
            nnz=matrix.nnz,
            values="values",
            value_source=lambda: tiles.source,
            scratch={
                "kept": 2 * c.cluster * problem.n * tiles.positions if kept else 4,
                "kept_ids": 4 * c.cluster * problem.n if kept else 4,
            },
        )

    def launch(
        self,
        problem: SparseNetworkProblem,
        config: ClusterNetworkConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        clusters = max(1, min(device.multiprocessors // config.cluster, -(-problem.n // 8)))
        return Launch(
            grid=(clusters * config.cluster if problem.outputs and problem.n else 0, 1, 1),
            block=(WARP * config.warps, 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, config),
            persistent_cluster=config.cluster,
        )

    def analytic_us(
        self, problem: SparseNetworkProblem, features: Features, config: ClusterNetworkConfig, device: Device
    ) -> float:
        """The time of each block's groups, as in `fused_network`, and of sending neurons to other multiprocessors."""
        c = config
        living = LIVING if problem.activation is Activation.DYING_RELU else 1.0
        tiles = -(-problem.n // (resident_clusters(device, c.cluster) * c.inputs))
        shared = tiles_of_a_group(problem, features)  # copies of a neuron are for as many groups
        groups = -(-problem.neurons // (SIDE * c.cluster))
        of_group = (GROUP_CYCLES + INPUT_CYCLES * c.inputs) * shared / 2
        away = shared * positions_of(problem) / c.cluster * (1 - 1 / c.cluster) * c.inputs
        cycles = groups * of_group + away / SENT_BYTES_PER_CYCLE[c.cluster]
        of_all = problem.layers * tiles * living * cycles
        return device.expected_rates.launch_us + of_all / device.expected_rates.clock_mhz

    def heuristic(
        self, problem: SparseNetworkProblem, features: Features, device: Device
    ) -> ClusterNetworkConfig:
        """The smallest cluster in which tiles of 24 inputs fit, or the largest; runs such that all warps have one."""
        groups = -(-problem.neurons // SIDE)
        dying = problem.activation is Activation.DYING_RELU
        for cluster, inputs in ((2, 40), (2, 24), (4, 24), (8, 24), (8, 8)):
            warps = 16 if groups >= 16 * cluster else 8 if groups >= 8 * cluster else 4
            run = max(1, min(4, groups // (cluster * warps)))
            config = ClusterNetworkConfig(
                cluster=cluster,
                inputs=inputs,
                warps=warps,
                run=1 << run.bit_length() - 1,
                first_check=5 if dying else 0,
                checks=3 if dying else 1,
            )
            if self._shared_bytes(problem, config) <= device.shared_memory_per_block:
                break
        return config


FAMILY = ClusterNetwork()
