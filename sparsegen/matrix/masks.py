"""Masks of sparse attention as patterns of nonzeros, the same on every machine from the same seed.

Row i of a mask holds the positions that query i attends to; with ``causal`` none of them is after i. Every query
attends to itself. All values are 1: attention reads the places alone.
"""

from __future__ import annotations

import numpy as np

from sparsegen import arguments
from sparsegen.errors import MatrixError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.csr import MAX_INDEX, CsrMatrix, check_shape
from sparsegen.matrix.random_words import Words
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

_CHUNK = 1 << 20  # elements looked at together: bounds memory, and stays in the processor's cache
_HIGHEST = 2**32 - 1


def band(
    length: int, width: int = 256, sparsity: float = 0.95, *, causal: bool = True, seed: int = 0
) -> CsrMatrix:
    """A dense band along the diagonal, and outside it nonzeros with a probability inverse to the distance from it.

    The mask of the sparse Transformer in Gale et al., SC 2020, section VII, whose values are the defaults. A place at
    distance d ≥ ``width`` is there with probability c / d, at most 1, independently of the others; c is such that a
    share of 1 - ``sparsity`` of these places is expected. The causal mask is the lower triangle of the other one of the
    same seed. Takes time for each place of length × length, but memory only for the nonzeros.

    Args:
        width: width of the band: places at a distance below it are all there.
        sparsity: sparsity of the places outside the band, from 0 to 1.

    Raises:
        MatrixError: a size or share out of range, or more nonzeros than 32-bit indices count or memory holds.
    """
    length, width = _checked("band", length, least=1, width=width)
    causal, seed = _flag(causal), _seed(seed)
    sparsity = arguments.number(sparsity, "sparsity", MatrixError)
    if not 0 <= sparsity <= 1:
        raise MatrixError(f"a sparsity lies in [0, 1], got {sparsity}", source="band mask")
    if sparsity == 1 or width >= length:
        return sliding_window(length, width, causal=causal)
    outside = (length - width) * (length - width + 1) // (2 if causal else 1)
    _require_room("band", length, length + round((1 - sparsity) * outside))
    highest = _highest_words(length, width, 1 - sparsity)
    by_offset = np.concatenate((highest[:0:-1], highest))  # indexed by column - row, from 1 - length on
    thresholds = np.lib.stride_tricks.sliding_window_view(by_offset, length)[
        ::-1
    ]  # length × length, without memory
    words, lengths = Words(seed), np.zeros(length, dtype=np.int64)
    parts = []
    step = max(1, _CHUNK // length)
    for start in range(0, length, step):
        stop = min(start + step, length)
        drawn = words.halves(
            stop - start, length
        )  # drawn for whole rows: neither chunks nor causality change a draw
        seen = stop if causal else length
        rows, columns = np.divmod(np.flatnonzero(drawn[:, :seen] <= thresholds[start:stop, :seen]), seen)
        if causal:
            is_past = columns <= rows + start
            rows, columns = rows[is_past], columns[is_past]
        lengths[start:stop] = np.bincount(rows, minlength=stop - start)
        parts.append(columns.astype(np.int32))
    return _mask(lengths, np.concatenate(parts))


def sliding_window(length: int, window: int, sinks: int = 0, *, causal: bool = True) -> CsrMatrix:
    """Every place at a distance below ``window``, and the first ``sinks`` columns.

    Attention sinks are those of Xiao et al., Efficient Streaming Language Models with Attention Sinks, ICLR 2024.

    Raises:
        MatrixError: a size out of range, or more nonzeros than 32-bit indices count or memory holds.
    """
    length, window = _checked("sliding-window", length, least=1, window=window)
    length, sinks = _checked("sliding-window", length, least=0, sinks=sinks)
    causal = _flag(causal)
    rows = np.arange(length, dtype=np.int64)
    starts = np.maximum(rows - window + 1, 0)
    stops = rows + 1 if causal else np.minimum(rows + window, length)
    sunk = np.minimum(min(sinks, length), stops if causal else length)
    return _of_runs(
        length,
        np.concatenate((rows, rows)),
        np.concatenate((np.zeros(length, dtype=np.int64), np.maximum(starts, sunk))),
        np.concatenate((np.broadcast_to(sunk, length), np.maximum(stops, sunk))),
    )


def strided(length: int, stride: int, *, causal: bool = True) -> CsrMatrix:
    """The places at a distance below ``stride`` or a multiple of it.

    Both parts of strided attention in Child et al., Generating Long Sequences with Sparse Transformers, 2019, section
    4.2, in one mask.

    Raises:
        MatrixError: a size out of range, or more nonzeros than 32-bit indices count or memory holds.
    """
    length, stride = _checked("strided", length, least=1, stride=stride)
    causal = _flag(causal)
    rows = np.arange(length, dtype=np.int64)
    before, after = rows // stride, np.zeros_like(rows) if causal else (length - 1 - rows) // stride
    _require_room("strided", length, int(before.sum() + after.sum()))
    # Beside the window, each multiple is a run of one place.
    back = np.repeat(rows, before), _counted(before) + 1
    ahead = np.repeat(rows, after), _counted(after) + 1
    left, right = back[0] - stride * back[1], ahead[0] + stride * ahead[1]
    starts = np.maximum(rows - stride + 1, 0)
    stops = rows + 1 if causal else np.minimum(rows + stride, length)
    return _of_runs(
        length,
        np.concatenate((rows, back[0], ahead[0])),
        np.concatenate((starts, left, right)),
        np.concatenate((stops, left + 1, right + 1)),
    )


def blocks(
    length: int, block: int, neighbours: int = 1, extra: int = 0, *, causal: bool = True, seed: int = 0
) -> CsrMatrix:
    """Dense blocks on an aligned grid: those near the diagonal, and in each row of blocks some at random.

    Like the windows and random blocks in Zaheer et al., Big Bird, NeurIPS 2020, section 2. The last block is cut off
    where ``block`` does not divide the length, and with ``causal`` those on the diagonal are triangles.

    Args:
        block: its side.
        neighbours: blocks on each side of the diagonal one.
        extra: further blocks in each row of blocks, every set equally likely; all there are where they are fewer.

    Raises:
        MatrixError: a size out of range, or more nonzeros than 32-bit indices count or memory holds.
    """
    length, block = _checked("block", length, least=1, block=block)
    length, neighbours, extra = _checked("block", length, least=0, neighbours=neighbours, extra=extra)
    causal, seed = _flag(causal), _seed(seed)
    across = ceil_div(length, block)
    words, columns = Words(seed), np.arange(across, dtype=np.int64)
    lines, found = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    step = max(1, _CHUNK // max(across, 1))
    for start in range(0, across, step):
        own = np.arange(start, min(start + step, across), dtype=np.int64)[:, None]
        is_near = np.abs(columns - own) <= neighbours
        is_past = columns <= own if causal else np.ones_like(is_near)
        chosen = is_near & is_past
        if extra:
            keys = words.ranked(own.size, across)
            keys[is_near | ~is_past] = np.iinfo(np.uint64).max  # not to be chosen
            last = np.sort(keys, axis=1)[:, min(extra, across) - 1, None]
            chosen |= (keys <= last) & ~is_near & is_past
        line, column = np.nonzero(chosen)
        lines.append(line + start)
        found.append(column)
    line, column = np.concatenate(lines), np.concatenate(found)
    rows = (line[:, None] * block + np.arange(block)).ravel()
    starts = np.repeat(column * block, block)
    stops = np.minimum(starts + block, length)
    if causal:
        stops = np.minimum(stops, rows + 1)
    is_inside = rows < length
    return _of_runs(length, rows[is_inside], starts[is_inside], stops[is_inside])


def documents(length: int, mean: int, *, causal: bool = True, seed: int = 0) -> CsrMatrix:
    """Documents of random lengths, packed into one sequence: each place sees those of its own document.

    Lengths follow the exponential distribution, as ends at random places do; the last document is cut off.

    Args:
        mean: average number of a document's places.

    Raises:
        MatrixError: a size out of range, or more nonzeros than 32-bit indices count or memory holds.
    """
    length, mean = _checked("document", length, least=1, mean=mean)
    causal, seed = _flag(causal), _seed(seed)
    begins = Words(seed).fractions(length) < 1.0 / mean
    begins[:1] = True
    firsts = np.flatnonzero(begins)
    of_row = np.cumsum(begins) - 1
    rows = np.arange(length, dtype=np.int64)
    stops = rows + 1 if causal else np.append(firsts[1:], length)[of_row]
    return _of_runs(length, rows, firsts[of_row], stops)


def global_tokens(length: int, window: int, tokens: int) -> CsrMatrix:
    """Places at a distance below ``window`` see each other, and the first ``tokens`` see all and are seen by all.

    Beltagy et al., Longformer: The Long-Document Transformer, 2020, section 3.1.

    Raises:
        MatrixError: a size out of range, or more nonzeros than 32-bit indices count or memory holds.
    """
    length, window = _checked("global-token", length, least=1, window=window)
    length, tokens = _checked("global-token", length, least=0, tokens=tokens)
    rows = np.arange(length, dtype=np.int64)
    seen = np.where(rows < tokens, length, min(tokens, length))
    starts = np.maximum(rows - window + 1, seen)
    return _of_runs(
        length,
        np.concatenate((rows, rows)),
        np.concatenate((np.zeros_like(rows), starts)),
        np.concatenate((seen, np.maximum(np.minimum(rows + window, length), starts))),
    )


def _checked(kind: str, length: int, *, least: int, **sizes: int) -> tuple[int, ...]:
    """The length and the sizes as Python integers."""
    length = arguments.whole(length, "length", MatrixError)
    check_shape((length, length), source=f"{kind} mask")
    _require_room(kind, length, nonzeros=length)  # every query sees itself
    found = [length]
    for name, given in sizes.items():
        size = arguments.whole(given, name, MatrixError)
        if not least <= size <= MAX_INDEX:
            raise MatrixError(f"{name} = {size} is outside [{least}, {MAX_INDEX}]", source=f"{kind} mask")
        found.append(size)
    return tuple(found)


def _flag(causal: bool) -> bool:
    return arguments.flag(causal, "causal", MatrixError)


def _seed(seed: int) -> int:
    return arguments.whole(seed, "seed", MatrixError, least=0)


def _highest_words(length: int, width: int, density: float) -> Array:
    """uint32 for each distance: a place there is a nonzero if its 32 random bits are at most that."""
    distances = np.arange(width, length, dtype=np.float64)
    places = length - distances
    target = density * float(np.cumsum(places)[-1])
    # The number expected grows with the factor c; cumsum adds in one order everywhere, which sum need not.
    low, high = 0.0, float(length)
    for _ in range(100):
        middle = (low + high) / 2
        if float(np.cumsum(places * np.minimum(1.0, middle / distances))[-1]) < target:
            low = middle
        else:
            high = middle
    chances = np.minimum(1.0, high / distances)
    highest: Array = np.full(length, _HIGHEST, dtype=np.uint32)
    highest[width:] = np.maximum(np.rint(chances * 2.0**32), 1.0) - 1
    return highest


def _counted(counts: Array) -> Array:
    """0, 1, … below each of the counts, one after the other."""
    ends = np.cumsum(counts)
    numbers: Array = np.arange(int(ends[-1]) if ends.size else 0, dtype=np.int64)
    numbers -= np.repeat(ends - counts, counts)
    return numbers


def _of_runs(length: int, rows: Array, starts: Array, stops: Array) -> CsrMatrix:
    """The mask of these runs of columns, in any order; those of a row do not overlap, and may be empty."""
    order = np.lexsort((starts, rows))
    rows, starts, sizes = rows[order], starts[order], (stops - starts)[order]
    _require_room("attention", length, int(sizes.sum()))
    columns = _counted(sizes)
    columns += np.repeat(starts, sizes)
    lengths = np.zeros(length, dtype=np.int64)
    np.add.at(lengths, rows, sizes)
    return _mask(lengths, columns.astype(np.int32))


def _require_room(kind: str, length: int, nonzeros: int) -> None:
    """Refuses, before long work, a mask with more nonzeros than indices count or the machine has memory for."""
    source = f"{kind} mask"
    if nonzeros > MAX_INDEX:
        raise MatrixError(f"{nonzeros} nonzeros are over the 32-bit index range ({MAX_INDEX})", source=source)
    MemoryBudget.of_machine(source).require_matrix((length, length), nonzeros)


def _mask(lengths: Array, columns: Array) -> CsrMatrix:
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return CsrMatrix((lengths.size, lengths.size), offsets, columns, np.ones(columns.size, dtype=np.float32))
