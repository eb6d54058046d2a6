"""What contenders that know no masks on results are held to: the live blocks of a whole product."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparsegen.kernels.base import Array
from sparsegen.operators import SddProblem


def live_alone(read: Callable[[], Array], live: Array, problem: SddProblem) -> Callable[[], Array]:
    """Reads a whole product, with what the problem has there in the place of dead elements.

    Args:
        read: the whole product, in storage form.
        live: bool for each element.
    """
    dead = problem.dtype.to_storage(np.full(1, problem.rest.left, np.float32))[0]

    def read_live() -> Array:
        found: Array = np.where(live, read(), dead).astype(problem.dtype.storage)
        return found

    return read_live
