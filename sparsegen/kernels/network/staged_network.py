"""Sparse networks of any pattern without tensor cores: sliced ELL, and neurons staged in shared memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import one_batch_element
from sparsegen.kernels.layouts.limits import enough_registers, resident_blocks_fit, shared_memory_fits
from sparsegen.kernels.layouts.padding import empty_as_padding
from sparsegen.kernels.network.network_family import (
    checks_tunable,
    dies,
    dropped,
    drops_inputs,
    first_check_tunable,
    launch_of,
    living,
    network_constants,
    offsets_of,
    stored_values,
)
from sparsegen.kernels.network.staged_slices import bias_sources, staged_slices
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators.sparse_network import BIAS_COLUMNS, Activation, SparseNetworkProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

BANK_BYTES = 128  # bytes that shared memory delivers in a cycle
VECTOR_BYTES = (4, 8, 16)
INPUTS_AT_A_TIME = 9600  # inputs with tiles in device memory
MOST_OF_A_MINIBATCH = 32
BUFFERS = (128, 256, 512, 1024, 2048, 4096)
OTHER_REGISTERS = 40
# Cycles of shared memory for each that neurons take at best, as measured.
IN_COLUMN_ORDER, BY_BANKS = 3.2, 2.65
OVERHEAD = 8  # instructions for each weight and thread, beside those for each input
# Microseconds beside that, of each buffer and each weight of a row: on an H200.
STAGED_US, WEIGHT_US = 2.0, 0.03
LONGEST = 8.0  # standard deviations by which the longest row of a block is longer than the mean
SPREAD = 2.0  # standard deviations by which the longest of 32 lanes is longer than the mean


@dataclass(frozen=True)
class StagedNetworkConfig(Config):
    """One point of the tuning space of `StagedNetwork`."""

    minibatch: int = tunable(
        16,
        (4, 8, 12, 16, 24, 32),
        "inputs at a time, whose sums a thread keeps in registers",
        searched=(8, 16, 32),
    )
    vector: int = tunable(
        8,
        (1, 2, 4, 8),
        "inputs of a minibatch that are side by side in shared memory and read at once; as published 1",
        packs=True,
    )
    buffer: int = tunable(
        1024,
        BUFFERS,
        "neurons staged in shared memory at a time",
        searched=(512, 1024, 2048, 4096),
        packs=True,
    )
    warps: int = tunable(
        16, (4, 8, 16, 32), "warps of a block, each of whose threads computes a neuron", packs=True
    )
    resident_blocks: int = tunable(2, (1, 2, 4), "blocks that share a multiprocessor")
    staging: str = tunable(
        "vectors",
        ("vectors", "neurons"),
        "what a thread loads to shared memory at a time: a vector of a neuron, or as published all of a neuron",
    )
    order: str = tunable(
        "banks",
        ("columns", "banks"),
        "of a row's weights: by columns, as published, or such that neighbouring lanes read different banks",
        packs=True,
    )
    first_check: int = first_check_tunable(0, 3, 5, 8)
    checks: int = checks_tunable(1, 3, 6)


class StagedNetwork(Family[SparseNetworkProblem, StagedNetworkConfig]):
    """Each thread block computes all layers for its share of the inputs, a minibatch at a time.

    A thread computes one neuron for the whole minibatch. The neurons before that any thread of the block takes are
    staged in shared memory, one buffer after another, and weights name them by their places there, in 16 bits. Between
    layers neurons are in device memory, where those of a narrow network stay in the L2. Nothing is asked of the
    pattern: rows need not share columns, and a row of any length only pads those of its warp.
    """

    name = "staged_network"
    summary = "Sparse networks of any pattern, neurons staged in shared memory"
    source = (
        "Hidayetoğlu et al., At-Scale Sparse Deep Neural Network Inference with Efficient GPU Implementation, "
        "HPEC 2020, section III; one launch for all layers, vectors and the order by banks are sparsegen's own"
    )
    size_names = ("n", "neurons", "outputs", "layers", "bias_values")
    packed_names = ("buffers", "maps", "map", "slices", "index", "values")
    scratch_names = ("tiles", "kept", "numbers")

    def scope(self, problem: SparseNetworkProblem) -> Iterator[Constraint]:
        yield one_batch_element(problem)

    def constraints(
        self, problem: SparseNetworkProblem, config: StagedNetworkConfig, device: Device
    ) -> Iterator[Constraint]:
        c = config
        yield from self.scope(problem)
        nbytes = c.vector * problem.dtype.itemsize
        yield Constraint(
            nbytes in VECTOR_BYTES,
            f"a vector ({c.vector}) of {problem.dtype} has 4, 8 or 16 bytes, not {nbytes}",
        )
        yield Constraint(
            c.minibatch % c.vector == 0, f"minibatch ({c.minibatch}) is a multiple of vector ({c.vector})"
        )
        taken = self._shared_bytes(problem, c)
        yield shared_memory_fits("staged neurons", taken, device)
        yield resident_blocks_fit(c.resident_blocks, taken, device)
        yield enough_registers(
            c.minibatch + c.vector + OTHER_REGISTERS, WARP * c.warps * c.resident_blocks, at_a_time=8
        )
        yield from drops_inputs(problem, c)

    @staticmethod
    def _shared_bytes(problem: SparseNetworkProblem, config: StagedNetworkConfig) -> int:
        """The bytes of the staged neurons, plane after plane, one for each vector of a minibatch, and of what is alive.

        A plane is longer than the buffer, such that what is stored together meets different banks.
        """
        planes, nbytes = ceil_div(config.minibatch, config.vector), config.vector * problem.dtype.itemsize
        pitch = config.buffer + ceil_div(ceil_div(BANK_BYTES, nbytes), planes)
        return planes * pitch * nbytes + 2 * 4 * config.warps

    @staticmethod
    def _vector(problem: SparseNetworkProblem, minibatch: int) -> int:
        """The largest vector of a minibatch."""
        most = VECTOR_BYTES[-1] // problem.dtype.itemsize
        return min(most, minibatch & -minibatch)

    def is_worth_trying(
        self, problem: SparseNetworkProblem, config: StagedNetworkConfig, device: Device
    ) -> bool:
        """True for the widest loads, and for buffers and blocks that are not twice as large as a layer: the rest of
        them would be empty.
        """
        widest = 2 * max(1, problem.neurons)
        return (
            config.vector == self._vector(problem, config.minibatch)
            and config.buffer <= max(128, widest)
            and WARP * config.warps <= max(128, widest)
        )

    def constants(self, problem: SparseNetworkProblem, config: StagedNetworkConfig) -> Mapping[str, Value]:
        return network_constants(problem)

    def pack(
        self, problem: SparseNetworkProblem, config: StagedNetworkConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        in_banks = BANK_BYTES // (config.vector * problem.dtype.itemsize)
        classes = in_banks if config.order == "banks" else 1
        slices = staged_slices(problem, matrix, WARP * config.warps, config.buffer, classes)
        biases = bias_sources(problem, matrix).ravel()
        source = empty_as_padding(np.concatenate((biases, slices.source)))
        values = stored_values(problem, matrix, source)
        dying = dies(problem)
        tile = 2 * max(problem.neurons, problem.outputs) * problem.dtype.itemsize
        return Packed(
            arrays={
                "buffers": offsets_of(slices.buffers),
                "maps": offsets_of(slices.staged),
                "map": empty_as_one(slices.neurons),
                "slices": offsets_of(slices.places),
                "index": empty_as_one(slices.index),
                "values": values,
            },
            sizes={
                "neurons": problem.neurons,
                "outputs": problem.outputs,
                "layers": problem.layers,
                "bias_values": biases.size,
            },
            nnz=matrix.nnz,
            values="values",
            value_source=lambda: source,
            scratch={
                "tiles": tile * min(INPUTS_AT_A_TIME, problem.n + MOST_OF_A_MINIBATCH),
                "kept": max(1, problem.n * problem.neurons * dying) * problem.dtype.itemsize,
                "numbers": 4 * max(1, problem.n * dying),
            },
        )

    def launch(
        self,
        problem: SparseNetworkProblem,
        config: StagedNetworkConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        blocks = self._blocks(problem, config, device)
        return launch_of(problem, blocks, config.warps, self._shared_bytes(problem, config))

    @staticmethod
    def _blocks(problem: SparseNetworkProblem, config: StagedNetworkConfig, device: Device) -> int:
        """Returns the number of blocks: as many as are resident at once and have a minibatch each, within the scratch
        memory.
        """
        resident = device.multiprocessors * config.resident_blocks
        return min(resident, INPUTS_AT_A_TIME // config.minibatch, ceil_div(problem.n, config.minibatch))

    def analytic_us(
        self, problem: SparseNetworkProblem, features: Features, config: StagedNetworkConfig, device: Device
    ) -> float:
        """The longest of what shared memory, issue slots and the L2 take for weights and staged neurons."""
        c, itemsize = config, problem.dtype.itemsize
        if not (problem.neurons and problem.m):
            return device.expected_rates.launch_us
        blocks = self._blocks(problem, c, device)
        # Whole minibatches of the blocks that a multiprocessor holds, one after the other.
        passes = ceil_div(ceil_div(problem.n, blocks) * living(problem), c.minibatch)
        together = ceil_div(blocks, device.multiprocessors)
        inputs = passes * c.minibatch * together * device.multiprocessors
        degree = max(0.0, features.row_mean - BIAS_COLUMNS)
        rows = WARP * c.warps
        staged = min(problem.neurons, rows * degree)
        buffers = max(1.0, staged / c.buffer)
        run = max(degree / buffers, 1e-3)
        deviation = math.sqrt(run * (1 - 1 / buffers) + (features.row_cov * run) ** 2)
        weights = problem.m * degree * (1 + SPREAD * deviation / run)
        conflicts = BY_BANKS if c.order == "banks" else IN_COLUMN_ORDER
        shared = conflicts * itemsize / BANK_BYTES
        issued = (1 + (itemsize < 4) + OVERHEAD / c.minibatch) / (4 * WARP)
        computed = weights * inputs * max(shared, issued) / device.cycles_per_us
        loaded = weights * (2 + itemsize) / c.minibatch + problem.m / rows * staged * itemsize
        # Of every block of rows: barriers, the first loads of its buffers, and its longest row, weight by weight.
        longest = min(float(features.row_max), degree + LONGEST * features.row_cov * degree)
        row_blocks = problem.layers * ceil_div(problem.neurons, rows)
        waiting = passes * row_blocks * (buffers * STAGED_US + longest * WEIGHT_US)
        return (
            device.expected_rates.launch_us
            + waiting
            + max(computed, loaded * inputs / device.l2_bytes_per_us)
        )

    def heuristic(
        self, problem: SparseNetworkProblem, features: Features, device: Device
    ) -> StagedNetworkConfig:
        """Returns the config with the least expected time: with buffers of all neurons, or the largest that fit."""
        smallest = StagedNetworkConfig(
            minibatch=4, vector=self._vector(problem, 4), buffer=BUFFERS[0], warps=4, resident_blocks=1
        )
        smallest = replace(smallest, **dropped(problem))
        return self.fastest(problem, features, (*self._usual(problem, device), smallest), device)

    def _usual(self, problem: SparseNetworkProblem, device: Device) -> Iterator[StagedNetworkConfig]:
        """Valid configs of every minibatch and several blocks, each with the largest useful buffer that fits."""
        needed = next((b for b in BUFFERS if b >= problem.neurons), BUFFERS[-1])
        useful = [b for b in reversed(BUFFERS) if b <= needed]
        for minibatch, warps, resident in itertools.product((16, 8, 24, 32, 12, 4), (16, 8, 32), (2, 1)):
            if warps > 4 and WARP * warps > max(512, problem.neurons):
                continue
            config = StagedNetworkConfig(
                minibatch=minibatch,
                vector=self._vector(problem, minibatch),
                warps=warps,
                resident_blocks=resident,
                **dropped(problem),
            )
            for found in (replace(config, buffer=buffer) for buffer in useful):
                if self.is_valid(problem, found, device):
                    yield found
                    break

    def published(self, problem: SparseNetworkProblem) -> tuple[StagedNetworkConfig, ...]:
        """Minibatches of 12 (section III-A1); inputs that are able to die are dropped between layers (IV-C).

        The paper leaves open how large blocks and buffers are: 256 threads and 24 KB, as in the authors' code.
        """
        one = StagedNetworkConfig(
            minibatch=12,
            vector=1,
            buffer=512,
            warps=8,
            resident_blocks=4,
            staging="neurons",
            order="columns",
            first_check=0,
            checks=1,
        )
        return (
            replace(one, first_check=1, checks=6) if problem.activation is Activation.DYING_RELU else one,
        )


FAMILY = StagedNetwork()
