"""The layers of a network as tiles for tensor cores: neurons renumbered, values in the order of a warp's registers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sparsegen.kernels.layouts.tile_groups import (
    BANKS,
    NONE,
    SIDE,
    TILE,
    LayerKind,
    TileGroups,
    in_fragment,
    in_rows,
    spread,
)
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

if TYPE_CHECKING:  # only for type checks: other families use the form of a tile alone
    from concurrent.futures import Future, ThreadPoolExecutor

    from sparsegen.operators import SparseNetworkProblem

BIASES = SIDE * 4  # values of a group's biases: three parts of each row's and one more
PAIR = 2 * TILE + BIASES  # values of a group with two tiles
UNIT = BIASES  # unit in which places of groups are counted
READ = 4  # neurons of an input that a lane reads at once
PADDED = 2  # times as many groups, at most, where a layer is filled up to whole passes


@dataclass(frozen=True, slots=True, eq=False)
class LayerTiles:
    """A layer in tiles.

    Attributes:
        weights: its pattern in CSR, without the bias: offsets, columns.
        groups: groups of its rows.
        columns: int64, blocks × 16: the neurons before at their places.
        rows: int64, groups × 16: each group's rows in the order in which a warp holds them, `NONE` where it has fewer.
        places: int64, groups × 16: where each of them goes, a place among the neurons of the next layer; of the last
            layer the row's own number. Rows that are none go to places of none, and of the last layer nowhere: `NONE`.
    """

    weights: tuple[Array, Array]
    groups: TileGroups
    columns: Array
    rows: Array
    places: Array

    def part(self, share: slice) -> LayerTiles:
        """Some of its groups, with all of its blocks."""
        groups = self.groups
        first = groups.first[share.start : share.stop + 1]
        own = replace(
            groups, rows=groups.rows[share], first=first - first[0], tiles=groups.tiles[first[0] : first[-1]]
        )
        return replace(self, groups=own, rows=self.rows[share], places=self.places[share])

    def in_order(self, order: Array) -> LayerTiles:
        """Returns the layer with its groups in another order, which suits their kind."""
        groups = self.groups
        counts = np.diff(groups.first)[order]
        first = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts)))
        tiles = np.arange(first[-1]) + np.repeat(groups.first[order] - first[:-1], counts)
        own = replace(groups, rows=groups.rows[order], first=first, tiles=groups.tiles[tiles])
        return replace(self, groups=own, rows=self.rows[order], places=self.places[order])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TiledLayers:
    """Tiles of all layers, for one block or for each of a cluster's: `NetworkTiles` and `ClusterTiles` say how."""

    layers: Array
    places: Array
    general: Array
    blocks: Array
    inputs: Array
    source: Array
    positions: int
    kinds: tuple[LayerKind, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NetworkTiles(TiledLayers):
    """All layers, laid out for kernels that take ``pass_groups`` groups at a time.

    Groups are numbered through the network: those of layers in pairs first, each layer filled up to whole passes and
    one more pass behind the last, or more where kernels read ahead; then the others. A group's values are its tiles in
    the order of the fragments of m16n8k16, and its biases; those of groups of pairs follow each other, the others'
    begin where ``general`` says.

    Attributes:
        layers: int32, layers × 4: kind, first group (of the others: in ``general``), groups (of pairs: passes), 0.
        places: uint32, groups × 16: where each row goes, a place among the neurons of the next layer; of the last
            layer the row's own number. Rows that are none go to ``positions``.
        pairs: int32, × 2: of groups in pairs the two blocks.
        general: int32, × 4: of the other groups where the values begin, in `UNIT`, the first of the tiles, how many,
            and the group's number.
        blocks: int32: of all tiles of the other groups.
        inputs: int32, positions: the place of each neuron before the first layer, then the places of none.
        source: int32: of each value the nonzero's number, or -1.
        kinds: kinds of layers, for `explain`.
    """

    pairs: Array


def positions_of(problem: SparseNetworkProblem) -> int:
    """Places of neurons between layers, and of outputs: whole blocks."""
    return max(1, ceil_div(max(problem.neurons, problem.outputs), SIDE)) * SIDE


def network_tiles(
    problem: SparseNetworkProblem, matrix: CsrMatrix, run: int, pass_groups: int, ahead: int = 1
) -> NetworkTiles:
    """All layers of a network in tiles.

    Args:
        run: groups that a warp takes one after another.
        pass_groups: those that all warps of a block take together.
        ahead: passes that a warp reads before it needs them.
    """
    layers = layers_in_tiles(problem, matrix, run)
    positions = positions_of(problem)
    passes = [passes_of(layer.groups, layer.groups.count, pass_groups) for layer in layers]
    ready = [
        replace(layer, places=np.where(layer.places == NONE, positions, layer.places)) for layer in layers
    ]
    numbered = NumberedLayers(problem, matrix, ready, passes, pass_groups, positions, ahead)
    return numbered.tiles(places_of_inputs(problem, layers))


def layers_in_tiles(problem: SparseNetworkProblem, matrix: CsrMatrix, run: int) -> list[LayerTiles]:
    """All layers in tiles, their neurons at places that meet no bank conflicts; see `network_tiles`."""
    numbers = range(problem.layers)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:  # NumPy leaves the interpreter to others while it sorts

        def grouped(layer: int) -> tuple[tuple[Array, Array], TileGroups]:
            weights = _weights(problem, matrix, layer)
            return weights, TileGroups.of(*weights, problem.neurons, run)

        def spread_columns(layer: int) -> Array:
            writers = found[layer - 1][1].rows if layer else stored_together(problem.neurons)
            return spread(writers, found[layer][1].columns)

        def placed(layer: int) -> LayerTiles:
            weights, groups = found[layer]
            following = columns[layer + 1] if layer + 1 < problem.layers else None
            rows, places = _rows_and_places(problem, groups.rows, following)
            return LayerTiles(weights, groups, columns[layer], rows, places)

        found = list(pool.map(grouped, numbers))
        columns = list(pool.map(spread_columns, numbers))
        return list(pool.map(placed, numbers))


def stored_together(neurons: int) -> Array:
    """int64, sets × `BANKS`: neurons of an input that 8 lanes store in one access; a lane reads 4 in a row."""
    order = in_rows(np.arange(neurons)).ravel()
    place = np.arange(order.size)
    return order[np.lexsort((place, place % READ, place // (READ * BANKS)))].reshape(-1, BANKS)


def passes_of(groups: TileGroups, count: int, pass_groups: int) -> int:
    """The passes in which a kernel takes ``count`` groups of pairs; 0 where they count as groups of any tiles.

    A layer is filled up to whole passes, unless that makes too many groups of few.
    """
    passes = ceil_div(count, pass_groups)
    is_filled = passes * pass_groups <= PADDED * max(1, count)
    return passes if groups.kind is not LayerKind.GENERAL and is_filled else 0


def places_of_inputs(problem: SparseNetworkProblem, layers: list[LayerTiles]) -> Array:
    """int32, positions: the place of each neuron before the first layer, then the places of none."""
    positions = positions_of(problem)
    columns = layers[0].columns.ravel() if layers else np.zeros(0, dtype=np.int64)
    padded = np.full(positions, NONE, dtype=np.int64)
    padded[: columns.size] = columns
    by_neuron = np.where(padded == NONE, positions, padded)
    return np.argsort(by_neuron, kind="stable").astype(np.int32)


def _rows_and_places(
    problem: SparseNetworkProblem, rows: Array, following: Array | None
) -> tuple[Array, Array]:
    """Returns the rows and places of a layer for `LayerTiles`, ordered by the columns of the next layer."""
    if following is None:
        return rows, rows
    columns = following.ravel()
    place = np.empty(problem.neurons, dtype=np.int64)
    filled = columns != NONE
    place[columns[filled]] = np.flatnonzero(filled)
    is_row = rows != NONE
    to = place[np.where(is_row, rows, 0)]
    to[~is_row] = np.flatnonzero(~filled)  # equally many missing rows and missing places
    by_colour = np.argsort(to % BANKS, axis=1, kind="stable").reshape(-1, BANKS, 2)
    order = np.concatenate((by_colour[:, :, 0], by_colour[:, :, 1]), axis=1)
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(to, order, axis=1)


def _weights(problem: SparseNetworkProblem, matrix: CsrMatrix, layer: int) -> tuple[Array, Array]:
    """A layer's pattern without the columns of the bias."""
    rows = problem.layer_rows(layer)
    offsets = matrix.row_offsets[rows.start : rows.stop + 1].astype(np.int64)
    columns = matrix.column_indices[offsets[0] : offsets[-1]]
    kept = columns < problem.neurons
    running = np.zeros(kept.size + 1, np.int32)
    np.cumsum(kept, dtype=np.int32, out=running[1:])
    return running[offsets - offsets[0]].astype(np.int64), columns[kept]


class NumberedLayers:
    """Layers whose groups get their numbers.

    Args:
        layers: their places as the kernel wants them, in 32 bits.
        passes: passes of each layer, as `passes_of` gives them.
        nowhere: the place of rows that are none.
        ahead: passes behind the last one, which are read and not used.
    """

    def __init__(
        self,
        problem: SparseNetworkProblem,
        matrix: CsrMatrix,
        layers: list[LayerTiles],
        passes: list[int],
        pass_groups: int,
        nowhere: int,
        ahead: int = 1,
    ) -> None:
        self.problem, self.matrix, self.layers = problem, matrix, layers
        self.nowhere = nowhere
        self.passes = passes
        self.pair_groups = (sum(self.passes) + ahead) * pass_groups
        self.pass_groups = pass_groups

    def tiles(self, inputs: Array) -> NetworkTiles:
        """Everything, layer by layer.

        Args:
            inputs: places of the network's inputs.
        """
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor() as pool:
            return self._tiles(inputs, pool)

    def _tiles(self, inputs: Array, pool: ThreadPoolExecutor) -> NetworkTiles:
        layers, general, blocks, kinds = [], [], [], []
        places = [np.full((self.pair_groups, SIDE), self.nowhere, dtype=np.uint32)]
        pairs = np.zeros((self.pair_groups, 2), dtype=np.int32)
        sources = [np.full(self.pair_groups * PAIR, NONE, dtype=np.int32)]
        filling: list[Future[None]] = []
        next_pair, next_group, unit, tile = 0, 0, self.pair_groups * PAIR // UNIT, 0
        for number, layer in enumerate(self.layers):
            groups, count = layer.groups, layer.groups.count
            if self.passes[number]:
                kinds.append(groups.kind)
                layers.append((groups.kind, next_pair, self.passes[number], 0))
                here = slice(next_pair, next_pair + count)
                places[0][here] = layer.places
                pairs[here] = groups.tiles.reshape(-1, 2)
                size = self.passes[number] * self.pass_groups
                if count:
                    pairs[next_pair + count : next_pair + size] = pairs[next_pair + count - 1]
                starts = np.arange(next_pair, next_pair + count) * PAIR
                filling.append(pool.submit(self._fill, sources[0], number, starts))
                next_pair += size
                continue
            kinds.append(LayerKind.GENERAL)
            layers.append((LayerKind.GENERAL, next_group, count, 0))
            counts = np.diff(groups.first)
            sizes = counts * (TILE // UNIT) + 1
            starts = np.cumsum(sizes) - sizes
            numbers = self.pair_groups + next_group + np.arange(count)
            general.append(np.stack((unit + starts, tile + groups.first[:-1], counts, numbers), axis=1))
            blocks.append(groups.tiles)
            places.append(layer.places)
            own_source = np.full(int(sizes.sum()) * UNIT, NONE, dtype=np.int32)
            filling.append(pool.submit(self._fill, own_source, number, starts * UNIT))
            sources.append(own_source)
            next_group, unit, tile = next_group + count, unit + int(sizes.sum()), tile + groups.tiles.size
        for job in filling:
            job.result()
        return NetworkTiles(
            layers=np.array(layers, dtype=np.int32).reshape(-1, 4),
            places=np.concatenate(places).astype(np.uint32),
            pairs=pairs,
            general=_joined(general, (0, 4)),
            blocks=_joined(blocks, (0,)),
            inputs=inputs,
            source=np.concatenate(sources) if len(sources) > 1 else sources[0],
            positions=positions_of(self.problem),
            kinds=tuple(kinds),
        )

    def _fill(self, source: Array, number: int, starts: Array) -> None:
        """Records the positions of the nonzeros' values of a layer, for the rows of these groups.

        Args:
            source: array to fill.
            starts: starts of its groups, in values.
        """
        layer, problem, matrix = self.layers[number], self.problem, self.matrix
        before, columns = layer.weights
        group, in_group = np.full(before.size - 1, NONE, dtype=np.int64), np.zeros(before.size - 1, np.int64)
        is_row = layer.rows != NONE
        group[layer.rows[is_row]], in_group[layer.rows[is_row]] = np.nonzero(is_row)
        is_own = group != NONE
        here = problem.layer_rows(number)
        offsets, lengths = matrix.row_offsets[here.start : here.stop + 1].astype(np.int64), np.diff(before)
        # Rows of no group, whose number is -1, get what stands last.
        first, biases = np.append(starts, 0)[group], np.append(np.diff(layer.groups.first), 0)[group] * TILE
        of_row = first + biases + 4 * in_group - problem.neurons
        behind = offsets[:-1] + lengths  # end of each row's weights, where its biases follow
        for i in range(int((offsets[1:] - behind).max(initial=0))):
            rows = np.flatnonzero((behind + i < offsets[1:]) & is_own)
            source[of_row[rows] + matrix.column_indices[behind[rows] + i]] = behind[rows] + i
        # The position of a weight in a fragment is the sum of its row's and its column's parts.
        slots = self._slots(layer)
        of_row = first + in_fragment(in_group, np.zeros_like(in_group))
        of_column = in_fragment(np.zeros_like(slots), slots).astype(np.int32)
        values = np.repeat(of_row, lengths)
        values += of_column[columns]
        values += _tile_of(layer.groups, group, lengths, columns) * np.int32(TILE)
        numbers = np.repeat((offsets - before)[:-1].astype(np.int32), lengths)
        numbers += np.arange(numbers.size, dtype=np.int32)
        if not is_own.all():
            own = np.repeat(is_own, lengths)
            values, numbers = values[own], numbers[own]
        source[values] = numbers

    def _slots(self, layer: LayerTiles) -> Array:
        found = np.zeros(self.problem.neurons, dtype=np.int64)
        filled = layer.columns != NONE
        found[layer.columns[filled]] = np.nonzero(filled)[1]
        return found


def _tile_of(groups: TileGroups, group: Array, lengths: Array, columns: Array) -> Array:
    """The number of each weight's block among the tiles of its row's group.

    Args:
        group: group of each row, or `NONE`, for which the result is undefined.
        lengths: weights of each row.
        columns: columns of the weights.
    """
    block = groups.block.astype(np.int32)[columns]
    if groups.kind is not LayerKind.GENERAL:
        kept = np.append(groups.tiles[::2], 0)[group].astype(np.int32)
        is_other: Array = (np.repeat(kept, lengths) != block).astype(np.int32)
        return is_other
    most = int(groups.tiles.max(initial=0)) + 1
    keys = np.repeat(np.arange(groups.count), np.diff(groups.first)) * most + groups.tiles
    of = np.repeat(group, lengths)
    found: Array = np.searchsorted(keys, of * most + block) - groups.first[of]
    return found


def _joined(parts: list[Array], shape: tuple[int, ...]) -> Array:
    """Concatenates parts to int32; an empty result is one row of zeros."""
    whole = np.concatenate(parts) if parts else np.zeros(shape, dtype=np.int64)
    return whole.astype(np.int32) if whole.size else np.zeros((1, *shape[1:]), dtype=np.int32)
