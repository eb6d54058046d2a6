"""Assigns the groups of a layer to the blocks of a cluster such that few neurons change the multiprocessor.

A layer's groups lie in trails through the blocks of neurons that they share. Pieces of these trails are assigned to the
blocks of the cluster: each piece goes where most of the neurons that it reads are made, and where most of those that
it makes are read. That is an assignment problem for each layer, if the layers before and behind it are fixed; it is
solved layer by layer, forwards, backwards and forwards again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sparsegen.kernels.layouts.network_tiles import LayerTiles
from sparsegen.kernels.layouts.tile_groups import SIDE, LayerKind
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

SWEEPS = 2  # over all layers; more change little
COPIED_AS = 3  # sent neurons for one that is kept twice: kernels look up the destination of the second one


def share_of(count: int, run: int, cluster: int) -> int:
    """Groups of each block of a cluster, in whole runs; the last ones may have fewer."""
    return ceil_div(count, cluster * run) * run


def assigned_layers(layers: list[LayerTiles], run: int, cluster: int, spare: int) -> list[LayerTiles]:
    """The layers with their groups in such an order that each block of the cluster takes the next ones.

    Args:
        run: groups that a warp takes one after another.
        spare: blocks of neurons that a block of the cluster may keep beyond its share.
    """
    sizes = [_sizes(layer, run, cluster, spare) for layer in layers]
    assigned = [_Pieces.of(layer, cluster, of[0], of[0]) for layer, of in zip(layers, sizes, strict=True)]
    numbers = list(range(len(layers)))
    for sweep in range(SWEEPS):
        for number in numbers if sweep % 2 == 0 else reversed(numbers):
            before = assigned[number - 1] if number else None
            behind = assigned[number + 1] if number + 1 < len(layers) and sweep else None
            found = [assigned[number]]
            found += [
                _Pieces.of(layers[number], cluster, sizes[number][0], size).best(before, behind)
                for size in sizes[number]
            ]
            assigned[number] = min(found, key=lambda own: own.cost(before, behind))
    return [own.in_order() for own in assigned]


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """A layer's groups in pieces of equal size, and who has them.

    Attributes:
        size: groups of a piece.
        rank: int64: the block of the cluster that computes each piece.
    """

    layer: LayerTiles
    cluster: int
    size: int
    rank: Array

    @classmethod
    def of(cls, layer: LayerTiles, cluster: int, share: int, size: int) -> _Pieces:
        """The first pieces, which make a share, to the first block of the cluster, and so on."""
        pieces = ceil_div(layer.groups.count, size)
        return cls(layer, cluster, size, np.arange(pieces) * size // share)

    @property
    def count(self) -> int:
        return self.rank.size

    def _blocks_read(self) -> tuple[Array, Array]:
        """The blocks of neurons that pieces read, each of a piece once: pieces, blocks."""
        groups, blocks = self.layer.groups, max(1, len(self.layer.columns))
        piece = np.repeat(np.arange(groups.count), np.diff(groups.first)) // self.size
        return np.divmod(np.unique(piece * blocks + groups.tiles), blocks)

    def _made(self, before: _Pieces) -> Array:
        """blocks + 1 × cluster: neurons that this layer reads, by the block of the cluster that makes them."""
        blocks = len(self.layer.columns) + 1  # rows that are none may lie behind the last one
        ranks = np.repeat(before.rank, before.size)[: before.layer.groups.count, None]
        to = np.minimum(before.layer.places // SIDE, blocks - 1)
        made = np.bincount((to * self.cluster + ranks).ravel(), minlength=blocks * self.cluster)
        return made.reshape(blocks, self.cluster)

    def _read_from(self, before: _Pieces) -> Array:
        """pieces × cluster: neurons that a piece reads, by the block of the cluster that makes them."""
        piece, block = self._blocks_read()
        begins = np.searchsorted(piece, np.arange(self.count))
        found: Array = np.add.reduceat(self._made(before)[block], begins).astype(np.float64)
        return found

    def _read_by(self, behind: _Pieces) -> Array:
        """pieces × cluster: neurons that a piece makes, by the blocks of the cluster that read them."""
        blocks = len(behind.layer.columns) + 1
        reads = np.zeros((blocks, self.cluster))
        piece, block = behind._blocks_read()
        reads[block, behind.rank[piece]] = 1
        of_group = reads[np.minimum(self.layer.places // SIDE, blocks - 1)].sum(axis=1)
        found: Array = np.add.reduceat(of_group, np.arange(self.count) * self.size)
        return found

    def cost(self, before: _Pieces | None, behind: _Pieces | None) -> int:
        """Number of neurons that blocks of the cluster get from others, read or made by this layer."""
        return sum(own._received(other) for own, other in ((self, before), (behind, self)) if own and other)

    def _received(self, before: _Pieces) -> int:
        """Neurons of the layer before that blocks of the cluster get from others; copies count more."""
        made = self._made(before)
        piece, block = self._blocks_read()
        kept = np.zeros(made.shape, dtype=bool)
        kept[block, self.rank[piece]] = True
        of_block = made.sum(axis=1, keepdims=True)
        copies = of_block[:, 0] * (kept.sum(axis=1) - 1).clip(0)
        return int((of_block - made)[kept].sum() + (COPIED_AS - 1) * copies.sum())

    def best(self, before: _Pieces | None, behind: _Pieces | None) -> _Pieces:
        """The same pieces where they gain most, as many for each block of the cluster."""
        groups = self.layer.groups
        are_equal = groups.count == self.count * self.size and self.count % self.cluster == 0
        if groups.kind is LayerKind.GENERAL or not are_equal:
            return self
        gain = np.zeros((self.count, self.cluster))
        gain += 0 if before is None else self._read_from(before)
        gain += 0 if behind is None else self._read_by(behind)
        from scipy.optimize import linear_sum_assignment

        each = self.count // self.cluster
        piece, place = linear_sum_assignment(np.repeat(gain, each, axis=1), maximize=True)
        rank = np.empty(self.count, dtype=np.int64)
        rank[piece] = place // each
        return replace(self, rank=rank)

    def in_order(self) -> LayerTiles:
        """The layer with its groups in the order of the blocks of the cluster."""
        pieces = np.argsort(self.rank, kind="stable")
        groups = (pieces[:, None] * self.size + np.arange(self.size)).ravel()
        return self.layer.in_order(groups[groups < self.layer.groups.count])


def _sizes(layer: LayerTiles, run: int, cluster: int, spare: int) -> list[int]:
    """Groups of a piece, as they may be: those of a share, and fewer: so few that no piece shares a block with the next
    one, or where they do, as many pieces of a share as it has spare blocks.
    """
    groups = layer.groups
    share = share_of(groups.count, run, cluster)
    if groups.kind is LayerKind.GENERAL or groups.count != share * cluster:
        return [max(1, share)]
    grain = run if groups.kind is LayerKind.CHAINS else 2 if groups.kind is LayerKind.TWINS else 1
    pairs = groups.tiles.reshape(-1, 2)
    is_cut = (pairs[1:, :, None] != pairs[:-1, None, :]).all(axis=(1, 2))  # before group i + 1
    size = grain
    while size < share and not is_cut[size - 1 :: size].all():
        size *= 2
    if size >= share:
        size = share // spare
    return [share, size] if size and share % size == size % grain == 0 else [share]
