"""Rules for a family's declarations and sources, which every family must keep; nothing is compiled.

Each check takes a family or a variant and raises ContractError with a sentence that says what does not hold.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsegen.backends.emulator import device
from sparsegen.errors import ConfigError
from sparsegen.kernels.base import AnyFamily
from sparsegen.kernels.launch import ArgumentKind
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import Problem
from sparsegen.plan.binding import launch_arguments
from sparsegen.render import render
from sparsegen.testing.kinds import SIZES, Kind, kinds, matrices_of, of_8bit_factors, traits_of
from sparsegen.testing.launches import require
from sparsegen.testing.matrices import matrices
from sparsegen.testing.variants import (
    Variant,
    heuristic,
    missing_choices,
    random_config,
    random_valid_config,
    sample,
)

ALL_SIZES = (*SIZES, 3, 1000, 100_000)  # that heuristics are asked for
DRAWN_SIZES = 4  # of these for each matrix and kind
HOSTILE = ("1; } evil() {", -12345, None)  # values that no tunable may take


def makes_every_choice(family: AnyFamily) -> None:
    """Every choice of every tunable is valid for some problem."""
    missing = [f"{t.name} = {choice}" for t, choice in missing_choices(family, sample(family))]
    require(not missing, f"{family.name}: valid for no problem that was tried: {', '.join(missing)}")


def meets_every_matrix_and_kind(family: AnyFamily) -> None:
    """Some variant runs on every matrix, and for every dtype, layout and epilogue that the family computes."""
    variants = sample(family)
    missed = set(matrices_of(family)) - {name for v in variants for name in v.matrices}
    require(not missed, f"{family.name} has no variant for {', '.join(sorted(missed))}")
    met = {v.kind.traits for v in variants if v.kind.batch == 1}
    computed = {kind.traits for kind in kinds(family, random.Random(0))}
    narrow = {kind.traits[-1] for kind in of_8bit_factors(family, random.Random(0))}  # with any other traits
    require(bool(computed), f"{family.name} computes no problem that was tried")
    require(
        {traits for traits in met if traits[-1] not in narrow} == computed,
        f"{family.name}: kinds are missing",
    )
    require(narrow <= {traits[-1] for traits in met}, f"{family.name}: 8-bit factors are missing")


def packings_with_one_key_are_equal(family: AnyFamily) -> None:
    """Configs with one `packing_key` have one packing: what depends on a tunable declares ``packs=True``."""
    rng = random.Random(family.name)
    usable = matrices_of(family)
    require(bool(usable), f"{family.name} computes no problem that was tried")
    matrix = matrices()["aligned_shape" if "aligned_shape" in usable else usable[0]]
    packs = {t.name for t in family.config_type.tunables() if t.packs}
    compared = 0
    for kind in kinds(family, rng):
        problem = kind.problem(matrix)
        usual = heuristic(family, problem, matrix)
        some = (usual, random_valid_config(family, problem, matrix, rng) or usual)
        # Not every tunable matters for every problem, and some configs stand alone with what packs.
        for one, free in itertools.product(some, ("", *sorted(packs))):
            fixed = {name: getattr(one, name) for name in packs - {free}}
            other = random_valid_config(family, problem, matrix, rng, **fixed)
            if other in (None, one) or family.packing_key(problem, one) != family.packing_key(problem, other):
                continue
            first, second = (family.pack(problem, c, matrix) for c in (one, other))
            same = first.sizes == second.sizes and all(
                np.array_equal(first.arrays[name], second.arrays[name]) for name in first.arrays
            )
            require(
                same,
                f"{family.name} packs otherwise for {one.settings} and {other.settings}, of one packing_key",
            )
            compared += 1
    require(
        compared > 0 or packs == {t.name for t in family.config_type.tunables()},
        f"{family.name}: no two configs with one packing_key were found",
    )


def heuristics_are_valid(family: AnyFamily) -> None:
    """The heuristic config is valid for problems in the family's scope: of every matrix and kind, some sizes."""
    rng = random.Random(family.name)
    for name in matrices_of(family):
        matrix = matrices()[name]
        some = ((kind, size) for kind in kinds(family, rng) for size in rng.sample(ALL_SIZES, DRAWN_SIZES))
        for kind, size in some:
            problem = kind.with_sizes(size).problem(matrix)
            broken = family.broken_constraints(problem, heuristic(family, problem, matrix), device())
            require(
                not broken or not family.computes(problem),
                f"{family.name}: the heuristic config for {problem} on {name} breaks: {'; '.join(broken)}",
            )


