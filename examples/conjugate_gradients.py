"""Conjugate gradients for many right-hand sides at once: heat on a plate, with the sparse product as the operator.

python examples/conjugate_gradients.py
"""

import numpy as np
import scipy.sparse

import sparsegen

SIDE, RIGHT_HAND_SIDES = 24, 16
line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(SIDE, SIDE))
plate = (
    scipy.sparse.kron(line, scipy.sparse.eye(SIDE)) + scipy.sparse.kron(scipy.sparse.eye(SIDE), line)
).tocsr()

product = sparsegen.prepare(plate.astype(np.float32), n=RIGHT_HAND_SIDES)
b = np.random.default_rng(0).standard_normal((SIDE**2, RIGHT_HAND_SIDES), dtype=np.float32)

x, residual = np.zeros_like(b), b.copy()
direction, squared = residual.copy(), np.square(residual).sum(axis=0)
iterations = 0
while np.sqrt(squared.max()) > 1e-4 * np.linalg.norm(b):
    iterations += 1
    applied = product(direction)
    length = squared / (direction * applied).sum(axis=0)
    x += length * direction
    residual -= length * applied
    before, squared = squared, np.square(residual).sum(axis=0)
    direction = residual + squared / before * direction
true = np.linalg.norm(plate @ x.astype(np.float64) - b) / np.linalg.norm(b)
print(
    f"{plate.shape[0]} unknowns, {RIGHT_HAND_SIDES} right-hand sides, {iterations} iterations, residual {true:.0e}"
)
