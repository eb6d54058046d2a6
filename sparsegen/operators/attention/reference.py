"""The references of attention by blocks and of its gradients, with bounds on what rounding does to them."""

from __future__ import annotations

import numpy as np

from sparsegen.operators.attention.scores import HeadScores
from sparsegen.operators.base.dtype import DType
from sparsegen.system.numpy_types import Array

SMALLEST_HALF = 2.0**-25  # half of float16's smallest number


def attention_of(
    q: Array, k: Array, v: Array, seen: Array, scores: HeadScores, dtype: DType, first_query: int
) -> tuple[Array, Array, Array, Array]:
    """Some queries' attention with its magnitude, and the LSE with its magnitude, in float64.

    With weights w = exp(z - the row's largest) the result is the sum of w · v over that of w. To first order it errs
    by at most twice the largest relative error of a weight times the mean of |v| under the weights:

    - z is a dot product of head_dim terms in float32 (Higham, 3.1; |q| · |k| bounds the sum of their absolute values by
      Cauchy and Schwarz), whose rounding, scaling and difference change an exponent by a few units of the last place of
      the row's largest |z|;
    - the sums over the row have as many terms as it has live places;
    - weights may be rounded to the dtype before they meet V, which takes them off by its unit roundoff, or in float16
      by half of its smallest number.

    - what becomes of scores is rounded a few times at its own size, that of the cap or of the bias.

    The LSE errs by what the exponents and the sum do. Both magnitudes are such that 4 · √(keys + 2) units of float32's
    last place of them make that bound.

    Args:
        q, k, v: queries × head_dim, and twice keys × head_dim.
        seen: bool, queries × keys.
        first_query: number of the first of the queries.
    """
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    head_dim, live = q.shape[1], seen.sum(axis=1, keepdims=True)
    z, _, rounded = scores.of_places(q, k, first_query)
    z = np.where(seen, z, -np.inf)
    largest = np.maximum(z.max(axis=1, keepdims=True), scores.sink)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    weights = np.exp(z - largest)
    total = weights.sum(axis=1, keepdims=True) + np.exp(scores.sink - largest)
    weights /= np.where(total > 0, total, 1.0)
    exact, mean = weights @ v, weights @ np.abs(v)
    with np.errstate(divide="ignore"):
        lse = (largest + np.log(total))[:, 0]
    # Bound on scores, by norms of each query and of the longest key that it sees.
    longest = np.where(seen, np.linalg.norm(k, axis=1), 0.0).max(axis=1, keepdims=True)
    size = np.abs(scores.scale) * np.linalg.norm(q, axis=1, keepdims=True) * longest
    of_scores = 4.0 * np.sqrt(head_dim + 2.0) * size
    roundings = 16.0 + 16.0 * np.where(seen, rounded, 0.0).max(axis=1, keepdims=True)
    if np.isfinite(scores.sink):
        roundings += 16.0 * abs(scores.sink)
    of_weights = of_scores + roundings + 4.0 * np.sqrt(live + 2.0)
    unit, growth = DType.FLOAT32.unit_roundoff, 4.0 * np.sqrt(k.shape[0] + 2.0)
    error = (2.0 * of_weights + dtype.unit_roundoff / unit) * mean
    if dtype is DType.FLOAT16:
        error += 2.0**-25 / unit * (seen @ np.abs(v))
    return exact, error / growth, lse, of_weights[:, 0] / growth


def gradients_of(
    q: Array,
    o: Array,
    do: Array,
    lse: Array,
    k: Array,
    v: Array,
    seen: Array,
    scores: HeadScores,
    dtype: DType,
    first_query: int,
) -> dict[str, tuple[Array, Array]]:
    """Some queries' part of dQ, dK and dV, each with its error in units of float32's last place, in float64.

    - A weight's exponent errs by a dot product of head_dim terms (see `attention_of`) and by a few units of the last
      place of the largest score and of the LSE, and the weight is rounded to the dtype.
    - dP and δ are dot products of head_dim terms, bounded by norms (Cauchy and Schwarz).
    - dS is rounded to the dtype, in float16 to no less than half of its smallest number.
    - Sums over rows or columns have as many terms as there are live places.

    Args:
        q, o, do: queries × head_dim; lse: one for each query.
        k, v: keys × head_dim.
        seen: bool, queries × keys.
        first_query: number of the first of the queries.
    """
    unit, rounding = DType.FLOAT32.unit_roundoff, dtype.unit_roundoff / DType.FLOAT32.unit_roundoff
    lost = SMALLEST_HALF / unit if dtype is DType.FLOAT16 else 0.0
    seen = seen & np.isfinite(lse)[:, None]
    reference = np.where(np.isfinite(lse), lse, 0.0)[:, None]
    z, slope, rounded = scores.of_places(q, k, first_query)
    z, rounded = np.where(seen, z, 0.0), np.where(seen, rounded, 0.0)
    p = np.where(seen, np.exp(np.where(seen, z - reference, -np.inf)), 0.0)
    dp, delta = do @ v.T, np.sum(do * o, axis=1, keepdims=True)
    ds = p * slope * (dp - delta)

    def norms(rows: Array) -> Array:
        found: Array = np.linalg.norm(rows, axis=1)
        return found

    scale, dot = scores.scale, 4.0 * np.sqrt(max(q.shape[1], v.shape[1]) + 2.0)
    of_exponents = dot * np.abs(scale) * norms(q)[:, None] * norms(k) + 16.0 * (
        1.0 + rounded + np.abs(reference)
    )
    of_weights = p * (of_exponents + rounding)
    of_differences = dot * norms(do)[:, None] * (norms(v) + norms(o)[:, None]) + 4.0 * np.abs(dp - delta)
    of_slopes = 16.0 * p * (1.0 - slope)
    of_ds = np.abs(dp - delta) * (of_weights + of_slopes) + p * of_differences + rounding * np.abs(ds) + lost
    of_ds = np.where(seen, of_ds, 0.0)
    rows, columns = (4.0 * np.sqrt(seen.sum(axis=axis, keepdims=True) + 2.0) for axis in (1, 0))
    of_dq, of_dk = of_ds + rows * np.abs(ds), of_ds + columns * np.abs(ds)
    of_dv = np.where(seen, of_weights + columns * p + lost, 0.0)
    return {
        "dq": (ds @ k * scale, of_dq @ np.abs(k) * abs(scale)),
        "dk": (ds.T @ q * scale, of_dk.T @ np.abs(q) * abs(scale)),
        "dv": (p.T @ do, of_dv.T @ np.abs(do)),
    }


def sink_gradient_of(o: Array, do: Array, lse: Array, sink: float) -> tuple[float, float]:
    """The gradient by a head's learned logit, -Σ exp(sink - LSE) · δ, and its error in units of float32's last place.

    Args:
        o, do: queries × head_dim; lse: one for each query, in float64.
    """
    is_finite = np.isfinite(lse)
    weights = np.where(is_finite, np.exp(np.where(is_finite, sink - lse, 0.0)), 0.0)
    terms = weights * np.sum(do * o, axis=1)
    exponents = 16.0 * (1.0 + abs(sink) + np.abs(np.where(is_finite, lse, 0.0)))
    dot = 4.0 * np.sqrt(o.shape[1] + 2.0) * np.linalg.norm(do, axis=1) * np.linalg.norm(o, axis=1)
    growth = 4.0 * np.sqrt(lse.size + 2.0)
    return -float(terms.sum()), float(np.sum(np.abs(terms) * (exponents + growth) + weights * dot))