def scope_bounds_the_constraints(family: AnyFamily) -> None:
    """No config is valid for a problem outside of `scope`, and `constraints` repeats its sentences."""
    matrix = matrices()["dense"]
    for size, traits in itertools.product(SIZES, traits_of(family.problem_type)):
        problem = Kind.sized(family, size, traits).problem(matrix)
        outside = [c.sentence for c in family.scope(problem) if not c.holds]
        require(family.computes(problem) == (not outside), f"{family.name}: computes() differs from scope()")
        if outside:
            broken = family.broken_constraints(problem, heuristic(family, problem, matrix), device())
            require(
                set(outside) <= set(broken), f"{family.name}: constraints() leaves out of scope(): {outside}"
            )


def broken_constraints_are_sentences(family: AnyFamily) -> None:
    """Broken constraints are told in sentences, which the error's message has too."""
    rng = random.Random(family.name)
    kind = _some_kind(family, rng)
    problems = [kind.with_sizes(size).problem(matrices()["aligned_shape"]) for size in (40, 7)]
    told = 0
    for attempt in range(200):
        problem, config = problems[attempt % 2], random_config(family, rng)
        broken = family.broken_constraints(problem, config, device())
        is_valid = family.is_valid(problem, config, device())
        require(is_valid == (not broken), f"{family.name}: is_valid() differs from broken_constraints()")
        if broken:
            told += 1
            message = _refusal(lambda p=problem, c=config: family.require_valid(p, c, device()))  # type: ignore[misc]
            for sentence in broken:
                require(
                    len(sentence.split()) >= 3 and sentence in message,
                    f"{family.name}: {sentence!r} is no sentence, or the error does not say it",
                )
    if told == 0:
        valid = len(family.space(problems[0], device(), whole=True))
        every = math.prod(len(t.choices) for t in family.config_type.tunables())
        require(
            valid == every, f"{family.name}: of {every} configs {valid} are valid, and no constraint says why"
        )


def configs_survive_text(family: AnyFamily) -> None:
    """A config is the same after a round trip through words, as databases and command lines have them."""
    rng = random.Random(family.name)
    for config in (random_config(family, rng) for _ in range(50)):
        fields = config.to_dict()
        words = {name: str(value) for name, value in fields.items()}
        require(
            family.config(**fields) == config == family.config(**words),
            f"{family.name}: {config.settings} is another config after a round trip through text",
        )


def hostile_values_are_refused(family: AnyFamily) -> None:
    """No config has a value outside of its tunable's choices, so that none reaches a template."""
    problem = _some_kind(family, random.Random(0)).with_sizes(8).problem(matrices()["dense"])
    start = heuristic(family, problem, matrices()["dense"]).to_dict()
    for tunable in family.config_type.tunables():
        for value in HOSTILE:
            message = _refusal(lambda t=tunable, v=value: family.config_type(**start | {t.name: v}))  # type: ignore[misc]
            require(
                tunable.name in message, f"{family.name}: {tunable.name} = {value!r} is not refused by name"
            )


def packing_and_launch_agree(variant: Variant) -> None:
    """The packed arrays are those of the signature, values are where `value_source` says, and launches are possible."""
    family, config = variant.family, variant.config
    for name in variant.matrices:
        matrix = matrices()[name]
        problem = variant.kind.problem(matrix)
        packed = family.pack(problem, config, matrix)
        _require_launch(variant, problem, matrix, packed)
        _require_arguments(variant, problem, matrix, packed)
        if packed.values is None:
            require(packed.value_source is None, f"{variant}: a value_source without values")
        else:
            _require_values(variant, problem, matrix, packed)


def _require_launch(variant: Variant, problem: Problem, matrix: CsrMatrix, packed: Packed[Array]) -> None:
    launch = variant.family.launch(problem, variant.config, packed.sizes, device())
    require(1 <= math.prod(launch.block) <= 1024, f"{variant}: a block of {launch.block} threads")
    require(
        launch.shared_memory_bytes <= device().shared_memory_per_block,
        f"{variant}: {launch.shared_memory_bytes} bytes of shared memory",
    )
    require(launch.grid[0] < 2**31 and max(launch.grid[1:]) <= 65535, f"{variant}: a grid of {launch.grid}")
    is_empty = problem.result(matrix.nnz).nbytes == 0
    require(
        launch.is_empty == is_empty, f"{variant}: a launch is empty where the result is, and nowhere else"
    )


