"""Shared parts of the families of sparse networks: tunables, scope, dropping of dead inputs, time of groups of
tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypedDict, TypeVar

import numpy as np

from sparsegen.kernels.base import Constraint, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import one_batch_element
from sparsegen.kernels.layouts.network_tiles import TiledLayers
from sparsegen.kernels.layouts.tile_groups import SIDE, TILE
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import DType
from sparsegen.operators.sparse_network import BIAS_COLUMNS, Activation, SparseNetworkProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

STORED_FRAGMENTS = (9, 0)  # compute capability with stmatrix
LEAST_FILLED = 1 / 8  # filled fraction of tiles; with rows that share no columns it is 1 / 16 or little more
# Cycles of a multiprocessor for a group of 16 neurons with two tiles of weights: these and addresses, and each input of
# the tile. Measured on an H100 with tiles of 8 inputs (4096 neurons) and of 56 (1024).
GROUP_CYCLES, INPUT_CYCLES = 21.7, 0.6
LIVING = 0.15  # fraction of inputs that live, over the layers of a network in which they die
VALUES_AT_ONCE = 1 << 22
FIRST_CHECKS = (0, 1, 2, 3, 4, 5, 6, 8, 12)

C = TypeVar("C", bound=Config)


class Dropping(Protocol):
    """Tunables of a config that drops dead inputs: ``checks`` times, for the first time after ``first_check``
    layers.
    """

    @property
    def first_check(self) -> int: ...

    @property
    def checks(self) -> int: ...


class Dropped(TypedDict):
    """The same for a heuristic's config."""

    first_check: int
    checks: int


def run_tunable(default: int, choices: tuple[int, ...], searched: tuple[int, ...] | None = None) -> Any:
    """Groups of a warp."""
    doc = "groups of 16 neurons that a warp takes one after another, keeping what they share"
    return tunable(default, choices, doc, searched=searched, packs=True)


def first_check_tunable(*searched: int) -> Any:
    """Returns the tunable for the layer after which inputs are first dropped."""
    doc = "layers before dead inputs are dropped for the first time; 0: never"
    return tunable(5, FIRST_CHECKS, doc, searched=searched)


def checks_tunable(*searched: int) -> Any:
    """Returns the tunable for the number of times that inputs are dropped; without ``searched`` all choices are
    searched.
    """
    return tunable(3, (1, 2, 3, 4, 6), "how often dead inputs are dropped", searched=searched or None)


def dies(problem: SparseNetworkProblem) -> bool:
    """True if an input without a live neuron stays dead in all later layers."""
    return problem.activation is Activation.DYING_RELU


def living(problem: SparseNetworkProblem) -> float:
    """The part of the inputs that layers compute in the mean."""
    return LIVING if dies(problem) else 1.0


def dropped(problem: SparseNetworkProblem) -> Dropped:
    """Returns the heuristic's tunables for dropping dead inputs."""
    return {"first_check": 5, "checks": 3} if dies(problem) else {"first_check": 0, "checks": 1}


def drops_inputs(problem: SparseNetworkProblem, config: Dropping) -> Iterator[Constraint]:
    """Yields constraints on dropping dead inputs: the activation must let them die, and checks need a first one."""
    c = config
    yield Constraint(
        dies(problem) or (c.first_check == 0 and c.checks == 1),
        f"inputs are dropped (first_check {c.first_check}, checks {c.checks}; else 0 and 1) only where the "
        f"activation ({problem.activation}) lets them die",
    )
    yield Constraint(
        c.first_check > 0 or c.checks == 1,
        f"checks ({c.checks}) is 1 where there are none, with first_check {c.first_check}",
    )


def groups_of(problem: SparseNetworkProblem) -> int:
    """Groups of 16 neurons in a layer."""
    return ceil_div(problem.neurons, SIDE)


def warps_for(groups: int) -> int:
    """The warps of a block: as many as have a group, at most 16 and at least 4."""
    return 16 if groups >= 16 else 8 if groups >= 8 else 4


def run_for(groups: int, most: int) -> int:
    """Returns the power of two that covers ``groups``, a warp's groups, at most ``most``."""
    return 1 << max(1, min(most, groups)).bit_length() - 1


def first_that_fits(configs: Iterable[C], fits: Callable[[C], bool]) -> C:
    """The first config that fits, or the last one."""
    for config in configs:
        if fits(config):
            break
    return config


def tiles_of_a_group(features: Features) -> float:
    """Tiles of 16 rows in the mean, at least the two of rows that share 32 columns."""
    weights = SIDE * max(0.0, features.row_mean - BIAS_COLUMNS)
    return max(2.0, weights / TILE / features.block_fill) if features.block_fill else 2.0


