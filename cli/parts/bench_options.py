"""Cases, baselines and protocol of ``sparsegen bench``, from its options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsegen import arguments
from sparsegen.bench.baseline.baseline import Baseline
from sparsegen.bench.baseline.shared_object import SharedObject
from sparsegen.bench.baselines import baselines
from sparsegen.bench.drawn import SUITE, drawn_cases
from sparsegen.bench.patterns.case import Case, variations
from sparsegen.bench.patterns.patterns import Drawn, MatrixFile
from sparsegen.bench.run.config_set import config_sets
from sparsegen.bench.suites import load_suite
from sparsegen.cli.parts.matrix_options import MatrixOptions
from sparsegen.cli.parts.problems import ProblemOptions
from sparsegen.errors import ConfigError
from sparsegen.operators import DEFAULT_OPERATOR, DType, Problem

MATRIX_SUITE = "matrix"  # suite of a single file
SIZES_SUITE = "sizes"  # suite of masks that come with the call, with sizes from the command line


def cases_of_matrix(given: MatrixOptions, combinations: Iterable[ProblemOptions]) -> list[Case]:
    """One case for each problem that the options name, on the matrix of a file.

    Raises:
        MatrixError: the file cannot be read.
        ConfigError: see `ProblemOptions.problem`.
    """
    path, read = given.file, given.reader
    assert path is not None and read is not None
    shape = read().shape
    pattern = MatrixFile(
        *shape,
        str(path.resolve()),
        given.tensor,
        given.seed,
        drop_zeros=given.drop_zeros,
        memory_limit=given.memory_limit,
        transpose=given.transpose,
    )
    told = given.tensor, "without zeros" * given.drop_zeros, "transposed" * given.transpose
    label = " ".join(filter(None, (path.name, *told)))
    problems = dict.fromkeys(options.problem(shape) for options in combinations)
    return [
        Case(
            MATRIX_SUITE, f"{label} {_name(problem)}".rstrip(), problem, (problem.dtype,), pattern, path.name
        )
        for problem in problems
    ]


def cases_of_sizes(combinations: Iterable[ProblemOptions]) -> list[Case]:
    """One case for each problem whose mask comes with the call, so that there is no matrix.

    Raises:
        click.UsageError: the operator needs a matrix, or a size is missing.
        ConfigError: see `ProblemOptions.problem`.
    """
    problems = dict.fromkeys(options.workload(None)[1] for options in combinations)
    return [
        Case(
            SIZES_SUITE,
            " ".join(
                (problem.operator, *(f"{k}={v}" for k, v in problem.sizes.items()), *variations(problem))
            ),
            problem,
            (problem.dtype,),
            Drawn(*problem.without_pattern.shape),
            "the command line",
        )
        for problem in problems
    ]


def _name(problem: Problem) -> str:
    """Names a problem among those of one matrix, besides dtype and layout: ``n=8 batch=4``, ``sddmm k=64``."""
    operator = () if problem.operator == DEFAULT_OPERATOR else (problem.operator,)
    sizes = (f"{name}={problem.sizes[name]}" for name in problem.dense_sizes)
    return " ".join((*operator, *sizes, *variations(problem)))


@dataclass(frozen=True, slots=True)
class Drawing:
    """Parameters of the suite ``drawn``: rows of an operator, by a seed."""

    operator: str
    seed: int
    rows: int


def cases_of_suites(names: Sequence[str], data: Path | None, drawing: Drawing) -> list[Case]:
    """Returns the cases of all suites named.

    Raises:
        SuiteError: a suite is unknown, or its data is missing or malformed.
    """

    def cases(name: str) -> Sequence[Case]:
        if name == SUITE:
            return drawn_cases(drawing.operator, drawing.seed, drawing.rows)
        return load_suite(name, data).cases

    return [case for name in dict.fromkeys(names) for case in cases(name)]


def dtypes_given(combinations: Iterable[ProblemOptions]) -> list[DType]:
    """The element types that were asked for; none for those of the suites."""
    given = dict.fromkeys(options.values["dtype"] for options in combinations)
    return [dtype for dtype in given if dtype is not None]


def of_dtypes(cases: Sequence[Case], dtypes: Sequence[DType]) -> list[Case]:
    """Cases with no other element types than these; all as they are without any.

    Raises:
        ConfigError: there is none.
    """
    if not dtypes:
        return list(cases)
    found = [case.of_dtypes(kept) for case in cases if (kept := tuple(d for d in case.dtypes if d in dtypes))]
    if not found:
        there = ", ".join(sorted({dtype for case in cases for dtype in case.dtypes}))
        raise ConfigError(f"no case has {' or '.join(dtypes)} elements; there are {there}")
    return found


def named(cases: Sequence[Case], parts: Sequence[str]) -> list[Case]:
    """Cases whose names contain one of these; all without any.

    Raises:
        ConfigError: there is none.
    """
    found = [case for case in cases if not parts or any(part in case.name for part in parts)]
    if not found:
        raise ConfigError(f"no case's name contains {' or '.join(parts)}; the first is {cases[0].name!r}")
    return found


def chosen_baselines(
    only: Sequence[str],
    left_out: Sequence[str],
    own: Sequence[str],
    configs: Sequence[str] = (),
    unseen: Sequence[Baseline] = (),
) -> list[Baseline]:
    """Returns the implementations that take part, users' own last.

    Args:
        configs: texts and files of ``--configs``; they take part even if ``only`` names others.
        unseen: those of ``--untuned-without``, in the same way.

    Raises:
        ConfigError: an unknown name, a name taken twice, or a shared object that is not there.
    """
    known = dict(baselines())
    explored = config_sets(configs)
    for option, baseline in (
        *(("--baseline", one) for one in map(SharedObject.parse, own)),
        *(("--configs", one) for one in explored),
        *(("--untuned-without", one) for one in unseen),
    ):
        if baseline.name in known:
            raise ConfigError(f"{option} {baseline.name}: there is a baseline of this name already")
        known[baseline.name] = baseline
    only = (*only, *(one.name for one in (*explored, *unseen))) if only else ()
    for option, names in (("--only", only), ("--except", left_out)):
        for name in names:
            if name not in known:
                raise ConfigError(f"{option} {arguments.unknown(name, known)}")
    chosen = [c for name, c in known.items() if (not only or name in only) and name not in left_out]
    if not chosen:
        raise ConfigError("no baseline is left")
    return chosen
