"""Orders of weights in which those that are read together meet different banks of shared memory: NumPy only.

Rows of a team are read together, in each step a neuron of each row; the kind of a neuron says in which banks it is. An
order without conflicts is a colouring of the edges of a bipartite graph, rows and kinds (D. Kőnig, 1916): there is one
if a team has at most as many neurons of a kind as steps. So rows are first dealt to teams such that it nearly has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from sparsegen.system.numpy_types import Array

ROUNDS = 128  # in which teams exchange a row with another one each; more gain less than a hundredth
EVENNESS = 0.2  # what a square of a kind's number in a team costs, beside each that is too many
NO_EDGE, MOVED, MOST = -2000, 100, 20  # weights of a matching's edges, whose sum fits into 16 bits


def balanced_teams(counts: Array, steps: Array, rows: int) -> Array:
    """Deal rows to teams such that of each kind a team has at most as many neurons as steps, as far as that is found.

    Args:
        counts: rows × kinds: neurons of each row by kind; ``rows`` of them that follow each other are a team.
        steps: int64, of each row, at least its sum; rows are exchanged for others with as many.
        rows: rows of a team, by which their number is divisible; a row keeps its place in a team.

    Returns:
        int64: for each place of each team the row that is there.
    """
    teams, kinds = len(counts) // rows, counts.shape[1]
    at, own = np.arange(teams * rows), counts.astype(np.float32)
    of_teams, allowed = own.reshape(teams, rows, kinds), steps.reshape(teams, rows)
    total, most = of_teams.sum(axis=1), allowed[:, :1].astype(np.float32)

    def cost(some: Array, most: Array) -> Array:
        by_kind = some.T.copy()  # sums over the first axis take a tenth of the time
        excess = np.maximum(by_kind - most.T, 0).sum(axis=0)
        found: Array = excess + EVENNESS * np.square(by_kind).sum(axis=0)
        return found.T

    costs, half, rng = cost(total, most), teams // 2, np.random.default_rng(0)
    for _ in range(ROUNDS if teams > 1 else 0):
        a, b = rng.permutation(teams)[: half * 2].reshape(2, -1)
        change = of_teams[b] - of_teams[a]
        after = cost(total[a, None] + change, most[a, None]) + cost(total[b, None] - change, most[b, None])
        after[allowed[a] != allowed[b]] = np.inf
        place = after.argmin(axis=1)
        gains = np.flatnonzero(after[np.arange(half), place] < costs[a] + costs[b] - 1e-3)
        a, b, place = a[gains], b[gains], place[gains]
        change = change[gains, place]
        total[a] += change
        total[b] -= change
        costs[a], costs[b] = cost(total[a], most[a]), cost(total[b], most[b])
        a, b = a * rows + place, b * rows + place
        own[a] += change
        own[b] -= change
        at[a], at[b] = at[b], at[a]
    return at


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Steps of weights, and what rows read in those that are left.

    Attributes:
        step: int64, of each weight; no two of a row have the same.
        team, row, left: of each step of a row without a weight the team, the row and the step.
        kind: likewise, a kind that no other row of the team reads then, or few.
    """

    step: Array
    team: Array
    row: Array
    left: Array
    kind: Array


def steps_apart(team: Array, row: Array, kind: Array, teams: int, steps: Array, rows: int) -> Steps:
    """Assign each weight a step of its row such that rows of a team read different kinds of neurons in a step.

    Where a team has more of a kind than steps, the excess counts as another kind, and rows are filled up, so that each
    row has as many edges as steps, and each kind. A perfect matching of rows and kinds is taken for each step, those
    with most edges of the excess first, so that few steps have any.

    Args:
        team, row, kind: of each weight its team, its row in the team and the kind of its neuron, both 0 to rows - 1.
        teams: the number of teams.
        steps: of each team how many steps it has, at least as many as each row has weights.
        rows: rows of a team, and kinds; at most 8.
    """
    count, size = kind.size, rows * rows * teams
    team, row, kind, is_moved = _regular(team, row, kind, teams, steps, rows)
    most_first = np.argsort(-steps, kind="stable")  # teams that have a step are the first ones
    turn = np.empty(teams, np.int64)
    turn[most_first] = np.arange(teams)
    have_step = np.searchsorted(-steps[most_first], -np.arange(int(steps.max(initial=0))))

    order = np.lexsort((~is_moved, kind, row, turn[team]))
    cell = (row * rows + kind) * teams + turn[team]
    left = np.bincount(cell, minlength=size)
    moved = np.bincount(cell[is_moved], minlength=size)
    by_team = left.reshape(rows * rows, teams).T  # as the edges are sorted
    next_of = (np.cumsum(by_team) - by_team.ravel()).reshape(by_team.shape).T.ravel()
    weights = _weights(left, moved)
    found = np.empty(kind.size, np.int64)
    of_row = np.arange(rows)[:, None] * (rows * teams) + np.arange(teams)
    for step, some in enumerate(have_step.tolist()):
        of_kinds = _matching(weights.reshape(rows, rows, teams)[:, :, :some])
        taken = of_row[:, :some] + of_kinds * teams
        edges = next_of[taken]
        found[order[edges]] = step
        next_of[taken] = edges + 1
        left[taken] -= 1
        moved[taken] = np.maximum(moved[taken] - 1, 0)
        weights[taken] = _weights(left[taken], moved[taken])
    return Steps(found[:count], team[count:], row[count:], found[count:], kind[count:])


