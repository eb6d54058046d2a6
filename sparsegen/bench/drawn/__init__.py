"""Problems that are drawn anew for every seed, as users have them: the suite ``drawn``.

A list of problems teaches to the list. Each operator has a `Distribution`; a seed names rows of it, equal ones every
time, and other seeds name others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from sparsegen.bench.drawn import attention, convolution, masked, networks, points, products
from sparsegen.bench.drawn.distribution import Distribution
from sparsegen.bench.drawn.draw import Draw
from sparsegen.bench.patterns.case import Case, variations
from sparsegen.errors import SuiteError

SUITE = "drawn"
ROWS = 60


@cache
def distributions() -> Mapping[str, Distribution]:
    """The distribution of each operator that has one, by the operator's name."""
    groups = (products, masked, convolution, attention, networks, points)
    return {of.operator: of for group in groups for of in group.DISTRIBUTIONS}


def drawn_suite(operator: str, seed: int) -> str:
    """The name of the suite that the rows of a seed are of: ``drawn-dsd-7``."""
    return f"{SUITE}-{operator}-{seed}"


def drawn_cases(operator: str, seed: int, rows: int = ROWS) -> list[Case]:
    """The first rows of a seed, each with one dtype; more of them begin with the same.

    Args:
        seed: a whole number from 0 on.
        rows: their number, from 1 on.

    Raises:
        SuiteError: nothing is drawn of this operator.
    """
    found = distributions().get(operator)
    if found is None:
        raise SuiteError(f"nothing is drawn of {operator}; there are {', '.join(distributions())}")
    return [_case(found, seed, number) for number in range(rows)]


def _case(of: Distribution, seed: int, number: int) -> Case:
    problem, pattern, what = of.problem(Draw(of.operator, seed, number))
    sizes = "x".join(map(str, problem.sizes.values()))
    return Case(
        suite=drawn_suite(of.operator, seed),
        name=" ".join((f"{number:03d}", sizes, what, *variations(problem))),
        problem=problem,
        dtypes=(problem.dtype,),
        pattern=pattern,
        source=f"drawn with seed {seed}: docs/benchmarks.md",
    )
