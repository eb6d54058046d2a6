"""Products with a mask of blocks that comes with the call: what block dropout and sparse feed-forward layers "
"compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from sparsegen.bench.drawn.distribution import Distribution, Row
from sparsegen.bench.drawn.draw import Draw
from sparsegen.bench.patterns.patterns import Drawn
from sparsegen.operators import (
    Block,
    Density,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    FactorType,
    Layout,
    MaskedProblem,
    Problem,
    Rest,
    SddProblem,
)
from sparsegen.system.integers import round_up

SIDES = (16, 32, 64, 128)
EIGHT_BITS = 16  # sizes of 8-bit factors are multiples of it
EIGHT_BIT_BLOCK = Block(128, 128)
TOKENS = {"decode": (1, 64), "small": (65, 1024), "prefill": (1025, 32768)}


class MaskedProducts(Distribution):
    """Tokens × in × out of a layer: tokens × in under the mask for ``dsd``, and so for its gradients."""

    kind: type[MaskedProblem]
    takes_8_bits = True  # true if there is a kernel for 8-bit factors
    words: ClassVar[Mapping[str, str]] = {
        "sizes": "tokens: decoding (1 to 64) in one of eight, small batches (65 to 1024) in two, prefill and "
        "training (1025 to 32768) in five; layers of 384 to 12288 in and out, one side short (16 to 192) in one of "
        "eight",
        "mask": "blocks of 16, 32, 64 or 128, sides differ in one of five; .02 to 1 of them live, about half (.4 to "
        ".6) in three of ten, each independently",
        "types": "float16, bfloat16, float32; of dsd and sdd 8-bit factors in one of ten, with blocks of 128; "
        "weights (of dsd_transposed the gradient) in both memory orders; of sdd the rest kept or filled",
    }

    def drawn(self, draw: Draw) -> Row:
        of_tokens = draw.one_of(list(TOKENS), (1, 2, 5))
        low, high = TOKENS[of_tokens]
        tokens = draw.whole(low, high) if of_tokens == "decode" else draw.size(low, high)
        sides = [draw.size(384, 12288), draw.size(384, 12288)]
        if draw.chance(1 / 8):
            sides[draw.one_of((0, 1))] = draw.size(16, 192)
        factor_type = FactorType.SAME
        if self.takes_8_bits and draw.chance(0.1):
            factor_type = draw.one_of((FactorType.E4M3, FactorType.E5M2_E4M3))
            tokens, *sides = [round_up(size, EIGHT_BITS) for size in (tokens, *sides)]
        side = draw.one_of(SIDES)
        block = Block(side, draw.one_of(SIDES) if draw.chance(0.2) else side)
        is_plain = factor_type is FactorType.SAME
        if not is_plain:
            block = EIGHT_BIT_BLOCK
        density = Density(draw.number(0.4, 0.6) if draw.chance(0.3) else draw.share(0.02, 1.0))
        dtype = draw.one_of(list(DType)) if is_plain else draw.one_of((DType.FLOAT16, DType.BFLOAT16))
        problem = self.kind(
            m=tokens,
            k=sides[0],
            n=sides[1],
            dtype=dtype,
            block=block,
            density=density,
            factor_type=factor_type,
            **self.more(draw, is_plain=is_plain),
        )
        return problem, Drawn(*problem.matrix_shape), of_tokens

    def more(self, draw: Draw, *, is_plain: bool) -> dict[str, Any]:
        """The operator's own fields.

        Args:
            is_plain: factors have the result's type; 8-bit ones are multiplied in one order of memory.
        """
        return {}

    def dense_flop(self, problem: Problem) -> float:
        assert isinstance(problem, MaskedProblem)
        return 2.0 * problem.m * problem.k * problem.n


class Dsd(MaskedProducts):
    operator: ClassVar[str] = DsdProblem.operator
    kind = DsdProblem

    def more(self, draw: Draw, *, is_plain: bool) -> dict[str, Any]:
        return {"w_layout": draw.one_of(list(Layout)) if is_plain else Layout.COLUMN}


class DsdTransposed(MaskedProducts):
    operator: ClassVar[str] = DsdTransposedProblem.operator
    kind = DsdTransposedProblem
    takes_8_bits = False

    def more(self, draw: Draw, *, is_plain: bool) -> dict[str, Any]:
        return {"y_layout": draw.one_of(list(Layout))}


class Sdd(MaskedProducts):
    operator: ClassVar[str] = SddProblem.operator
    kind = SddProblem

    def more(self, draw: Draw, *, is_plain: bool) -> dict[str, Any]:
        w_layout = draw.one_of(list(Layout)) if is_plain else Layout.ROW
        return {"w_layout": w_layout, "rest": draw.one_of(list(Rest))}


DISTRIBUTIONS = (Dsd(), DsdTransposed(), Sdd())
