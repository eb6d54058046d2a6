"""Sparse networks on tensor cores whose layers are too wide for shared memory: neurons are in device memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.limits import capable, enough_registers, shared_memory_fits
from sparsegen.kernels.layouts.network_tiles import PAIR, network_tiles, positions_of
from sparsegen.kernels.layouts.tile_groups import SIDE
from sparsegen.kernels.network.network_family import (
    STORED_FRAGMENTS,
    TiledNetwork,
    checks_tunable,
    dies,
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
    warps_for,
)
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators.sparse_network import SparseNetworkProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div, round_up

WIDEST_TILE = 64  # inputs
LEAST_OF_A_BLOCK = 16
MOST_BLOCKS = 256
LINE = 128  # bytes
WEIGHT_SLOTS = 2  # slots of a warp: runs whose weights are in shared memory
MOST_BATCH_BYTES = 64 << 20  # bytes of neurons between layers
MOST_SETS = 4  # sets of a batch
SET_TILES = (1, 2, 3, 4, 8, 16)
STAGES = (2, 3, 4, 6, 8, 12)
COUNTER_WORDS = 32  # words from one counter of the grid to the next
SPARE_ROWS = 16  # spare rows of a buffer
LEAST_SHARED = 8192  # neurons of layers that all blocks share though no input dies
BLOCKS_LOADED = 1.125  # blocks loaded for each group on average, if it has two
OTHER_REGISTERS = 60
# Most bytes of neurons that a multiprocessor reads and writes in a cycle. Measured on an H200, 65536 neurons, tiles of
# 64 inputs: three quarters of what a copy gets there, and about what a copy gets on an H100.
NEURON_BYTES_PER_CYCLE = 11.0
# Least time of a batch's layer: all blocks of a grid meet, then load blocks of neurons again. On an H100 a
# layer of two sets takes 7.4 µs, of four 12.9, which have more work than that.
MEETING_US = 4.0


class Sharing(StrEnum):
    """The work that thread blocks divide among themselves."""

    INPUTS = "inputs"  # each takes some of them through all layers, and never waits
    LAYERS = (
        "layers"  # each takes some of every layer for a batch of inputs, and waits for all others behind it
    )


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
        STAGES,
        "pipeline stages: blocks of neurons in a warp's shared memory; the next ones load while one is used",
    )
    sharing: str = tunable(
        Sharing.INPUTS.value,
        tuple(sharing.value for sharing in Sharing),
        "what thread blocks share: the inputs, or each layer, behind which all of them wait for one another",
        packs=True,
    )
    sets: int = tunable(
        1,
        (1, 2, 3, 4),
        "sets of tiles that go through the layers together as a batch; blocks compute one while they wait for another",
    )
    set_tiles: int = tunable(1, SET_TILES, "tiles of a set", searched=(1, 2, 4, 8, 16))
    first_check: int = first_check_tunable(0, 3, 4, 5, 6, 8)
    checks: int = checks_tunable()


def batch_bytes(problem: SparseNetworkProblem, inputs: int) -> int:
    """Bytes of the neurons between layers, those before and behind one, of ``inputs`` inputs."""
    return 4 * (positions_of(problem) + SPARE_ROWS) * inputs


def places_of(inputs: int) -> int:
    """The places that tiles of any width have for inputs: the last tile has rows for 16, 32 or 64 of them."""
    rest = inputs % WIDEST_TILE
    return inputs - rest + next(width for width in (0, 16, 32, WIDEST_TILE) if rest <= width)


def most_of_batches(problem: SparseNetworkProblem) -> int:
    """The bytes that a batch's neurons may have: about what an L2 holds, or one tile, or what all inputs have."""
    whole = batch_bytes(problem, places_of(problem.n))
    return min(max(MOST_BATCH_BYTES, batch_bytes(problem, WIDEST_TILE)), whole)


