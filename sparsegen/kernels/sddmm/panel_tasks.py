"""Rows cut at panels of columns, and assigned to the subwarps of warps: NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.formats import MAX_INDEX, Array, CsrMatrix
from sparsegen.system.integers import ceil_div


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """A pattern as tasks: nonzeros of one row in one panel of columns; a warp takes a group of tasks.

    Attributes:
        first: int32 [panels + 1], the groups of each panel, one panel after the other.
        tasks: int32 [groups · tasks of a group, 4]: row, first nonzero in CSR order, first strip, and the number of
            nonzeros with the number of the group's strips above its 16 low bits. Those that fill up a panel's last
            group have no nonzeros.
        indices: uint16 [strips · nonzeros of a strip], columns within their panel. The strips of a group's tasks take
            turns; all have as many as the longest. What fills them up is 0.
    """

    first: Array
    tasks: Array
    indices: Array

    @classmethod
    def of(
        cls,
        matrix: CsrMatrix,
        *,
        panel_n: int,
        strip: int,
        strips: int,
        tasks_per_group: int,
        sort_rows: bool,
    ) -> Groups:
        """Cut rows at panels, and there to tasks of ``strips`` strips of ``strip`` nonzeros.

        Args:
            sort_rows: order a panel's tasks by falling number of strips, not by row.

        Raises:
            MatrixError: the strips, filled up, pass the 32-bit range of the kernel's offsets.
        """
        panels = ceil_div(matrix.shape[1], panel_n)
        lengths = np.diff(matrix.row_offsets)
        row = np.repeat(np.arange(lengths.size, dtype=np.int32), lengths)
        panel = matrix.column_indices // panel_n
        begins = np.flatnonzero(_changes(row) | _changes(panel))
        in_run = np.arange(matrix.nnz) - np.repeat(begins, np.diff(begins, append=matrix.nnz))
        begins = np.flatnonzero(in_run % (strip * strips) == 0)
        counts = np.diff(begins, append=matrix.nnz)

        used = ceil_div(counts, strip)
        order = np.lexsort((-used if sort_rows else begins, panel[begins]))
        in_panel = np.bincount(panel[begins], minlength=panels)
        groups = ceil_div(in_panel, tasks_per_group)
        first = np.r_[0, np.cumsum(groups)]
        within = np.arange(order.size) - np.repeat(np.cumsum(in_panel) - in_panel, in_panel)
        slot = np.empty(order.size, dtype=np.int64)  # each task's place among those of all groups
        slot[order] = np.repeat(first[:-1] * tasks_per_group, in_panel) + within

        strips_of = np.zeros(int(first[-1]) * tasks_per_group, dtype=np.int64)
        strips_of[slot] = used
        of_group = strips_of.reshape(-1, tasks_per_group).max(axis=1)
        ends = np.cumsum(of_group * tasks_per_group)
        total = int(ends[-1]) if ends.size else 0
        if total > MAX_INDEX:
            raise MatrixError(
                f"{matrix.nnz} nonzeros fill {total} strips of {strip}, more than 32-bit offsets reach ({MAX_INDEX}); "
                "split the matrix by rows"
            )
        tasks = np.zeros((strips_of.size, 4), dtype=np.int32)
        tasks[slot, 0] = row[begins]
        tasks[slot, 1] = begins
        tasks[slot, 3] = counts
        starts = (ends - of_group * tasks_per_group)[:, None] + np.arange(tasks_per_group)
        tasks[:, 2] = starts.ravel()
        tasks[:, 3] += np.repeat(of_group << 16, tasks_per_group).astype(np.int32)

        task = np.repeat(np.arange(begins.size), counts)
        number, place = np.divmod(np.arange(matrix.nnz) - begins[task], strip)
        indices = np.zeros(total * strip, dtype=np.uint16)
        strip_of = starts.ravel()[slot][task] + number * tasks_per_group
        indices[strip_of * strip + place] = matrix.column_indices - panel * panel_n
        return cls(first.astype(np.int32), tasks, indices)


def _changes(of_nonzero: Array) -> Array:
    """True where an array over nonzeros differs from its element before; true at the first."""
    return np.asarray(np.diff(of_nonzero, prepend=-1) != 0)
