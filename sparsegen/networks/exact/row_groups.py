"""Layers of a network for products in float64: rows that share their columns in groups, each with its columns once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sparsegen.matrix.column_sets import together
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators.sparse_network import Activation
from sparsegen.system.numpy_types import Array

GROUP = 16  # rows at most, as in exact_network.cu


@dataclass(frozen=True, slots=True, eq=False)
class RowGroups:
    """Some layers that follow each other.

    Attributes:
        before: int32, of each layer the groups of those before, and of all.
        groups: int32, groups × 4: first of columns, how many, first of values, rows.
        rows: int32, groups × 16: the rows' numbers in their layer; -1 where there are fewer.
        biases: float32, groups × 16.
        columns: int32.
        values: float32, of each column of a group those of its rows.
    """

    before: Array
    groups: Array
    rows: Array
    biases: Array
    columns: Array
    values: Array

    @classmethod
    def of(cls, layers: Sequence[CsrMatrix], biases: Sequence[Array], activation: Activation) -> RowGroups:
        """Group the rows of each layer."""
        with ThreadPoolExecutor() as pool:  # NumPy leaves the interpreter to others
            parts = list(pool.map(lambda layer, bias: _grouped(layer, bias, activation), layers, biases))
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum([len(part.groups) for part in parts])))
        column, value = 0, 0
        for part in parts:
            part.groups[:, 0] += column
            part.groups[:, 2] += value
            column, value = column + part.columns.size, value + part.values.size
        return cls(
            before.astype(np.int32),
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("groups", "rows", "biases", "columns", "values")
            ),
        )

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays in the order of the kernel's parameters."""
        return self.before, self.groups, self.rows, self.biases, self.columns, self.values


def group_bytes(layer: CsrMatrix) -> int:
    """Upper bound on the bytes of a layer's `RowGroups`."""
    return 8 * layer.nnz + 144 * layer.shape[0]


def _grouped(layer: CsrMatrix, bias: Array, activation: Activation) -> RowGroups:
    count, offsets = layer.shape[0], layer.row_offsets.astype(np.int64)
    order = together(offsets, layer.column_indices, layer.shape[1])
    lengths = np.diff(offsets)[order]
    begins = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    source = np.arange(layer.nnz) + np.repeat(offsets[order] - begins[:-1], lengths)
    columns, values = layer.column_indices[source], layer.values[source]
    first = _begins_of_groups(lengths, columns)
    rows_of = np.diff(np.append(first, count))
    group = np.repeat(np.arange(first.size), rows_of)
    in_group = np.arange(count) - first[group]
    # The columns of a group's first row are those of all its rows.
    is_first = np.repeat(in_group == 0, lengths)
    own = columns[is_first]
    group_lengths = lengths[first]
    column_begins = np.cumsum(group_lengths) - group_lengths
    sizes = group_lengths * rows_of
    value_begins = np.cumsum(sizes) - sizes
    place_in_row = np.arange(layer.nnz) - np.repeat(begins[:-1], lengths)
    row = np.repeat(np.arange(count), lengths)
    found = np.empty(layer.nnz, dtype=np.float32)
    found[value_begins[group[row]] + place_in_row * rows_of[group[row]] + in_group[row]] = values
    rows = np.full((first.size, GROUP), -1, dtype=np.int32)
    rows[group, in_group] = order
    biases = np.zeros((first.size, GROUP), dtype=np.float32)
    held = bias.astype(np.float32)
    biases[group, in_group] = (np.minimum(held, 0) if activation is Activation.DYING_RELU else held)[order]
    groups = np.stack((column_begins, group_lengths, value_begins, rows_of), axis=1)
    return RowGroups(np.zeros(0, np.int32), groups.astype(np.int32), rows, biases, own, found)


def _begins_of_groups(lengths: Array, columns: Array) -> Array:
    """The first row of each group: where columns differ from those of the row before, and after every 16 rows."""
    count = lengths.size
    if not count:
        return np.zeros(0, np.int64)
    before = np.concatenate((np.zeros(1, np.int64), lengths[:-1]))
    is_new = lengths != before
    is_new[0] = True
    back = np.repeat(lengths, lengths)
    row = np.repeat(np.arange(count), lengths)
    at = np.flatnonzero(~is_new[row])
    differs = at[columns[at] != columns[at - back[at]]]
    is_new[row[differs]] = True
    run = np.maximum.accumulate(np.where(is_new, np.arange(count), 0))
    found: Array = np.flatnonzero((np.arange(count) - run) % GROUP == 0)
    return found