def _require_arguments(variant: Variant, problem: Problem, matrix: CsrMatrix, packed: Packed[Array]) -> None:
    family, config = variant.family, variant.config
    arguments = family.arguments(problem)
    named = {kind: [a.name for a in arguments if a.kind is kind] for kind in ArgumentKind}
    expected = {
        ArgumentKind.PACKED: list(packed.arrays),
        ArgumentKind.SCRATCH: list(packed.scratch),
        ArgumentKind.OPERAND: [spec.name for spec in problem.operands(matrix.nnz)],
        ArgumentKind.RESULT: [problem.result(matrix.nnz).name],
    }
    for kind, names in expected.items():
        require(sorted(named[kind]) == sorted(names), f"{variant}: {kind} is {named[kind]}, expected {names}")
    operands = named[ArgumentKind.OPERAND]
    require(operands == expected[ArgumentKind.OPERAND], f"{variant}: operands are in another order")
    for name, array in packed.arrays.items():
        require(
            array.flags.c_contiguous and array.size > 0,
            f"{variant}: packed array {name} is empty or not C-contiguous",
        )
    require(packed.nnz == matrix.nnz, f"{variant}: packed {packed.nnz} nonzeros of {matrix.nnz}")
    if not family.launch(problem, config, packed.sizes, device()).is_empty:
        found = launch_arguments(family, problem, config, packed, {})
        sizes = [v for a, v in zip(arguments, found, strict=True) if a.kind is ArgumentKind.SIZE]
        require(
            all(isinstance(size, int) for size in sizes), f"{variant}: sizes are not Python's int: {sizes}"
        )


def _require_values(variant: Variant, problem: Problem, matrix: CsrMatrix, packed: Packed[Array]) -> None:
    require(packed.value_source is not None, f"{variant}: packed values need a value_source")
    assert packed.values is not None and packed.value_source is not None
    values, source = packed.arrays[packed.values], packed.value_source()
    require(values.dtype == problem.dtype.storage, f"{variant}: packed values are {values.dtype}")
    require(
        values.size == source.size, f"{variant}: {values.size} packed values, value_source has {source.size}"
    )
    require(
        np.array_equal(values, gathered(problem, packed, matrix)),
        f"{variant}: the packed values are not those that value_source names",
    )
    stored = np.sort(source[source >= 0])
    require(np.array_equal(stored, np.arange(matrix.nnz)), f"{variant}: not every nonzero is stored once")


def gathered(problem: Problem, packed: Packed[Array], matrix: CsrMatrix) -> Array:
    """The packed values that ``value_source`` tells, in the shape and dtype of those that `pack` made."""
    assert packed.value_source is not None and packed.values is not None
    source = packed.value_source()
    values: Array = np.append(
        problem.dtype.to_storage(matrix.values), np.zeros(1, dtype=problem.dtype.storage)
    )
    return values[source].reshape(packed.arrays[packed.values].shape)  # -1 takes the zero at the end


def source_is_clean(variant: Variant) -> None:
    """The emitted source is deterministic, well-formed, and without remains of the template's syntax."""
    source = variant.source
    problem = variant.kind.problem(matrices()[variant.matrices[0]])
    require(
        render(variant.family, problem, variant.config) == source,
        f"{variant}: rendering is not deterministic",
    )
    untidy = {
        r"\{\{|\}\}(?!;)|\{%|%\}|\{#|#\}": "template syntax is left over",
        r"\n\n\n|[ \t]\n|\t": "blank-line runs, trailing blanks or tabs",
    }
    for pattern, what in untidy.items():
        found = re.search(pattern, source)
        line = source.count("\n", 0, found.start()) + 1 if found else 0
        require(found is None, f"{variant}: {what} in line {line}")
    require(source.endswith("}\n"), f"{variant}: the source does not end with a closing brace and a newline")
    code = re.sub(r"//[^\n]*|\"[^\"\n]*\"", "", source)
    for opening, closing in ("{}", "()", "[]"):
        require(code.count(opening) == code.count(closing), f"{variant}: {opening}{closing} do not match")
    entry = rf'extern "C" __global__ void [^;]*\b{variant.family.entry}\('
    require(re.search(entry, source) is not None, f"{variant}: no __global__ function {variant.family.entry}")


def _some_kind(family: AnyFamily, rng: random.Random) -> Kind:
    kind = next(kinds(family, rng), None)
    require(kind is not None, f"{family.name} computes no problem that was tried")
    assert kind is not None
    return kind


def _refusal(work: Callable[[], Any]) -> str:
    """The message of the ConfigError that ``work`` raises; empty where it raises none."""
    try:
        work()
    except ConfigError as error:
        return str(error)
    return ""


OF_FAMILIES: tuple[Callable[[AnyFamily], None], ...] = (
    makes_every_choice,
    meets_every_matrix_and_kind,
    packings_with_one_key_are_equal,
    heuristics_are_valid,
    scope_bounds_the_constraints,
    broken_constraints_are_sentences,
    configs_survive_text,
    hostile_values_are_refused,
)
OF_VARIANTS: tuple[Callable[[Variant], None], ...] = (packing_and_launch_agree, source_is_clean)