def _weights(left: Array, moved: Array) -> Array:
    """int16: of each pair of a row and a kind the weight by its edges that are left, and those of the excess."""
    found = np.where(left > 0, MOVED * (moved > 0) + np.minimum(left, MOST), NO_EDGE)
    return found.astype(np.int16)


def _regular(
    team: Array, row: Array, kind: Array, teams: int, steps: Array, rows: int
) -> tuple[Array, Array, Array, Array]:
    """Teams, rows and kinds of the edges of a graph in which each row and kind of a team has as many as steps: of all
    weights, and of filling behind them; and which of the weights are of another kind than theirs.
    """
    kind, is_moved = kind.astype(np.int64), np.zeros(kind.size, dtype=bool)
    key = (team * rows + row) * rows + kind
    order = np.argsort(key, kind="stable")
    left = np.bincount(key, minlength=teams * rows * rows).reshape(teams, rows, rows)
    next_of = (np.cumsum(left) - left.ravel()).reshape(left.shape)
    missing = steps[:, None] - left.sum(axis=2)
    excess = left.sum(axis=1) - steps[:, None]
    moves = np.zeros((teams, rows), np.int64)  # of each row: those of different rows may share a step
    while (at := np.flatnonzero(excess.max(axis=1, initial=0) > 0)).size:
        most, least = excess[at].argmax(axis=1), excess[at].argmin(axis=1)
        has = left[at, :, most]
        chosen = np.where(has > 0, has - MOVED * moves[at], np.iinfo(np.int64).min).argmax(axis=1)
        edge = order[next_of[at, chosen, most]]
        kind[edge], is_moved[edge] = least, True
        next_of[at, chosen, most] += 1
        left[at, chosen, most] -= 1
        moves[at, chosen] += 1
        excess[at, most] -= 1
        excess[at, least] += 1
    # What rows and kinds lack is equal in number: the first places of rows go to the first of kinds.
    of_row, of_kind = missing.ravel(), (-excess).ravel()
    filled_row = np.repeat(np.arange(teams * rows), of_row)
    filled_kind = np.repeat(np.arange(teams * rows), of_kind) % rows
    no_weight = np.zeros(filled_row.size, dtype=bool)
    return (
        np.concatenate((team, filled_row // rows)),
        np.concatenate((row, filled_row % rows)),
        np.concatenate((kind, filled_kind)),
        np.concatenate((is_moved, no_weight)),
    )


@cache
def _subsets(rows: int) -> tuple[tuple[Array, Array], ...]:
    """Subsets of as many kinds as rows, for each number of rows: of each, and each kind in it, the number of the subset
    without it, and the kind.
    """
    found, before = [], dict[tuple[int, ...], int]({(): 0})
    for size in range(1, rows + 1):
        subsets = list(combinations(range(rows), size))
        without = [[before[tuple(k for k in one if k != kind)] for kind in one] for one in subsets]
        found.append((np.array(without), np.array(subsets)))
        before = {one: number for number, one in enumerate(subsets)}
    return tuple(found)


def _matching(weights: Array) -> Array:
    """Perfect matchings with the largest sum, one for each team: rows × teams, the kind of each row.

    Row by row the best sum for each subset of kinds is found (dynamic programming over subsets).

    Args:
        weights: int16, rows × kinds × teams.
    """
    rows, _, teams = weights.shape
    best = [np.zeros((1, teams), np.int16)]
    for row, (without, kinds) in enumerate(_subsets(rows)):
        sums = best[row][without[:, 0]]
        sums += weights[row, kinds[:, 0]]
        for i in range(1, row + 1):
            others = best[row][without[:, i]]
            others += weights[row, kinds[:, i]]
            np.maximum(sums, others, out=sums)
        best.append(sums)
    found, subset, team = np.empty((rows, teams), np.int64), np.zeros(teams, np.int64), np.arange(teams)
    for row in reversed(range(rows)):
        without, kinds = (one[subset].T for one in _subsets(rows)[row])  # kinds of the subset × teams
        sums = best[row].take(without * teams + team)  # much faster than by two numbers
        sums += weights[row].take(kinds * teams + team)
        turn = sums.argmax(axis=0)
        found[row], subset = kinds[turn, team], without[turn, team]
    return found
