"""Sparse networks on tensor cores, all layers in one launch: a tile of inputs stays in shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.limits import capable, enough_registers, shared_memory_fits
from sparsegen.kernels.layouts.network_tiles import network_tiles, positions_of
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
    traits_of_tiles,
    warps_for,
)
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators.sparse_network import SparseNetworkProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

MOST_NEURONS = 4096  # blocks have 8 bits
CONTROL_BYTES = 1024
TWO_BUFFERS = 56  # inputs of a tile, at most, which two buffers hold; more are in a ring
PAIR_INPUTS = 16  # inputs of two chunks
PAIR = 2  # tiles of a group, in layers that a ring suits
RING_CYCLES = 1.3  # times those of tiles in two buffers for an input; measured on an H100, 1024 neurons
RING_RUN = (
    4  # groups of a warp, at most, in a layer of a ring: all their weights and results are in registers
)
OTHER_REGISTERS = 28
FIRST_CHECK = 6  # for inputs that die; on an H100, 1024 neurons, it took 1.4 % less time than 5
CHECKS = 2  # there; it took 1.4 % less time than 3
LEAST_REST = 16  # inputs of a tile that is not full; measured on an H200 with 8 whole tiles of 56 before it


@dataclass(frozen=True)
class FusedNetworkConfig(Config):
    """One point of the tuning space of `FusedNetwork`."""

    inputs: int = tunable(
        56,
        (8, 24, 40, 56, 96),
        "inputs of a tile, which goes through all layers together; more than 56 are in a ring of pairs of chunks, of "
        "which one is free, and not in two buffers",
        searched=(40, 56, 96),
    )
    warps: int = tunable(16, (4, 8, 16), "warps of a block", packs=True)
    run: int = run_tunable(4, (1, 2, 4, 8))
    parts: int = tunable(
        2,
        (1, 2),
        "of a tile, each with a barrier of its own, so that warps seldom wait at the end of a layer",
    )
    rest: int = tunable(
        0,
        (0, 16, 32, 56),
        "inputs at least in a tile that is not full: blocks take whole tiles, and few of them what is left; 0: all "
        "blocks take as many inputs",
    )
    biases: str = tunable(
        "added",
        ("added", "multiplied"),
        "biases are what sums begin with, handed round by shuffles, or one more product, of their parts and what "
        "these count",
    )
    ahead: int = tunable(
        0,
        (0, 32),
        "inputs of the largest tile for which the weights of two passes are on their way while one is computed",
        packs=True,
    )
    first_check: int = first_check_tunable(0, 4, 5, 6, 8)
    checks: int = checks_tunable()


class FusedNetwork(TiledNetwork[FusedNetworkConfig]):
    """A block takes its share of the inputs, tile by tile, through all layers; no neuron leaves the multiprocessor.

    An inspector puts rows that share columns in groups of 16 (`tile_groups`): the 16 × 16 tiles of their weights are
    operands of tensor cores, read as general numbers. Neurons are renumbered between layers such that a block is 16
    rows of shared memory in a row, and so that neither reading nor writing meets bank conflicts.
    """

    name = "fused_network"
    summary = "Sparse networks on tensor cores, all layers fused, in shared memory"
    source = (
        "one kernel over all layers of an input that fits the processor: as Hidayetoğlu et al., HPEC 2020, section "
        "III-C leaves it open; grouping, renumbering by edge colouring and tiles for tensor cores are sparsegen's own"
    )
    size_names = ("n", "neurons", "outputs", "layers", "positions")
    packed_names = ("layer_table", "places", "general", "blocks", "input_places", "values")

    def scope(self, problem: SparseNetworkProblem) -> Iterator[Constraint]:
        yield from super().scope(problem)
        yield Constraint(
            max(problem.neurons, problem.outputs) <= MOST_NEURONS,
            f"a layer's neurons ({max(problem.neurons, problem.outputs)}) are at most {MOST_NEURONS}",
        )

    def constraints(
        self, problem: SparseNetworkProblem, config: FusedNetworkConfig, device: Device
    ) -> Iterator[Constraint]:
        c = config
        yield from self.scope(problem)
        yield capable(device, STORED_FRAGMENTS)
        yield shared_memory_fits("two buffers of neurons", self._shared_bytes(problem, c), device)
        yield Constraint(
            c.parts == 1 or c.inputs > 8, f"parts ({c.parts}) of inputs ({c.inputs}) have 8 inputs each"
        )
        yield Constraint(
            c.rest == 0 or not dies(problem),
            f"what is left is for few blocks (rest {c.rest}) where all inputs live ({problem.activation})",
        )
        yield Constraint(c.rest <= c.inputs, f"rest ({c.rest}) is at most a tile ({c.inputs})")
        yield enough_registers(self._registers(c), WARP * c.warps, at_a_time=8)
        yield Constraint(
            c.ahead == 0 or c.biases == "multiplied",
            f"what is ahead (ahead {c.ahead}) has biases as products (biases {c.biases})",
        )
        yield Constraint(
            not in_ring(c) or c.biases == "multiplied",
            f"tiles in a ring (inputs {c.inputs}) have biases as products (biases {c.biases})",
        )
        yield Constraint(
            not in_ring(c) or not dies(problem),
            f"tiles in a ring (inputs {c.inputs}) are for inputs that all live ({problem.activation})",
        )
        yield Constraint(
            not in_ring(c) or c.rest == 0,
            f"tiles in a ring (inputs {c.inputs}) share what there is evenly (rest {c.rest})",
        )
        yield Constraint(
            not in_ring(c) or (groups_of(problem) <= c.warps * c.run and 2 <= c.run <= RING_RUN),
            f"a layer of tiles in a ring (inputs {c.inputs}) is one pass of its {groups_of(problem)} groups, 2 to "
            f"{RING_RUN} for a warp (warps {c.warps}, run {c.run})",
        )
        yield from drops_inputs(problem, c)

    @staticmethod
    def _registers(config: FusedNetworkConfig) -> int:
        """Weights of a run, what is loaded beside them, two blocks and sums of a part's tiles, and addresses."""
        tiles = ceil_div(ceil_div(min(config.inputs, TWO_BUFFERS), 8), config.parts)
        return 11 * config.run + 8 * tiles + OTHER_REGISTERS

    @staticmethod
    def _shared_bytes(problem: SparseNetworkProblem, config: FusedNetworkConfig) -> int:
        rows = positions_of(problem) + 1
        if in_ring(config):
            return rows * 2 * (config.inputs + PAIR_INPUTS) + CONTROL_BYTES
        return 2 * rows * 2 * config.inputs + CONTROL_BYTES

    def is_worth_trying(
        self, problem: SparseNetworkProblem, config: FusedNetworkConfig, device: Device
    ) -> bool:
        """True unless the warps take more groups at a time than a layer has, and the others would idle; and for runs of
        groups, which share loads of inputs.
        """
        return config.warps * config.run <= max(4, groups_of(problem)) and config.run > 1

    def constants(self, problem: SparseNetworkProblem, config: FusedNetworkConfig) -> Mapping[str, Value]:
        return {**super().constants(problem, config), **traits_of_tiles(problem)}

    def pack(
        self, problem: SparseNetworkProblem, config: FusedNetworkConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        tiles = network_tiles(
            problem, matrix, config.run, config.warps * config.run, 2 if config.ahead else 1
        )
        places = tiles.places | _in_upper_half(tiles.pairs, len(tiles.places))
        scratch = self.kept(problem, tiles.positions)
        return self.packed(problem, matrix, tiles, {"places": places}, scratch)

    def launch(
        self,
        problem: SparseNetworkProblem,
        config: FusedNetworkConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        of_a_block = config.inputs if in_ring(config) else 8  # at least
        blocks = min(device.multiprocessors, ceil_div(problem.n, of_a_block))
        return launch_of(problem, blocks, config.warps, self._shared_bytes(problem, config))

    def analytic_us(
        self, problem: SparseNetworkProblem, features: Features, config: FusedNetworkConfig, device: Device
    ) -> float:
        c = config
        groups = problem.layers * groups_of(problem)
        tiles = ceil_div(problem.n, device.multiprocessors * c.inputs)
        of_group = group_cycles(tiles_of_a_group(features), c.inputs)
        cycles = groups * tiles * living(problem) * of_group * (RING_CYCLES if in_ring(c) else 1.0)
        return device.expected_rates.launch_us + cycles / device.expected_rates.clock_mhz

    def heuristic(
        self, problem: SparseNetworkProblem, features: Features, device: Device
    ) -> FusedNetworkConfig:
        """A ring, or the largest tile that fits, and runs such that all warps have one.

        A ring of tiles of 96 inputs where all live, a block has more of them than two buffers hold, and all warps have
        runs of 4: on an H100, 1024 neurons, 60,000 inputs, that took 4 % less time than tiles of 56.

        Else, if all inputs live and less than 16 a block are left behind whole tiles, few blocks take them. Runs of 2
        leave registers for weights that come two passes ahead: on an H100, 1024 neurons, that took 3 % less time than
        runs of 4 with biases added, 14 % less where inputs die.
        """
        groups = groups_of(problem)
        when = dropped(problem)
        if dies(problem):
            when = {"first_check": FIRST_CHECK, "checks": CHECKS}
        ring = FusedNetworkConfig(inputs=96, warps=16, run=RING_RUN, biases="multiplied", **when)
        if (
            not dies(problem)
            and problem.n > device.multiprocessors * TWO_BUFFERS
            and 2 * groups > ring.warps * ring.run >= groups
            and tiles_of_a_group(features) <= PAIR
            and self._shared_bytes(problem, ring) <= device.shared_memory_per_block
        ):
            return ring

        def rest(inputs: int) -> int:
            tiles, left = divmod(problem.n, device.multiprocessors * inputs)
            few = tiles > 0 and 0 < left < device.multiprocessors * LEAST_REST
            return LEAST_REST if few and inputs >= LEAST_REST and not dies(problem) else 0

        configs = (
            FusedNetworkConfig(
                inputs=inputs,
                warps=warps_for(groups),
                run=run_for(groups // 16, 2),
                parts=2 if inputs > 8 else 1,
                rest=rest(inputs),
                biases="multiplied",
                ahead=32,
                **when,
            )
            for inputs in (56, 40, 24, 8)
        )
        return first_that_fits(
            configs, lambda c: self._shared_bytes(problem, c) <= device.shared_memory_per_block
        )


def in_ring(config: FusedNetworkConfig) -> bool:
    """True if tiles go through a ring of pairs of chunks, one of them free, instead of two buffers."""
    return config.inputs > TWO_BUFFERS


def _in_upper_half(pairs: Array, groups: int) -> Array:
    """uint32, groups × 1: the blocks of groups in pairs in bits 16 to 23 and above."""
    found = np.zeros((groups, 1), dtype=np.uint32)
    found[: len(pairs), 0] = pairs[:, 0].astype(np.uint32) << 16 | pairs[:, 1].astype(np.uint32) << 24
    return found


FAMILY = FusedNetwork()
