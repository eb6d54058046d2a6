"""Products with a sparse matrix, products sampled at one, and softmax over one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sparsegen.bench.drawn.distribution import Distribution, Row
from sparsegen.bench.drawn.draw import Draw
from sparsegen.bench.patterns.patterns import (
    Band,
    Blocks,
    EqualRows,
    Independent,
    Pattern,
    PowerLaw,
    SharedRows,
    VaryingRows,
)
from sparsegen.operators import (
    DType,
    Epilogue,
    Layout,
    Problem,
    QuantizedSpmmProblem,
    ScaleGroup,
    SddmmEpilogue,
    SddmmProblem,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SpmmProblem,
    ValueType,
)

BLOCK_SIDES = (8, 16, 32, 64, 128)
WEIGHTS = ("scattered", "uneven", "even", "blocks", "shared")  # kinds of pruned weights


class OfPattern(Distribution):
    """Problems on a pattern of nonzeros."""

    def nonzeros(self, problem: Problem, pattern: Pattern) -> int:
        rows, columns = pattern.shape
        if isinstance(pattern, PowerLaw):
            return round(rows * pattern.mean_degree)
        if isinstance(pattern, Band):  # the causal half of it
            outside = (rows - pattern.width) ** 2 / 2 * (1 - pattern.sparsity_outside)
            return round(rows * pattern.width + outside)
        assert isinstance(pattern, Independent | EqualRows | VaryingRows | Blocks | SharedRows)
        return round(rows * columns * (1.0 - pattern.sparsity))


def weights(draw: Draw, kind: str, rows: int, columns: int) -> Pattern:
    """The pattern of a pruned layer of about this size: sides become multiples of blocks and groups."""
    if kind == "blocks":
        side = draw.one_of(BLOCK_SIDES)
        rows, columns = (max(2, size // side) * side for size in (rows, columns))
        return Blocks(rows, columns, round(1.0 - draw.share(0.02, 0.95), 3), side, draw.seed())
    sparsity = round(1.0 - draw.share(0.02, 0.6), 3)
    if kind == "even":
        return EqualRows(rows, columns, sparsity, draw.seed())
    if kind == "uneven":
        most = (sparsity / (1.0 - sparsity)) ** 0.5
        return VaryingRows(
            rows, columns, sparsity, min(draw.number(0.1, 1.0), round(0.8 * most, 2)), draw.seed()
        )
    if kind == "shared":
        group = draw.one_of((2, 4, 8, 16))
        return SharedRows(max(1, rows // group) * group, columns, sparsity, group, draw.seed())
    return Independent(rows, columns, sparsity, draw.seed())


def graph(draw: Draw) -> PowerLaw:
    """A graph whose degrees follow a power law."""
    nodes = draw.size(2000, 100_000)
    return PowerLaw(nodes, nodes, draw.number(3, min(60, nodes / 16)), draw.number(2.1, 3.0), draw.seed())


class Spmm(OfPattern):
    operator: ClassVar[str] = SpmmProblem.operator
    words: ClassVar[Mapping[str, str]] = {
        "sizes": "weights of 256 to 12288 rows and columns, one side short (16 to 128) in one of eight; graphs of "
        "2000 to 100000 nodes in one of six",
        "columns": "decoding (1 to 16) in three of ten, prefill and batches (17 to 8192), graphs 8 to 256",
        "pattern": "scattered, uneven rows (variation .1 to 1), even rows, rows in groups of 2 to 16 that share "
        "columns: .02 to .6 dense; blocks of 8 to 128: .02 to .95; graphs: degrees of 3 to 60 by a power law",
        "types": "float16, bfloat16, float32; both memory orders; no epilogue, bias, bias and ReLU",
    }

    def drawn(self, draw: Draw) -> Row:
        kind = "graph" if draw.chance(1 / 6) else draw.one_of(WEIGHTS)
        pattern: Pattern
        if kind == "graph":
            pattern, n = graph(draw), draw.size(8, 256)
        else:
            sides = [draw.size(256, 12288), draw.size(256, 12288)]
            if draw.chance(1 / 8):
                sides[draw.one_of((0, 1))] = draw.size(16, 128)
            pattern = weights(draw, kind, sides[0], sides[1])
            n = draw.whole(1, 16) if draw.chance(0.3) else draw.size(17, 8192)
        rows, columns = pattern.shape
        epilogues = (Epilogue.NONE, Epilogue.BIAS, Epilogue.BIAS_RELU)
        problem = SpmmProblem(
            rows,
            columns,
            n,
            draw.one_of(list(DType)),
            draw.one_of(list(Layout)),
            Epilogue.NONE if kind == "graph" else draw.one_of(epilogues, (3, 1, 1)),
        )
        return problem, pattern, kind

    def dense_flop(self, problem: Problem) -> float:
        assert isinstance(problem, SpmmProblem)
        return 2.0 * problem.m * problem.k * problem.n


class QuantizedSpmm(OfPattern):
    operator: ClassVar[str] = QuantizedSpmmProblem.operator
    words: ClassVar[Mapping[str, str]] = {
        "sizes": "weights of 256 to 12288 rows and columns",
        "columns": "decoding: 1 to 16 in three of four, 17 to 64 else",
        "pattern": "as weights of spmm",
        "types": "codes of 8 and 4 bits in float16 and bfloat16, scales for each row or for 128, 64 or 32 columns of "
        "it; no epilogue, bias, bias and ReLU",
    }

    def drawn(self, draw: Draw) -> Row:
        kind = draw.one_of(WEIGHTS)
        pattern = weights(draw, kind, draw.size(256, 12288), draw.size(256, 12288))
        problem = QuantizedSpmmProblem(
            *pattern.shape,
            draw.whole(1, 16) if draw.chance(0.75) else draw.whole(17, 64),
            draw.one_of((DType.FLOAT16, DType.BFLOAT16)),
            epilogue=draw.one_of((Epilogue.NONE, Epilogue.BIAS, Epilogue.BIAS_RELU), (3, 1, 1)),
            value_type=draw.one_of(list(ValueType)),
            scale_group=draw.one_of(list(ScaleGroup)),
        )
        return problem, pattern, kind

    def dense_flop(self, problem: Problem) -> float:
        assert isinstance(problem, QuantizedSpmmProblem)
        return 2.0 * problem.m * problem.k * problem.n


class Sddmm(OfPattern):
    operator: ClassVar[str] = SddmmProblem.operator
    words: ClassVar[Mapping[str, str]] = {
        "sizes": "gradients of weights of 64 to 8192 rows and columns, graphs of 2000 to 100000 nodes in one of "
        "four, "
        "causal bands of 300 to 8192 places in one of four",
        "contraction": "tokens of a gradient (64 to 4096), features of graphs and of heads (16 to 256)",
        "pattern": "as of spmm; bands 64 to 512 wide with .90 to .99 zeros outside",
        "types": "float16, bfloat16, float32; scaled by the pattern's values in one of four",
    }

    def drawn(self, draw: Draw) -> Row:
        kind = draw.one_of(("graph", "band", *WEIGHTS), (1.0, 1.0, *(2.0 / len(WEIGHTS),) * len(WEIGHTS)))
        pattern: Pattern
        if kind == "graph":
            pattern, k = graph(draw), draw.size(16, 256)
        elif kind == "band":
            length = draw.size(300, 8192)
            width = min(length - 1, draw.whole(64, 512))
            pattern, k = Band(length, length, width, draw.number(0.9, 0.99), draw.seed()), draw.size(16, 256)
        else:
            pattern, k = weights(draw, kind, draw.size(64, 8192), draw.size(64, 8192)), draw.size(64, 4096)
        epilogue = SddmmEpilogue.SCALE if draw.chance(0.25) else SddmmEpilogue.NONE
        return SddmmProblem(*pattern.shape, k, draw.one_of(list(DType)), epilogue), pattern, kind

    def dense_flop(self, problem: Problem) -> float:
        assert isinstance(problem, SddmmProblem)
        return 2.0 * problem.m * problem.n * problem.k


class Softmax(OfPattern):
    """Distribution of softmax problems, over the rows of scores of attention, graphs and weights."""

    kind: type[SoftmaxProblem] | type[SoftmaxBackwardProblem]
    words: ClassVar[Mapping[str, str]] = {
        "sizes": "bands of 300 to 8192 places with 1 to 16 heads, graphs of 2000 to 100000 nodes in one of "
        "four, scattered "
        "patterns of 64 to 8192 rows and columns in one of four",
        "pattern": "as of sddmm",
        "types": "float16, bfloat16, float32",
    }

    def drawn(self, draw: Draw) -> Row:
        kind, heads = draw.one_of(("band", "graph", "scattered"), (2, 1, 1)), 1
        pattern: Pattern
        if kind == "graph":
            pattern = graph(draw)
        elif kind == "band":
            length, heads = draw.size(300, 8192), draw.whole(1, 16)
            width = min(length - 1, draw.whole(64, 512))
            pattern = Band(length, length, width, draw.number(0.9, 0.99), draw.seed())
        else:
            pattern = weights(draw, kind, draw.size(64, 8192), draw.size(64, 8192))
        return self.kind(*pattern.shape, draw.one_of(list(DType)), batch=heads), pattern, kind

    def dense_flop(self, problem: Problem) -> float:
        rows, columns = problem.matrix_shape
        return 5.0 * rows * columns * problem.batch


class SoftmaxForward(Softmax):
    operator: ClassVar[str] = SoftmaxProblem.operator
    kind = SoftmaxProblem


class SoftmaxBackward(Softmax):
    operator: ClassVar[str] = SoftmaxBackwardProblem.operator
    kind = SoftmaxBackwardProblem


DISTRIBUTIONS = (Spmm(), QuantizedSpmm(), Sddmm(), SoftmaxForward(), SoftmaxBackward())
