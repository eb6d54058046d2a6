"""The layers of a network in tiles, assigned to the blocks of a cluster: who computes what, and who keeps what.

Each block of the cluster computes a contiguous part of a layer's groups. In a layer of pairs it keeps the blocks of
neurons that its groups read: one that two parts share has two places, and whoever computes its neurons sends them to
both. In any other layer every block of neurons has one place, and who needs it fetches it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sparsegen.kernels.layouts.network_tiles import (
    UNIT,
    LayerTiles,
    NetworkTiles,
    NumberedLayers,
    TiledLayers,
    layers_in_tiles,
    passes_of,
    places_of_inputs,
    positions_of,
)
from sparsegen.kernels.layouts.tile_groups import NONE, SIDE, LayerKind
from sparsegen.kernels.network.cluster_shares import assigned_layers, share_of
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators.sparse_network import SparseNetworkProblem
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

SPARE_BLOCKS = 4  # blocks of neurons that a block of the cluster may keep beyond its share
HOLDERS = 2  # blocks of the cluster that hold a block of neurons, at most
COPIED_BIT = 15  # bit of a destination that marks a second one
COPIED = 1 << COPIED_BIT
LEAST_RANK_BITS = 3  # bits of a destination below that bit; places have the rest
FETCHED_RANK = 16  # the bit from which on a fetched block's number says who has it


def position_bits(cluster: int) -> int:
    """Bits of a place in a destination, below the bits of the block that has it."""
    return COPIED_BIT - max(LEAST_RANK_BITS, (cluster - 1).bit_length())


def not_listed(cluster: int) -> int:
    """A place that no row has."""
    return (1 << position_bits(cluster)) - 1


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ClusterTiles(TiledLayers):
    """All layers for a cluster; what blocks have of their own has an axis of them in front.

    A destination is 16 bits: a place among the neurons that a block keeps (`position_bits`), the block's number in the
    cluster, and a bit that says that there is a second one.

    Attributes:
        layers: int32, cluster × layers × 4: as in `NetworkTiles`; the last says how many neurons other blocks send.
        places: uint32, cluster × groups × 16: the destination of each row; above it, of pairs, the two blocks. Or × 32,
            where rows that go to the other one of two blocks are listed behind the destinations: the place there, and
            above its bits which row it is; then `not_listed`. The two blocks are above these too.
        copies: uint16, cluster × groups × 16: second destinations.
        general, blocks: see `NetworkTiles`; a block's number, and from bit 16 on its holder.
        kept: int32, cluster × layers: places in use behind each layer.
        inputs: uint32: of each neuron before the first layer the destination, and in the upper half the second one.
        source: int32: of each value the nonzero's number, or -1.
        positions: places that a block has.
        kinds: kinds of layers, for `explain`.
    """

    copies: Array
    kept: Array


def blocks_kept(problem: SparseNetworkProblem, cluster: int) -> int:
    """Blocks of neurons for which each block of a cluster has room."""
    return _share(positions_of(problem) // SIDE, cluster) + SPARE_BLOCKS


def cluster_tiles(
    problem: SparseNetworkProblem,
    matrix: CsrMatrix,
    run: int,
    pass_groups: int,
    cluster: int,
    is_listed: bool = False,
) -> ClusterTiles:
    """All layers of a network for clusters.

    Args:
        run: groups that a warp takes one after another.
        pass_groups: those that all warps of a block take together.
        cluster: blocks of a cluster.
        is_listed: true if rows that go to the other one of two blocks are listed too.
    """
    positions = SIDE * blocks_kept(problem, cluster)
    in_tiles = assigned_layers(layers_in_tiles(problem, matrix, run), run, cluster, SPARE_BLOCKS)
    layers = [_AssignedLayer.of(layer, run, pass_groups, cluster, positions) for layer in in_tiles]
    outputs = SIDE * _share(positions_of(problem) // SIDE, cluster)
    sent = [
        layer.sent(layers[number + 1] if number + 1 < len(layers) else None, outputs, positions)
        for number, layer in enumerate(layers)
    ]
    passes = [layer.passes for layer in layers]
    parts = []
    for rank in range(cluster):
        own = [layer.part(rank, first) for layer, (first, _) in zip(layers, sent, strict=True)]
        nowhere = rank << position_bits(cluster) | positions
        parts.append(NumberedLayers(problem, matrix, own, passes, pass_groups, nowhere).tiles(np.zeros(0)))
    placed = places_of_inputs(problem, [layer.tiles for layer in layers])
    return _joined(layers, sent, parts, placed, positions, is_listed)


def _joined(
    layers: list[_AssignedLayer],
    sent: list[tuple[Array, Array]],
    parts: list[NetworkTiles],
    placed: Array,
    positions: int,
    is_listed: bool,
) -> ClusterTiles:
    """All blocks' parts side by side, each filled up to the longest."""
    cluster = len(parts)
    about = np.stack([part.layers for part in parts])
    kept = np.zeros((cluster, max(1, len(layers))), dtype=np.int32)
    for number, layer in enumerate(layers):
        about[:, number, 3] = layer.received(*sent[number])
        if number:
            kept[:, number - 1] = SIDE * layer.kept
    words = [part.places for part in parts]
    if is_listed:
        words = [np.hstack((own, listed(own, rank))) for rank, own in enumerate(words)]
    words = [
        _with_blocks(own, part, layers, rank)
        for rank, (own, part) in enumerate(zip(words, parts, strict=True))
    ]
    copies = [_copies(part, layers, sent, rank) for rank, part in enumerate(parts)]
    if layers:
        first, second = layers[0].destinations(placed, np.zeros(placed.size, dtype=np.int64), positions)
        inputs = first | second << 16
    else:
        inputs = placed
    return ClusterTiles(
        layers=about,
        places=_side_by_side(words, 0),
        copies=_side_by_side(copies, 0),
        general=_side_by_side([part.general for part in parts], 0),
        blocks=_side_by_side([_fetched(part, layers, rank) for rank, part in enumerate(parts)], 0),
        kept=kept,
        inputs=inputs.astype(np.uint32),
        source=_side_by_side([part.source for part in parts], NONE, UNIT),
        positions=positions,
        kinds=parts[0].kinds,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _AssignedLayer:
    """A layer whose groups and blocks have their owners.

    Attributes:
        share: groups of each block of the cluster; the last ones may have fewer.
        passes: passes in which they are taken as pairs, or 0.
        holder: int64, blocks × 2: who keeps each block of neurons, or `NONE`.
        local: int64, blocks × 2: its number there.
        kept: int64, cluster: blocks that each keeps.
    """

    tiles: LayerTiles
    share: int
    passes: int
    holder: Array
    local: Array
    kept: Array

    @classmethod
    def of(
        cls, tiles: LayerTiles, run: int, pass_groups: int, cluster: int, positions: int
    ) -> _AssignedLayer:
        groups, blocks = tiles.groups, len(tiles.columns)
        share = share_of(groups.count, run, cluster)
        passes = passes_of(groups, _share(groups.count, cluster), pass_groups)
        if passes:
            owner = np.arange(groups.count) // max(1, share)
            used = np.unique(groups.tiles.reshape(-1, 2) + blocks * owner[:, None])
            rank, block = np.divmod(used, max(1, blocks))
            kept = np.bincount(rank, minlength=cluster)
            turn = _turn(np.sort(block))
            if SIDE * kept.max(initial=0) <= positions and turn.max(initial=0) < HOLDERS:
                holder, local = (np.full((blocks, HOLDERS), NONE, dtype=np.int64) for _ in range(2))
                order = np.argsort(block, kind="stable")
                holder[block[order], turn] = rank[order]
                local[block[order], turn] = _turn(rank)[order]
                return cls(tiles, share, passes, holder, local, kept)
        home = _share(blocks, cluster)
        holder, local = (np.full((blocks, HOLDERS), NONE, dtype=np.int64) for _ in range(2))
        holder[:, 0], local[:, 0] = np.divmod(np.arange(blocks), max(1, home))
        kept = np.clip(blocks - home * np.arange(cluster), 0, home)
        return cls(_general(tiles), share, 0, holder, local, kept)

    @property
    def cluster(self) -> int:
        return self.kept.size

    def destinations(self, places: Array, sender: Array, positions: int) -> tuple[Array, Array]:
        """Returns the first and second destinations of neurons that this layer reads; a neuron's own block comes first.

        Args:
            places: int64, of any shape: among the neurons that this layer reads.
            sender: int64, of that shape: the block that computes each.
            positions: the place for neurons that no block reads.
        """
        block, slot = np.divmod(places, SIDE)
        nobody = np.full((1, HOLDERS), NONE, dtype=np.int64)  # has places behind the last block
        block = np.minimum(block, len(self.holder))
        holder, local = (np.concatenate((x, nobody))[block] for x in (self.holder, self.local))
        is_turned = (holder[..., 1] == sender)[..., None]
        holder = np.where(is_turned, holder[..., ::-1], holder)
        local = np.where(is_turned, local[..., ::-1], local)
        bits = position_bits(self.cluster)
        word = holder << bits | SIDE * local + slot[..., None]
        is_copied = holder[..., 1] != NONE
        first = np.where(holder[..., 0] == NONE, sender << bits | positions, word[..., 0])
        return first | COPIED * is_copied, np.where(is_copied, word[..., 1], 0)

    def sent(self, following: _AssignedLayer | None, outputs: int, positions: int) -> tuple[Array, Array]:
        """Returns the first and second destinations of this layer's rows, groups × 16.

        Args:
            following: the layer that reads them; without one each block keeps ``outputs`` of the network's.
        """
        places = self.tiles.places
        sender = np.broadcast_to((np.arange(len(places)) // max(1, self.share))[:, None], places.shape)
        if following is not None:
            return following.destinations(places, sender, positions)
        rank, place = np.divmod(places, outputs)
        bits = position_bits(self.cluster)
        word = np.where(places == NONE, sender << bits | positions, rank << bits | place)
        return word, np.zeros_like(word)

    def received(self, first: Array, second: Array) -> Array:
        """int64, cluster: how many neurons each block gets from others."""
        sender = np.arange(len(first)) // max(1, self.share)
        bits = position_bits(self.cluster)
        to = (first & COPIED - 1) >> bits
        away = to[to != sender[:, None]]
        copied = (second >> bits)[first & COPIED != 0]
        return np.bincount(np.concatenate((away, copied)).astype(np.int64), minlength=self.cluster)

    def groups_of(self, rank: int) -> slice:
        """Slice of the groups that a block of the cluster computes."""
        begin, end = (min(x * self.share, self.tiles.groups.count) for x in (rank, rank + 1))
        return slice(begin, end)

    def part(self, rank: int, destinations: Array) -> LayerTiles:
        """Returns the tiles that the block ``rank`` of the cluster computes."""
        return replace(self.tiles, places=destinations).part(self.groups_of(rank))

    def number(self, rank: int, blocks: Array) -> Array:
        """The numbers of blocks where a block of the cluster keeps them."""
        found: Array = np.where(self.holder[blocks, 0] == rank, self.local[blocks, 0], self.local[blocks, 1])
        return found


def _general(tiles: LayerTiles) -> LayerTiles:
    """A layer as one whose groups have any number of tiles, each group's in ascending order."""
    groups = tiles.groups
    if groups.kind is LayerKind.GENERAL:
        return tiles
    ascending = np.sort(groups.tiles.reshape(-1, 2), axis=1).ravel()
    return replace(tiles, groups=replace(groups, kind=LayerKind.GENERAL, tiles=ascending))


def _share(count: int, parts: int) -> int:
    return ceil_div(count, parts)


def _turn(ascending: Array) -> Array:
    """Returns, for each element, the number of equal ones before it."""
    found: Array = np.arange(ascending.size) - np.searchsorted(ascending, ascending)
    return found


def listed(destinations: Array, rank: int) -> Array:
    """uint32, groups × 16: the rows of a block of two that go to the other one, as `ClusterTiles` lists them.

    Args:
        destinations: uint32, groups × 16: of this block's rows.
    """
    bits, nothing = position_bits(2), not_listed(2)
    away = (destinations & COPIED - 1) >> bits != rank
    word = destinations & nothing | np.arange(SIDE, dtype=np.uint32) << bits
    order = np.argsort(~away, axis=1, kind="stable")
    found: Array = np.take_along_axis(np.where(away, word, nothing), order, axis=1).astype(np.uint32)
    return found


def _with_blocks(destinations: Array, part: NetworkTiles, layers: list[_AssignedLayer], rank: int) -> Array:
    """Destinations, and above them the numbers of a pair's blocks, which a block of the cluster keeps itself."""
    words = destinations.copy()
    for (_, first, _, _), layer in zip(part.layers.tolist(), layers, strict=True):
        if not layer.passes:
            continue
        count = layer.tiles.groups.rows[layer.groups_of(rank)].shape[0]
        if count:
            own = layer.number(rank, part.pairs[first : first + count]).astype(np.uint32)
            words[first : first + count] |= own[:, :1] << 16 | own[:, 1:] << 24
    return words


def _copies(
    part: NetworkTiles, layers: list[_AssignedLayer], sent: list[tuple[Array, Array]], rank: int
) -> Array:
    """Second destinations, as ``places`` has the first ones."""
    found = np.zeros(part.places.shape, dtype=np.uint16)
    for (_, first, _, _), layer, (_, second) in zip(part.layers.tolist(), layers, sent, strict=True):
        own = second[layer.groups_of(rank)]
        if len(own):
            begin = first if layer.passes else int(part.general[first, 3])
            found[begin : begin + len(own)] = own
    return found


def _fetched(part: NetworkTiles, layers: list[_AssignedLayer], rank: int) -> Array:
    """The blocks of groups that are no pairs: their numbers where they are, and who has them."""
    found = part.blocks.copy()
    begin = 0
    for layer in layers:
        if layer.passes:
            continue
        own = layer.groups_of(rank)
        first = layer.tiles.groups.first
        tiles = layer.tiles.groups.tiles[first[own.start] : first[own.stop]]
        found[begin : begin + tiles.size] = layer.holder[tiles, 0] << FETCHED_RANK | layer.local[tiles, 0]
        begin += tiles.size
    return found


def _side_by_side(parts: list[Array], filling: int, unit: int = 1) -> Array:
    """Stacked, each part filled up to the longest."""
    longest = max(len(part) for part in parts)
    longest = _share(longest, unit) * unit
    found = np.full((len(parts), longest, *parts[0].shape[1:]), filling, dtype=parts[0].dtype)
    for part, row in zip(parts, found, strict=True):
        row[: len(part)] = part
    return found
