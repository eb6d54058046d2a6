"""Orders of weights in which those that are read together meet different banks of shared memory: NumPy only."""

from __future__ import annotations

import numpy as np

from sparsegen.system.numpy_types import Array

NONE = -1
NEVER = np.iinfo(np.int64).min


def steps_apart(team: Array, row: Array, kind: Array, teams: int, steps: Array, rows: int) -> Array:
    """Assign each weight a step of its row such that rows of a team read different kinds of neurons in a step.

    It colours the edges of a bipartite graph, between a team's rows and kinds, by greed: in each step the kinds choose,
    the kind with most weights left first, each the row that has most of it. A row that no kind chose waits, if it has
    steps to spare, or meets another row's bank. Of 8 rows of 32 random neurons each, 1.37 meet in the fullest bank of a
    step on average: 1.24 would be best, and turns of kinds in each row by itself give 1.9.

    Args:
        team, row, kind: of each weight its team, its row in the team and the kind of its neuron, both 0 to rows - 1.
        teams: the number of teams.
        steps: of each team how many steps it has, at least as many as each row has weights.
        rows: rows of a team, and kinds.

    Returns:
        int64, of each weight its step; no two of a row have the same.
    """
    key = (team * rows + row) * rows + kind
    order = np.argsort(key, kind="stable")
    counts = np.bincount(key, minlength=teams * rows * rows)
    next_of = (np.cumsum(counts) - counts).reshape(teams, rows, rows)
    left = counts.reshape(teams, rows, rows).astype(np.int32)
    found = np.full(key.size, NONE, np.int64)
    at = np.flatnonzero(steps > 0)

    def take(teams: Array, row: Array, kind: Array, step: int) -> None:
        found[order[next_of[teams, row, kind]]] = step
        next_of[teams, row, kind] += 1
        left[teams, row, kind] -= 1

    for step in range(int(steps.max(initial=0))):
        at = at[steps[at] > step]
        here, now = np.arange(at.size), left[at]
        must = now.sum(axis=2) >= (steps[at] - step)[:, None]  # rows without a step to spare
        score = np.where(now > 0, now * 2 * rows - (now > 0).sum(axis=2)[..., None] + rows, 0)
        is_busy = np.zeros((at.size, rows), dtype=bool)
        taken = np.zeros((at.size, rows), dtype=np.int32)
        of_kinds = now.sum(axis=1)
        for kinds in np.argsort(-of_kinds, axis=1).T:
            of_rows = np.where(is_busy, 0, score[here, :, kinds])
            best = of_rows.argmax(axis=1)
            some = of_rows[here, best] > 0
            take(at[some], best[some], kinds[some], step)
            is_busy[here[some], best[some]] = True
            taken[here[some], kinds[some]] += 1
        for own in range(rows):
            least = np.where(now[:, own] > 0, of_kinds - taken * (of_kinds.max(initial=0) + 1), NEVER)
            best = least.argmax(axis=1)
            some = must[:, own] & ~is_busy[:, own] & (now[here, own, best] > 0)
            take(at[some], np.full(int(some.sum()), own), best[some], step)
            taken[here[some], best[some]] += 1
    return found