def group_cycles(tiles: float, inputs: int) -> float:
    """Estimates a multiprocessor's cycles for a group with ``tiles`` tiles of weights."""
    return (GROUP_CYCLES + INPUT_CYCLES * inputs) * tiles / 2


def launch_of(
    problem: SparseNetworkProblem, blocks: int, warps: int, shared_bytes: int, persistent_cluster: int = 0
) -> Launch:
    """Launches ``blocks`` blocks, which share the inputs; none if there are no outputs."""
    return Launch(
        grid=(blocks if problem.outputs else 0, 1, 1),
        block=(WARP * warps, 1, 1),
        shared_memory_bytes=shared_bytes,
        persistent_cluster=persistent_cluster,
    )


class TiledNetwork(Family[SparseNetworkProblem, C]):
    """A family that multiplies tiles of 16 × 16 weights on tensor cores; see `network_tiles`."""

    scratch_names = ("kept", "kept_ids")

    def scope(self, problem: SparseNetworkProblem) -> Iterator[Constraint]:
        yield Constraint(problem.dtype is DType.FLOAT16, f"elements ({problem.dtype}) are float16")
        yield one_batch_element(problem)

    def requirements(
        self, problem: SparseNetworkProblem, features: Features, config: C
    ) -> Iterator[Constraint]:
        """Rows that share their columns."""
        yield Constraint(
            features.nnz <= BIAS_COLUMNS * problem.m or features.block_fill >= LEAST_FILLED,
            f"rows share columns: tiles of 16 such rows are filled to {LEAST_FILLED:.1%} ({features.block_fill:.1%})",
        )

    def constants(self, problem: SparseNetworkProblem, config: C) -> Mapping[str, Value]:
        return network_constants(problem)

    @staticmethod
    def packed(
        problem: SparseNetworkProblem,
        matrix: CsrMatrix,
        tiles: TiledLayers,
        own: Mapping[str, Array],
        scratch: Mapping[str, int],
        **sizes: int,
    ) -> Packed[Array]:
        """Tiles of all layers with their values, a family's ``own`` arrays and sizes, and its scratch memory."""
        return Packed(
            arrays={
                "layer_table": empty_as_one(tiles.layers),
                **own,
                "general": tiles.general,
                "blocks": tiles.blocks,
                "input_places": tiles.inputs,
                "values": stored_values(problem, matrix, tiles.source),
            },
            sizes={
                "neurons": problem.neurons,
                "outputs": problem.outputs,
                "layers": problem.layers,
                "positions": tiles.positions,
                **sizes,
            },
            nnz=matrix.nnz,
            values="values",
            value_source=lambda: tiles.source,
            scratch=scratch,
        )

    @staticmethod
    def kept(problem: SparseNetworkProblem, positions: int, blocks: int = 1) -> dict[str, int]:
        """Returns the bytes of scratch memory for gathered inputs, with room for ``positions`` neurons in each
        block.
        """
        if not dies(problem):
            return {"kept": 4, "kept_ids": 4}
        return {"kept": 2 * blocks * problem.n * positions, "kept_ids": 4 * blocks * problem.n}


def network_constants(problem: SparseNetworkProblem) -> dict[str, Value]:
    """Returns the constants of the problem that every template of a network gets."""
    return {
        "dtype": problem.dtype.value,
        "activation": problem.activation.value,
        "readout": problem.readout.value,
    }


def offsets_of(counts: Array) -> Array:
    """Returns int32: the beginning of each one, and the end."""
    found: Array = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))).astype(np.int32)
    return found


def stored_values(problem: SparseNetworkProblem, matrix: CsrMatrix, source: Array) -> Array:
    """Weights and biases in the order of ``source``: of each value the nonzero's number, or -1."""
    from concurrent.futures import ThreadPoolExecutor

    values, found = np.append(matrix.values, np.float32(0)), np.empty(source.shape, problem.dtype.storage)
    flat, places = found.reshape(-1), source.reshape(-1)

    def store(begin: int) -> None:
        end = begin + VALUES_AT_ONCE
        flat[begin:end] = problem.dtype.to_storage(values[places[begin:end]])

    with ThreadPoolExecutor() as pool:  # NumPy leaves the interpreter to others
        list(pool.map(store, range(0, flat.size, VALUES_AT_ONCE)))
    return found


def traits_of_tiles(problem: SparseNetworkProblem) -> Mapping[str, Value]:
    """Returns the traits of rows of inputs and outputs for kernels that keep tiles of inputs in shared memory."""
    return {"aligned_rows": problem.neurons % 8 == 0, "even_outputs": problem.outputs % 2 == 0}
