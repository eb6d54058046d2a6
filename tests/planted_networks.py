"""Bugs planted into inference of sparse networks."""

from __future__ import annotations

import numpy as np

from sparsegen.kernels import family
from sparsegen.matrix.formats import CsrMatrix, as_csr
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.operators import Activation, DType, Readout, SparseNetworkProblem
from sparsegen.testing.kinds import Kind
from sparsegen.testing.matrices import csr
from sparsegen.testing.planted import PlantedBugs


def network() -> CsrMatrix:
    """Layers whose rows share their columns, the last one cut off, with general weights and biases."""
    rng = np.random.default_rng(0)
    layers = radixnet(64, 5).layers
    weights = [layer.with_values(rng.uniform(-0.2, 0.25, layer.nnz).astype(np.float32)) for layer in layers]
    weights[-1] = as_csr(weights[-1].to_scipy()[:37])
    return Network.of(weights, [rng.standard_normal(64) for _ in layers[1:]] + [0.1], 32.0).stacked(
        DType.FLOAT16
    )


def narrow_end() -> CsrMatrix:
    """A layer with many inputs and work for one warp: all others reach the next batch first."""
    rng = np.random.default_rng(0)
    weights = np.where(rng.random((9, 1100)) < 0.2, rng.uniform(-0.2, 0.25, (9, 1100)), 0)
    return Network.of([csr(weights.astype(np.float32))], 0.1, 32.0).stacked(DType.FLOAT16)


def of_network(n: int, activation: Activation, readout: Readout) -> Kind:
    """Inference of ``n`` inputs in float16."""
    traits = ("dtype", DType.FLOAT16), ("activation", activation), ("readout", readout)
    return Kind(SparseNetworkProblem, (("n", n),), traits)


RIGHT = {
    "sparse_network": PlantedBugs(
        family("fused_network"),
        of_network(70, Activation.NONE, Readout.NEURONS),
        {"inputs": 24, "warps": 4, "run": 1, "parts": 2, "first_check": 0, "checks": 1},
        {
            "missing wait": ("if (pass == 0) rounds.wait(0);", ""),
            "another row's bias": ("bias, row + 8)", "bias, row)"),
            "another block": ("(run.place[0] >> 24)", "(run.place[0] >> 16 & 0xffu)"),
            "the same weights again": ("next.advance();", ""),
            "the same buffer": ("from = to, to = read;", ""),
            "no end of inputs": ("input < count && neuron < stride", "neuron < stride"),
            "no end of outputs": ("if (row >= rows) continue;", ""),
            "no end of inputs of a tile": ("if (input < count) store_vector", "store_vector"),
        },
        network,
    ),
    "sparse_network in a ring": PlantedBugs(
        family("fused_network"),
        of_network(90, Activation.RELU, Readout.NEURONS),
        {
            "inputs": 96,
            "warps": 4,
            "run": 2,
            "parts": 2,
            "biases": "multiplied",
            "first_check": 0,
            "checks": 1,
        },
        {
            "results stored where others read": ("if (i == 0) steps.wait(2);", ""),
            "another slot": ("int free = ring.before(turn)", "int free = turn"),
            "the same blocks again": ("blocks.load(following, run);", ""),
            "results of another step": ("if (!kFirst) store_clipped(before, place[i], held[i]);", ""),
            "the same weights again": ("next.advance();\n  Blocks blocks;", "Blocks blocks;"),
        },
        network,
    ),
    "sparse_network layer by layer": PlantedBugs(
        family("streamed_network"),
        of_network(70, Activation.DYING_RELU, Readout.TOTALS),
        {
            "inputs": 16,
            "warps": 4,
            "run": 1,
            "stages": 2,
            "sharing": "layers",
            "sets": 2,
            "first_check": 2,
            "checks": 3,
        },
        {
            "no wait for the grid": (
                "barrier_wait(&turns.open[set], told.of(set) ^ 1);",
                "barrier_wait(&turns.done[set], told.of(set) ^ 1);",
            ),
            "the same buffer in each layer": ("turn ^ (layer - first() & 1)", "turn"),
            "waits for one block": ("arrivals += gridDim.x;", "arrivals += 1;"),
            "no wait for the list of the living": (
                "grid_sync(meetings);\n    for (int i = blockIdx.x * kThreads",
                "for (int i = blockIdx.x * kThreads",
            ),
            "the living of the check before": (
                "i < 2 * count_of_tiles; i += grid_warps * 32) masks[i] = 0;",
                "i < 0; ++i) masks[i] = 0;",
            ),
            "everybody's place before": (
                "listed[to] = from, next_ids[to] = id;",
                "listed[to] = from, next_ids[to] = from;",
            ),
            "places of all inputs": ("i < 2 * tile; i += kThreads) found", "i < 0; i += kThreads) found"),
        },
        network,
    ),
    "sparse_network in batches": PlantedBugs(
        family("streamed_network"),
        of_network(132, Activation.RELU, Readout.NEURONS),
        {
            "inputs": 16,
            "warps": 4,
            "run": 1,
            "stages": 2,
            "sharing": "layers",
            "sets": 2,
            "first_check": 0,
            "checks": 1,
        },
        {
            "no wait for the grid": (
                "barrier_wait(&turns.open[set], told.of(set) ^ 1);",
                "barrier_wait(&turns.done[set], told.of(set) ^ 1);",
            ),
            "the same buffer in each batch": ("turn ^= layers() + 1 & 1;", "turn = 0;"),
            "blocks that are still multiplied": (
                "barrier_wait(&handed->empty[stage.number], stage.parity ^ 1);",
                "",
            ),
            "the set before": ("batch.tile(set, number) * tile_bytes", "batch.tile(0, number) * tile_bytes"),
        },
        narrow_end,
    ),
    "sparse_network in a cluster": PlantedBugs(
        family("cluster_network"),
        of_network(70, Activation.RELU, Readout.TOTALS),
        {"cluster": 2, "inputs": 24, "warps": 4, "run": 1, "first_check": 0, "checks": 1},
        {
            "missing arrival": ("barrier_arrive_at(barrier, lane);", ""),
            "fewer neurons than are sent": ("neurons * chunks * 16", "neurons * chunks * 16 - 16"),
            "the barrier of the layer before": ("barriers[rounds.number % 2]", "barriers[0]"),
            "no second destination": ("if (__any_sync(kAll, is_copied))", "if (false)"),
            "everybody's outputs": ("result[control.ids[input]] = total;", "result[input] = total;"),
            "totals of one block": ("i < kClusterBlocks; ++i) total", "i < 1; ++i) total"),
        },
        network,
    ),
}
