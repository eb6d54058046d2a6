"""Pruning written a second time, with sorted lists and loops, to hold the pruner against; and weights to prune."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Position = tuple[int, int]
Group = tuple[float, str, int, list[Position]]  # score, layer, index in it, the weights


def kept_count(sparsity: float, size: int) -> int:
    return size - math.floor(Fraction(str(sparsity)) * size + Fraction(1, 2))


def norm(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(float(v) ** 2 for v in values))


def element_groups(name: str, matrix: Array) -> list[Group]:
    m, k = matrix.shape
    return [(abs(float(matrix[i, j])), name, i * k + j, [(i, j)]) for i in range(m) for j in range(k)]


def uniform_groups(name: str, matrix: Array) -> list[Group]:
    m, k = matrix.shape
    ranked = [sorted(range(k), key=lambda j, i=i: (-abs(float(matrix[i, j])), j)) for i in range(m)]
    return [
        (norm([matrix[i, ranked[i][r]] for i in range(m)]), name, r, [(i, ranked[i][r]) for i in range(m)])
        for r in range(k)
    ]


def blocks_of(matrix: Array, block: tuple[int, int]) -> list[list[list[Position]]]:
    """The weights of each block, by row and column of blocks."""
    (m, k), (height, width) = matrix.shape, block
    return [
        [
            [(i, j) for i in range(top, min(top + height, m)) for j in range(left, min(left + width, k))]
            for left in range(0, k, width)
        ]
        for top in range(0, m, height)
    ]


def block_groups(name: str, matrix: Array, block: tuple[int, int]) -> list[Group]:
    flat = [positions for row in blocks_of(matrix, block) for positions in row]
    return [(norm([matrix[p] for p in positions]), name, i, positions) for i, positions in enumerate(flat)]


def blocked_uniform_groups(name: str, matrix: Array, block: tuple[int, int]) -> list[Group]:
    rows = []
    for row in blocks_of(matrix, block):
        scored = [(norm([matrix[p] for p in positions]), i, positions) for i, positions in enumerate(row)]
        rows.append(sorted(scored, key=lambda entry: (-entry[0], entry[1])))
    return [
        (norm([row[r][0] for row in rows]), name, r, [p for row in rows for p in row[r][2]])
        for r in range(len(rows[0]))
    ]


def chosen(groups: list[Group], keep: int) -> list[Group]:
    """The head of the order whose number of weights is nearest to ``keep``, the shorter of two."""
    ordered = sorted(groups, key=lambda group: (-group[0], group[1], group[2]))
    sizes = [0]
    for group in ordered:
        sizes.append(sizes[-1] + len(group[3]))
    best = min(range(len(sizes)), key=lambda count: (abs(sizes[count] - keep), count))
    return ordered[:best]


def masks(
    weights: dict[str, Array], pattern: str, sparsity: float, scope: str, block: tuple[int, int]
) -> dict[str, Array]:
    """Masks of the matrices by name."""
    make: Any = {
        "unstructured": element_groups,
        "uniform": uniform_groups,
        "block": lambda name, matrix: block_groups(name, matrix, block),
        "blocked-uniform": lambda name, matrix: blocked_uniform_groups(name, matrix, block),
    }[pattern]
    found = {name: np.zeros(matrix.shape, bool) for name, matrix in weights.items()}
    by_layer = {name: make(name, matrix) for name, matrix in weights.items()}
    if scope == "global":
        pools = [[group for groups in by_layer.values() for group in groups]]
    else:
        pools = list(by_layer.values())
    for pool in pools:
        for _, name, _, positions in chosen(pool, kept_count(sparsity, sum(len(group[3]) for group in pool))):
            for position in positions:
                found[name][position] = True
    return found


def n_of_m_mask(matrix: Array, n: int, m: int) -> Array:
    mask = np.zeros(matrix.shape, bool)
    for i, row in enumerate(matrix):
        for start in range(0, len(row), m):
            group = range(start, min(start + m, len(row)))
            for j in sorted(group, key=lambda j: (-abs(float(row[j])), j))[:n]:
                mask[i, j] = True
    return mask


def random_weights() -> dict[str, Array]:
    rng = np.random.default_rng(7)
    return {
        name: rng.standard_normal(shape, np.float32) for name, shape in {"a": (24, 40), "b": (9, 17)}.items()
    }


def network_weights() -> dict[str, Array]:
    """Layers of different widths as training leaves them: heavy tails, each its own scale, rows of unequal norm."""
    rng = np.random.default_rng(11)
    shapes = {
        "stem.weight": (16, 3, 3, 3),
        "block.conv.weight": (24, 16, 3, 3),
        "block.project.weight": (32, 24),
        "attention.qkv.weight": (96, 32),
        "mlp.up.weight": (64, 32),
        "mlp.down.weight": (32, 64),
        "head.weight": (10, 32),
    }
    layers = {}
    for name, shape in shapes.items():
        fan_in = math.prod(shape[1:])
        rows = rng.lognormal(0, 0.4, (shape[0],) + (1,) * (len(shape) - 1))
        layers[name] = (rng.standard_t(4, shape) * rows / math.sqrt(fan_in)).astype(np.float32)
    return layers


def as_matrix(array: Array) -> Array:
    return array.reshape(array.shape[0], math.prod(array.shape[1:]))