class StreamedNetwork(TiledNetwork[StreamedNetworkConfig]):
    """Each thread block computes all layers for its share of the inputs, tile by tile; or its share of every layer.

    If blocks share the layers, a batch of tiles goes through all of them before the next batch does, between two
    buffers that stay in the L2. Blocks have a split barrier for each set of a batch's tiles: they compute one set while
    they wait for another. Producer warps load blocks of neurons and runs' weights by bulk copies. No tile is cut off
    at a block's last inputs, and inputs that live are gathered from all blocks, so that few of them still fill tiles.

    Groups and tiles are those of `fused_network`. A block of 16 neurons is contiguous in memory and swizzled there.
    Scratch memory has 2 or 4 bytes for each input and neuron.
    """

    name = "streamed_network"
    summary = "Sparse networks on tensor cores for any width, neurons in device memory"
    source = (
        "layer by layer with active inputs gathered on the device: Hidayetoğlu et al., HPEC 2020, section III; "
        "grouping and tiles for tensor cores are sparsegen's own"
    )
    size_names = ("n", "neurons", "outputs", "layers", "positions")
    packed_names = ("layer_table", "places", "pairs", "general", "blocks", "input_places", "values")
    scratch_names = ("tiles", "numbers")

    def constraints(
        self, problem: SparseNetworkProblem, config: StreamedNetworkConfig, device: Device
    ) -> Iterator[Constraint]:
        c = config
        yield from self.scope(problem)
        yield capable(device, STORED_FRAGMENTS)
        yield shared_memory_fits("stages of all warps", self._shared_bytes(c), device)
        yield enough_registers(self._registers(c), WARP * self._block_warps(c), at_a_time=8)
        yield Constraint(
            c.sharing == Sharing.LAYERS or (c.sets == 1 and c.set_tiles == 1),
            f"tiles are in sets (sets {c.sets}, set_tiles {c.set_tiles}; else 1 and 1) only where blocks share layers "
            f"(sharing {c.sharing})",
        )
        yield from drops_inputs(problem, c)
        yield _batch_fits(problem, c)

    @staticmethod
    def _registers(config: StreamedNetworkConfig) -> int:
        """The registers of a thread: two blocks and the sums of a tile, and addresses."""
        return config.inputs + OTHER_REGISTERS

    @staticmethod
    def _block_warps(config: StreamedNetworkConfig) -> int:
        """The warps of a block: those that multiply, and where blocks share layers, producers that load what they need
        and two that tell the grid what was done and wait for it.
        """
        if config.sharing != Sharing.LAYERS:
            return config.warps
        return config.warps + (2 if config.warps > 4 else 1) + 2

    @staticmethod
    def _shared_bytes(config: StreamedNetworkConfig) -> int:
        """The bytes of all warps' pipeline stages, of the neurons that they store, and of the inputs found alive."""
        of_warp = (config.stages + 1) * SIDE * 2 * config.inputs
        alive = StreamedNetwork._block_warps(config) * (config.inputs // 8) * 4
        if config.sharing != Sharing.LAYERS:
            return config.warps * of_warp + alive
        slot = round_up(config.run * (2 * PAIR + 4 * SIDE), LINE)
        barriers = config.warps * 2 * (config.stages + WEIGHT_SLOTS) + 2 * config.sets
        return config.warps * (of_warp + WEIGHT_SLOTS * slot) + alive + 8 * barriers

    def is_worth_trying(
        self, problem: SparseNetworkProblem, config: StreamedNetworkConfig, device: Device
    ) -> bool:
        """True unless the warps take more groups at a time than a layer has: the others would idle."""
        return config.warps * config.run <= max(4, groups_of(problem))

    def pack(
        self, problem: SparseNetworkProblem, config: StreamedNetworkConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        tiles = network_tiles(problem, matrix, config.run, config.warps * config.run)
        room = problem.n + WIDEST_TILE * min(MOST_BLOCKS, ceil_div(problem.n, LEAST_OF_A_BLOCK))
        own = {"places": tiles.places, "pairs": tiles.pairs}
        numbers = 8 * problem.n
        scratch_bytes = 4 * (tiles.positions + SPARE_ROWS) * room
        if config.sharing != Sharing.INPUTS:
            most = ceil_div(problem.n, LEAST_OF_A_BLOCK)  # tiles; configs with others share what is packed
            # Behind the last layer, and where inputs are gathered before one; and of a batch, twice between layers.
            room = places_of(problem.n) * (2 if dies(problem) else 1)
            # Counters; numbers of inputs, now and then, lists of the living.
            numbers = 4 * COUNTER_WORDS * (1 + MOST_SETS) + 12 * problem.n + 8 * most
            scratch_bytes = 2 * (tiles.positions + SPARE_ROWS) * room + most_of_batches(problem)
        scratch = {"tiles": scratch_bytes, "numbers": numbers}
        return self.packed(problem, matrix, tiles, own, scratch)

    def launch(
        self,
        problem: SparseNetworkProblem,
        config: StreamedNetworkConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        shared = self._shared_bytes(config)
        if config.sharing != Sharing.INPUTS:
            groups = groups_of(problem) * ceil_div(problem.n, config.inputs)
            blocks = max(1, min(device.multiprocessors, ceil_div(groups, config.warps)))
            return replace(launch_of(problem, blocks, self._block_warps(config), shared), together=True)
        blocks = min(device.multiprocessors, MOST_BLOCKS, ceil_div(problem.n, LEAST_OF_A_BLOCK))
        return launch_of(problem, blocks, config.warps, shared)

    def analytic_us(
        self, problem: SparseNetworkProblem, features: Features, config: StreamedNetworkConfig, device: Device
    ) -> float:
        """The time of reading neurons by groups and writing them once, by the rate of a multiprocessor and, where
        neurons are in device memory between layers, by that of copies; or of few inputs that of the groups, as in
        `fused_network`. Blocks that share layers also read the inputs first, and meet behind each layer of a batch.
        """
        c, rates = config, device.expected_rates
        inputs = problem.n * living(problem)
        neurons = problem.layers * positions_of(problem) * inputs
        shared = tiles_of_a_group(features)
        copied = neurons * problem.dtype.itemsize * (1 + (shared if shared > 2 else BLOCKS_LOADED))
        shares_layers = c.sharing == Sharing.LAYERS
        if shares_layers:
            tiles = max(1.0, inputs / c.inputs) / device.multiprocessors
        else:
            tiles = living(problem) * ceil_div(problem.n, device.multiprocessors * c.inputs)
        groups = problem.layers * groups_of(problem) * tiles
        cycles = groups * group_cycles(shared, c.inputs)
        moving = copied / (NEURON_BYTES_PER_CYCLE * device.multiprocessors)
        us = max(moving, cycles) / rates.clock_mhz
        if not shares_layers:
            return rates.launch_us + max(us, copied / rates.copy_bytes_per_us)
        batches = math.ceil(max(1.0, inputs / (c.inputs * c.sets * c.set_tiles)))
        reading = problem.n * problem.neurons * problem.dtype.itemsize / rates.copy_bytes_per_us
        return rates.launch_us + reading + max(us, MEETING_US * problem.layers * batches)

    def heuristic(
        self, problem: SparseNetworkProblem, features: Features, device: Device
    ) -> StreamedNetworkConfig:
        """All thread blocks share each layer where inputs die, and of wide layers: on an H100, 16 layers of 65536
        neurons, 8448 inputs that live, they take 14.5 ms so, and 20.1 where each block keeps to its inputs.

        A batch has four sets of tiles of 32 inputs, each of as many tiles as the grid's warps need. Runs are such that
        all warps have one; 16 warps would leave a thread too few registers.
        """
        groups = groups_of(problem)
        warps = min(8, warps_for(groups))
        run = run_for(groups // warps, 8)
        config = StreamedNetworkConfig(warps=warps, run=run, stages=6, **dropped(problem))
        if not dies(problem) and problem.neurons < LEAST_SHARED:
            return self._with_stages(config, device)
        run = min(run, 4)
        wanted = max(1, warps * device.multiprocessors * run // max(1, groups))
        set_tiles = max(tiles for tiles in SET_TILES if tiles <= wanted)
        config = replace(
            config, inputs=32, run=run, stages=12, sharing=Sharing.LAYERS.value, sets=4, set_tiles=set_tiles
        )
        smaller = (replace(config, sets=sets, set_tiles=tiles) for sets, tiles in ((4, 1), (2, 1), (1, 1)))
        fitting = first_that_fits((config, *smaller), lambda c: _batch_fits(problem, c).holds)
        return self._with_stages(fitting, device)

    def _with_stages(self, config: StreamedNetworkConfig, device: Device) -> StreamedNetworkConfig:
        """The config with as many pipeline stages, of as wide tiles, as a block's shared memory has room for."""
        fewer = (
            replace(config, inputs=inputs, stages=stages)
            for inputs in sorted({config.inputs, min(32, config.inputs), 16}, reverse=True)
            for stages in reversed(STAGES)
            if stages <= config.stages
        )
        return first_that_fits(fewer, lambda c: self._shared_bytes(c) <= device.shared_memory_per_block)


def _batch_fits(problem: SparseNetworkProblem, config: StreamedNetworkConfig) -> Constraint:
    """Neurons of a batch are in the scratch memory that every config has."""
    c = config
    inputs = min(c.sets * c.set_tiles * c.inputs, places_of(problem.n))
    batch, most = batch_bytes(problem, inputs), most_of_batches(problem)
    return Constraint(
        c.sharing != Sharing.LAYERS or batch <= most,
        f"neurons of a batch, twice ({c.sets} x {c.set_tiles} tiles of {c.inputs} inputs, {batch} bytes), are at most "
        f"{most} bytes",
    )


FAMILY = StreamedNetwork()
