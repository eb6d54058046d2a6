"""Sparse networks on tensor cores whose layers are too wide for shared memory: neurons are in device memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.limits import capable, enough_registers, shared_memory_fits
from sparsegen.kernels.layouts.network_family import (
    TiledNetwork,
    checks_tunable,
    dies,
    dropped,
    drops_inputs,
    first_check_tunable,
    group_cycles,
    groups_of,
    launch_of,
    living,
    run_for,
    run_tunable,
    tiles_of_a_group,
    warps_for,
)
from sparsegen.kernels.layouts.network_tiles import network_tiles, positions_of
from sparsegen.kernels.layouts.tile_groups import SIDE
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators.sparse_network import SparseNetworkProblem
from sparsegen.system.device_memory import WARP

STORED_FRAGMENTS = (9, 0)  # compute capability with stmatrix
WIDEST_TILE = 64  # inputs
LEAST_OF_A_BLOCK = 16
MOST_BLOCKS = 256
SPARE_ROWS = 16  # of a buffer
MOST_IN_A_CLUSTER = 16384  # neurons that `cluster_network` keeps in tiles of 24 inputs
BLOCKS_LOADED = 1.125  # for each group, in the mean, where it has two
OTHER_REGISTERS = 60
# Of neurons that a multiprocessor reads and writes, at most. Measured on an H200 with 65536 neurons and whole tiles of
# 64 inputs: three quarters of what a copy gets there, and about what a copy gets on an H100.
NEURON_BYTES_PER_CYCLE = 11.0
LAYER_US = 3.0  # until all blocks of a grid have met, and have blocks of neurons again; by the latencies, not measured


class Sharing(StrEnum):
    """What thread blocks share."""

    INPUTS = "inputs"  # each takes some of them through all layers, and waits for nobody
    LAYERS = "layers"  # each takes some of every layer, for all inputs, and waits for all others behind it


@dataclass(frozen=True)
class StreamedNetworkConfig(Config):
    """One point of the tuning space of `StreamedNetwork`."""

    inputs: int = tunable(
        64, (16, 32, 64), "inputs of a tile at most; narrow tiles of narrow networks stay in the L2"
    )
    warps: int = tunable(16, (4, 8, 16), "warps of a block", searched=(8, 16), packs=True)
    run: int = run_tunable(8, (1, 2, 4, 8, 16), searched=(4, 8, 16))
    stages: int = tunable(
        4,
        (2, 3, 4, 6),
        "pipeline stages: blocks of neurons in a warp's shared memory; the next ones load while one is used",
    )
    sharing: str = tunable(
        Sharing.INPUTS.value,
        tuple(sharing.value for sharing in Sharing),
        "what thread blocks share: the inputs, or each layer, behind which all of them wait for one another",
        packs=True,
    )
    first_check: int = first_check_tunable(0, 3, 4, 5, 6, 8)
    checks: int = checks_tunable()


class StreamedNetwork(TiledNetwork[StreamedNetworkConfig]):
    """Each thread block computes all layers for its share of the inputs, tile by tile; or its share of every layer.

    If blocks share the layers, no tile is cut off at a block's last inputs, and inputs that live are gathered from all
    blocks, so that few of them still fill tiles. Neurons go from one buffer in device memory to another. Groups and
    tiles are those of `fused_network`. A block of 16 neurons is contiguous in memory; asynchronous copies load it for
    the warp that multiplies it. Scratch memory has 4 bytes for each input and neuron.
    """

    name = "streamed_network"
    summary = "Sparse networks on tensor cores for any width, neurons in device memory"
    source = (
        "layer by layer with active inputs gathered on the device: Hidayetoğlu et al., HPEC 2020, section III; "
        "grouping and tiles for tensor cores are sparsegen's own"
    )
    template = "sparse_network/streamed_network.cu.j2"
    entry = "streamed_network"
    size_names = ("n", "neurons", "outputs", "layers", "positions")
    packed_names = ("layer_table", "places", "pairs", "general", "blocks", "input_places", "values")
    scratch_names = ("tiles", "numbers")
    config_type = StreamedNetworkConfig

    def constraints(
        self, problem: SparseNetworkProblem, config: StreamedNetworkConfig, device: Device
    ) -> Iterator[Constraint]:
        c = config
        yield from self.scope(problem)
        yield capable(device, STORED_FRAGMENTS)
        yield shared_memory_fits("stages of all warps", self._shared_bytes(c), device)
        yield enough_registers(self._registers(c), WARP * c.warps, at_a_time=8)
        yield from drops_inputs(problem, c)

    @staticmethod
    def _registers(config: StreamedNetworkConfig) -> int:
        """The registers of a thread: two blocks and the sums of a tile, and addresses."""
        return config.inputs + OTHER_REGISTERS

    @staticmethod
    def _shared_bytes(config: StreamedNetworkConfig) -> int:
        """The bytes of all warps' pipeline stages, of the neurons that they store, and of the inputs found alive."""
        of_warp = (config.stages + 1) * SIDE * 2 * config.inputs
        return config.warps * (of_warp + config.inputs // 2)

    def is_worth_trying(
        self, problem: SparseNetworkProblem, config: StreamedNetworkConfig, device: Device
    ) -> bool:
        return config.warps * config.run <= max(4, groups_of(problem))

    def pack(
        self, problem: SparseNetworkProblem, config: StreamedNetworkConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        tiles = network_tiles(problem, matrix, config.run, config.warps * config.run)
        room = problem.n + WIDEST_TILE * min(MOST_BLOCKS, -(-problem.n // LEAST_OF_A_BLOCK))
        own = {"places": tiles.places, "pairs": tiles.pairs}
        numbers = 8 * problem.n
        if config.sharing == Sharing.LAYERS:
            whole = -(-problem.n // config.inputs)
            room = whole * config.inputs
            numbers = (
                4 + 12 * problem.n + 8 * whole
            )  # a counter; numbers of inputs, now and then, lists of the living
        scratch = {"tiles": 4 * (tiles.positions + SPARE_ROWS) * room, "numbers": numbers}
        return self.packed(problem, matrix, tiles, own, scratch)

    def launch(
        self,
        problem: SparseNetworkProblem,
        config: StreamedNetworkConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        shared = self._shared_bytes(config)
        if config.sharing == Sharing.LAYERS:
            groups = groups_of(problem) * -(-problem.n // config.inputs)
            blocks = max(1, min(device.multiprocessors, -(-groups // config.warps)))
            return replace(launch_of(problem, blocks, config.warps, shared), together=True)
        blocks = min(device.multiprocessors, MOST_BLOCKS, -(-problem.n // LEAST_OF_A_BLOCK))
        return launch_of(problem, blocks, config.warps, shared)

    def analytic_us(
        self, problem: SparseNetworkProblem, features: Features, config: StreamedNetworkConfig, device: Device
    ) -> float:
        """The time of reading neurons by groups and writing them once, by the rate of copies or that of a
        multiprocessor; or of few inputs that of the groups, as in `fused_network`.
        """
        c, rates = config, device.expected_rates
        inputs = problem.n * living(problem)
        neurons = problem.layers * positions_of(problem) * inputs
        shared = tiles_of_a_group(problem, features)
        copied = neurons * problem.dtype.itemsize * (1 + (shared if shared > 2 else BLOCKS_LOADED))
        if c.sharing == Sharing.LAYERS:
            tiles = max(1.0, inputs / c.inputs) / device.multiprocessors
            waiting = LAYER_US * problem.layers
        else:
            tiles = living(problem) * -(-problem.n // (device.multiprocessors * c.inputs))
            waiting = 0.0
        groups = problem.layers * groups_of(problem) * tiles
        cycles = groups * group_cycles(shared, c.inputs)
        moving = copied / (NEURON_BYTES_PER_CYCLE * device.multiprocessors)
        return (
            rates.launch_us
            + waiting
            + max(copied / rates.copy_bytes_per_us, max(moving, cycles) / rates.clock_mhz)
        )

    def heuristic(
        self, problem: SparseNetworkProblem, features: Features, device: Device
    ) -> StreamedNetworkConfig:
        """The widest tile, and runs such that all warps have one; 16 warps would leave a thread too few registers.

        All thread blocks share each layer where inputs die, and of layers that no cluster keeps: on an H100, 65536
        neurons, 27.1 ms so and 45.2 where each keeps to its inputs (24 layers, inputs die), 19.1 and 20.1 (16 layers,
        all 8448 live).
        """
        shares_layers = dies(problem) or problem.neurons > MOST_IN_A_CLUSTER
        sharing = Sharing.LAYERS if shares_layers else Sharing.INPUTS
        groups = groups_of(problem)
        warps = min(8, warps_for(groups))
        run = run_for(groups // warps, 8)
        return StreamedNetworkConfig(
            warps=warps, run=run, stages=6, sharing=sharing.value, **dropped(problem)
        )


FAMILY = StreamedNetwork()
