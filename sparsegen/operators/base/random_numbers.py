"""Normal numbers as operands, large arrays by several threads; a seed gives the same numbers on any number of cores."""

from __future__ import annotations

import math
import os
from functools import partial

import numpy as np

from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.system.numpy_types import Array

STRIP = 1 << 22  # numbers that one generator draws


def normal_numbers(rng: np.random.Generator, spec: TensorSpec, *, scale: float = 1.0) -> Array:
    """Normal numbers of an operand's shape, in its dtype's storage form.

    A larger array than one strip is drawn strip by strip, each by a generator that ``rng`` has spawned.

    Args:
        scale: their standard deviation.
    """
    count = math.prod(spec.shape)
    if count <= STRIP:
        return _drawn(rng, spec, count, scale).reshape(spec.shape)
    found = np.empty(count, spec.dtype.storage)
    strips = [found[start : start + STRIP] for start in range(0, count, STRIP)]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(_fill, spec, scale), rng.spawn(len(strips)), strips))
    return found.reshape(spec.shape)


def _fill(spec: TensorSpec, scale: float, rng: np.random.Generator, strip: Array) -> None:
    strip[:] = _drawn(rng, spec, strip.size, scale)


def _drawn(rng: np.random.Generator, spec: TensorSpec, count: int, scale: float) -> Array:
    numbers = rng.standard_normal(count, dtype=np.float32)
    if scale != 1.0:
        numbers *= np.float32(scale)
    stored: Array = spec.dtype.to_storage(numbers)
    return stored
