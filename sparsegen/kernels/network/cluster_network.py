"""Sparse networks too wide for one multiprocessor: all layers fused, in the shared memories of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import PORTABLE_CLUSTER, Launch
from sparsegen.kernels.layouts.limits import (
    CLUSTERS,
    capable,
    enough_registers,
    resident_clusters,
    shared_memory_fits,
)
from sparsegen.kernels.layouts.network_tiles import UNIT, positions_of
from sparsegen.kernels.layouts.tile_groups import SIDE
from sparsegen.kernels.network.cluster_tiles import (
    COPIED,
    FETCHED_RANK,
    blocks_kept,
    cluster_tiles,
    position_bits,
)
from sparsegen.kernels.network.network_family import (
    TiledNetwork,
    checks_tunable,
    dropped,
    drops_inputs,
    first_check_tunable,
    first_that_fits,
    group_cycles,
    groups_of,
    launch_of,
    living,
    run_for,
    run_tunable,
    tiles_of_a_group,
    traits_of_tiles,
    warps_for,
)
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators.sparse_network import Readout, SparseNetworkProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

LARGE_CLUSTERS = (9, 10)  # major compute capabilities with larger ones, of GPUs of servers
ROWS_APART = 8  # rows after a buffer: one for unread neurons, and padding to a multiple of 128 bytes
CONTROL_BYTES = 1024
OTHER_REGISTERS = 34
# Bytes in a cycle from a multiprocessor to others while it computes, by a cluster's blocks. On an H100, 4096 neurons,
# for clusters of 2 and 4 (these in two waves, the second of one cluster); for those of 8 and 16 by a kernel that only
# sends, which had 9.8 and 9.6.
SENT_BYTES_PER_CYCLE = {2: 9.4, 4: 10.4, 8: 9.8, 16: 9.8}
SEVERAL = 6  # resident clusters from which on a heuristic takes 16 blocks: part of a GPU (MIG) may have room for none


def most_neurons_kept(cluster: int) -> int:
    """Returns the most neurons that a block may keep: all whole blocks but one place, which is for unread neurons."""
    return (1 << position_bits(cluster)) - SIDE


@dataclass(frozen=True)
class ClusterNetworkConfig(Config):
    """One point of the tuning space of `ClusterNetwork`."""

    cluster: int = tunable(2, (2, 4, 8, 16), "blocks that share a tile's neurons", packs=True)
    inputs: int = tunable(
        24, (8, 24, 40, 56), "inputs of a tile, which goes through all layers together", searched=(24, 40, 56)
    )
    warps: int = tunable(16, (4, 8, 16), "warps of a block", packs=True, searched=(8, 16))
    run: int = run_tunable(4, (1, 2, 4, 8), searched=(2, 4, 8))
    sending: str = tunable(
        "sought",
        ("sought", "listed"),
        "neurons that another block reads are sought among a group's, or, in clusters of 2, listed beforehand",
        packs=True,
    )
    first_check: int = first_check_tunable(0, 4, 5, 6, 8)
    checks: int = checks_tunable()


class ClusterNetwork(TiledNetwork[ClusterNetworkConfig]):
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

    def constraints(
        self, problem: SparseNetworkProblem, config: ClusterNetworkConfig, device: Device
    ) -> Iterator[Constraint]:
        c = config
        yield from self.scope(problem)
        yield capable(device, CLUSTERS)
        yield Constraint(
            _has_clusters(device, c.cluster),
            f"clusters of more than {PORTABLE_CLUSTER} blocks ({c.cluster}) need compute capability 9.x or 10.x",
        )
        kept = SIDE * blocks_kept(problem, c.cluster)
        most = most_neurons_kept(c.cluster)
        yield Constraint(
            kept <= most, f"a block of the cluster ({c.cluster}) keeps {kept} neurons, at most {most}"
        )
        yield shared_memory_fits("two buffers of neurons", self._shared_bytes(problem, c), device)
        yield enough_registers(self._registers(c), WARP * c.warps, at_a_time=8)
        yield Constraint(
            c.sending != "listed" or c.cluster == 2,
            f"what is sent is listed (sending {c.sending}) in clusters of 2 (cluster {c.cluster})",
        )
        yield from drops_inputs(problem, c)

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
        """True unless a cluster's warps take more groups at a time than a layer has: the others would idle."""
        return config.cluster * config.warps * config.run <= max(4, groups_of(problem))

    def constants(self, problem: SparseNetworkProblem, config: ClusterNetworkConfig) -> Mapping[str, Value]:
        return {
            **super().constants(problem, config),
            **traits_of_tiles(problem),
            "position_bits": position_bits(config.cluster),
            "copied": COPIED,
            "fetched_rank": FETCHED_RANK,
        }

    def pack(
        self, problem: SparseNetworkProblem, config: ClusterNetworkConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        c = config
        tiles = cluster_tiles(problem, matrix, c.run, c.warps * c.run, c.cluster, c.sending == "listed")
        return self.packed(
            problem,
            matrix,
            tiles,
            own={"places": tiles.places, "copies": tiles.copies, "in_use": tiles.kept},
            scratch=self.kept(problem, tiles.positions, c.cluster),
            width=positions_of(problem),
            output_share=SIDE * ceil_div(ceil_div(positions_of(problem), SIDE), c.cluster),
            rank_groups=tiles.places.shape[1],
            rank_general=tiles.general.shape[1],
            rank_tiles=tiles.blocks.shape[1],
            rank_units=tiles.source.shape[1] // UNIT,
        )

    def launch(
        self,
        problem: SparseNetworkProblem,
        config: ClusterNetworkConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        c = config
        clusters = min(max(1, device.multiprocessors // c.cluster), ceil_div(problem.n, 8))
        shared = self._shared_bytes(problem, c)
        return launch_of(problem, clusters * c.cluster, c.warps, shared, persistent_cluster=c.cluster)

    def analytic_us(
        self, problem: SparseNetworkProblem, features: Features, config: ClusterNetworkConfig, device: Device
    ) -> float:
        """The time of each block's groups, as in `fused_network`, and of sending neurons to other multiprocessors."""
        c = config
        tiles = ceil_div(problem.n, resident_clusters(device, c.cluster) * c.inputs)
        shared = tiles_of_a_group(features)  # copies of a neuron are for as many groups
        groups = ceil_div(problem.neurons, SIDE * c.cluster)
        of_group = group_cycles(shared, c.inputs)
        away = shared * positions_of(problem) / c.cluster * (1 - 1 / c.cluster) * c.inputs
        cycles = groups * of_group + away / SENT_BYTES_PER_CYCLE[c.cluster]
        of_all = problem.layers * tiles * living(problem) * cycles
        return device.expected_rates.launch_us + of_all / device.expected_rates.clock_mhz

    def heuristic(
        self, problem: SparseNetworkProblem, features: Features, device: Device
    ) -> ClusterNetworkConfig:
        """The smallest cluster in which tiles of 24 inputs fit, or the largest; runs such that all warps have one.

        Clusters of 2 list what they send: on an H200, 4096 neurons, that took 9 % less time, 7 % where inputs die.
        Of 16384 neurons clusters of 8 keep tiles of 24 inputs and those of 16 tiles of 40: on an H100 the former took
        9 % less time, 19 % where inputs die.
        """
        groups = groups_of(problem)

        def config(cluster: int, inputs: int) -> ClusterNetworkConfig:
            warps = warps_for(groups // cluster)
            run = run_for(groups // (cluster * warps), 4)
            sending = "listed" if cluster == 2 else "sought"
            return ClusterNetworkConfig(cluster, inputs, warps, run, sending, **dropped(problem))

        return first_that_fits(
            (config(*some) for some in ((2, 40), (2, 24), (4, 24), (8, 24), (16, 40), (8, 8))),
            lambda c: (
                _has_several(device, c.cluster)
                and self._shared_bytes(problem, c) <= device.shared_memory_per_block
            ),
        )


def _has_clusters(device: Device, blocks: int) -> bool:
    """True if a device that has clusters may have them with ``blocks`` blocks."""
    return blocks <= PORTABLE_CLUSTER or device.compute_capability[0] in LARGE_CLUSTERS


def _has_several(device: Device, blocks: int) -> bool:
    """True if clusters of ``blocks`` blocks are portable, or if several should be resident at once."""
    is_large = blocks > PORTABLE_CLUSTER
    return not is_large or (_has_clusters(device, blocks) and resident_clusters(device, blocks) >= SEVERAL)


FAMILY = ClusterNetwork()
