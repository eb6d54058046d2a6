"""Contract of every kernel family, over a sample of its variants; new families need no new tests."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from contract_calls import run_and_compare
from contract_cases import (
    SIZES,
    Kind,
    Variant,
    heuristic,
    kinds,
    matrices_of,
    missing_choices,
    of_8bit_factors,
    random_config,
    random_valid_config,
    sample,
    traits_of,
)
from contract_matrices import matrices
from contract_ring import all_variants, in_rings, with_new_values
from sharing import IS_WORKER

from sparsegen.backends.emulator import device
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import CompiledKernel
from sparsegen.errors import ConfigError
from sparsegen.kernels import families
from sparsegen.kernels.base import AnyFamily
from sparsegen.kernels.launch import ArgumentKind
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.plan.binding import launch_arguments
from sparsegen.render import render

VARIANTS = all_variants()
COMPILERS = 2
each_family = pytest.mark.parametrize("family", families().values(), ids=families())
each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)


@pytest.fixture(scope="module")
def compiled(
    request: pytest.FixtureRequest, emulator_toolchain: EmulatorToolchain
) -> Iterator[Callable[[Variant], CompiledKernel]]:
    """Compiles a variant; in a run of one process all that are collected, ahead of the tests."""

    def compiled_now(variant: Variant) -> CompiledKernel:
        return emulator_toolchain.compile_sanitized(variant.family.name, variant.family.entry, variant.source)

    if IS_WORKER:  # the other workers keep the other cores busy
        yield compiled_now
        return
    wanted = {
        item.callspec.params["variant"].source: item.callspec.params["variant"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "compiled" in item.fixturenames
    }
    with ThreadPoolExecutor(COMPILERS) as pool:
        ahead = {source: pool.submit(compiled_now, variant) for source, variant in wanted.items()}
        yield lambda variant: ahead[variant.source].result()
        pool.shutdown(cancel_futures=True)


# --- what variants compute ---


@pytest.mark.sanitizer
@pytest.mark.parametrize("variant", in_rings(VARIANTS))
def test_the_product_is_right_and_memory_is_respected(
    variant: Variant, compiled: Callable[[Variant], CompiledKernel]
) -> None:
    kernel = compiled(variant)
    for name in variant.matrices:
        matrix = matrices()[name]
        problem = variant.kind.problem(matrix)
        packed = variant.family.pack(problem, variant.config, matrix)
        run_and_compare(variant, kernel, problem, matrix, packed, where=name)


@pytest.mark.sanitizer
@pytest.mark.parametrize("variant", in_rings(with_new_values()))
def test_new_values_are_a_gather_through_value_source(
    variant: Variant, compiled: Callable[[Variant], CompiledKernel]
) -> None:
    name = variant.matrices[0]
    old = matrices()[name]
    problem = variant.kind.problem(old)
    packed = variant.family.pack(problem, variant.config, old)
    if packed.values is None:
        pytest.skip("the result depends on the pattern alone")
    new = old.with_values(np.random.default_rng(1).standard_normal(old.nnz).astype(np.float32))
    updated = replace(packed, arrays={**packed.arrays, packed.values: gathered(problem, packed, new)})
    run_and_compare(variant, compiled(variant), problem, new, updated, where=name)


def gathered(problem: Problem, packed: Packed, matrix: CsrMatrix) -> Any:
    """The packed values that ``value_source`` tells, in the shape and dtype of those that `pack` made."""
    assert packed.value_source is not None
    source = packed.value_source()
    values = np.append(problem.dtype.to_storage(matrix.values), np.zeros(1, dtype=problem.dtype.storage))
    assert packed.values is not None
    return values[source].reshape(packed.arrays[packed.values].shape)  # -1 takes the zero at the end


# --- what families declare ---


@each_family
def test_the_sample_makes_every_choice(family: AnyFamily) -> None:
    missing = [f"{t.name} = {choice}" for t, choice in missing_choices(family, sample(family.name))]
    assert not missing, "valid for no problem that was tried"


@each_family
def test_the_sample_meets_every_matrix_and_kind(family: AnyFamily) -> None:
    variants = sample(family.name)
    assert {name for v in variants for name in v.matrices} == set(matrices_of(family))
    met = {v.kind.traits for v in variants if v.kind.batch == 1}
    computed = {kind.traits for kind in kinds(family, random.Random(0))}
    narrow = {kind.traits[-1] for kind in of_8bit_factors(family, random.Random(0))}  # with any other traits
    assert {traits for traits in met if traits[-1] not in narrow} == computed and computed
    assert narrow <= {traits[-1] for traits in met}


@each_variant
def test_packing_is_consistent_and_launches_are_possible(variant: Variant) -> None:
    family, config = variant.family, variant.config
    for name in variant.matrices:
        matrix = matrices()[name]
        problem = variant.kind.problem(matrix)
        packed = family.pack(problem, config, matrix)
        launch = family.launch(problem, config, packed.sizes, device())
        assert 1 <= np.prod(launch.block) <= 1024
        assert launch.shared_memory_bytes <= device().shared_memory_per_block
        assert launch.grid[0] < 2**31 and max(launch.grid[1:]) <= 65535
        assert launch.is_empty == (problem.result(matrix.nnz).nbytes == 0)
        arguments = family.arguments(problem)
        by_kind = {kind: [a.name for a in arguments if a.kind is kind] for kind in ArgumentKind}
        assert sorted(packed.arrays) == sorted(by_kind[ArgumentKind.PACKED])
        assert sorted(packed.scratch) == sorted(by_kind[ArgumentKind.SCRATCH])
        assert by_kind[ArgumentKind.OPERAND] == [spec.name for spec in problem.operands(matrix.nnz)]
        assert by_kind[ArgumentKind.RESULT] == [problem.result(matrix.nnz).name]
        assert all(array.flags.c_contiguous and array.size for array in packed.arrays.values())
        if launch.is_empty:
            continue
        found = launch_arguments(family, problem, config, packed, {})
        sizes = [v for a, v in zip(arguments, found, strict=True) if a.kind is ArgumentKind.SIZE]
        assert all(isinstance(size, int) for size in sizes) and packed.nnz == matrix.nnz
        if packed.values is None:
            assert packed.value_source is None
            continue
        assert packed.value_source is not None
        values = packed.arrays[packed.values]
        assert values.dtype == problem.dtype.storage
        source = packed.value_source()
        assert values.size == source.size
        np.testing.assert_array_equal(values, gathered(problem, packed, matrix))
        stored = source[source >= 0]
        np.testing.assert_array_equal(np.sort(stored), np.arange(matrix.nnz), "each nonzero is stored once")


@each_family
def test_configs_with_one_packing_key_share_one_packing(family: AnyFamily) -> None:
    rng = random.Random(family.name)
    matrix = matrices()["aligned_shape"]
    packs = {t.name for t in family.config_type.tunables() if t.packs}
    compared = 0
    for kind in kinds(family, rng):
        problem = kind.problem(matrix)
        one = heuristic(family, problem, matrix)
        for free in (
            "",
            *sorted(packs),
        ):  # not every one matters for every problem
            fixed = {name: getattr(one, name) for name in packs - {free}}
            other = random_valid_config(family, problem, matrix, rng, **fixed)
            if other in (None, one) or family.packing_key(problem, one) != family.packing_key(problem, other):
                continue
            first, second = (family.pack(problem, c, matrix) for c in (one, other))
            assert first.sizes == second.sizes
            for name in first.arrays:
                np.testing.assert_array_equal(first.arrays[name], second.arrays[name])
            compared += 1
    assert compared > 0 or packs == {t.name for t in family.config_type.tunables()}


@each_family
def test_heuristics_are_valid(family: AnyFamily) -> None:
    rng = random.Random(family.name)
    for name in matrices_of(family):
        matrix = matrices()[name]
        for kind, size in itertools.product(list(kinds(family, rng)), (*SIZES, 3, 1000, 100_000)):
            problem = kind.with_sizes(size).problem(matrix)
            broken = family.broken_constraints(problem, heuristic(family, problem, matrix), device())
            assert not broken or not family.computes(problem), f"{name}, {problem}"


@each_family
def test_no_config_is_valid_outside_the_scope(family: AnyFamily) -> None:
    for size, traits in itertools.product(SIZES, traits_of(family.problem_type)):
        problem = Kind.sized(family, size, traits).problem(matrices()["dense"])
        outside = [c.sentence for c in family.scope(problem) if not c.holds]
        assert family.computes(problem) == (not outside)
        if outside:
            broken = family.broken_constraints(
                problem, heuristic(family, problem, matrices()["dense"]), device()
            )
            assert set(outside) <= set(broken)


@each_family
def test_broken_constraints_are_told_in_sentences(family: AnyFamily) -> None:
    rng = random.Random(family.name)
    kind = next(kinds(family, rng))
    problems = [kind.with_sizes(size).problem(matrices()["aligned_shape"]) for size in (40, 7)]
    told = 0
    for attempt in range(200):
        problem, config = problems[attempt % 2], random_config(family, rng)
        broken = family.broken_constraints(problem, config, device())
        assert family.is_valid(problem, config, device()) == (not broken)
        if broken:
            with pytest.raises(ConfigError) as caught:
                family.require_valid(problem, config, device())
            assert all(len(sentence.split()) >= 3 and sentence in str(caught.value) for sentence in broken)
            told += 1
    assert told > 0


@each_family
def test_configs_survive_a_round_trip_through_text(family: AnyFamily) -> None:
    rng = random.Random(family.name)
    for config in (random_config(family, rng) for _ in range(50)):
        fields = config.to_dict()
        assert family.config(**fields) == config
        assert family.config(**{name: str(value) for name, value in fields.items()}) == config


@each_family
def test_values_outside_the_choices_never_reach_a_template(family: AnyFamily) -> None:
    """There is no such config."""
    problem = next(kinds(family, random.Random(0))).with_sizes(8).problem(matrices()["dense"])
    start = heuristic(family, problem, matrices()["dense"]).to_dict()
    for tunable in family.config_type.tunables():
        for hostile in ("1; } evil() {", -12345, None):
            with pytest.raises(ConfigError, match=tunable.name):
                family.config_type(**start | {tunable.name: hostile})


# --- the emitted source ---


@each_variant
def test_sources_are_clean(variant: Variant) -> None:
    source = variant.source
    problem = variant.kind.problem(matrices()[variant.matrices[0]])
    assert render(variant.family, problem, variant.config) == source, "rendering is deterministic"
    assert not re.search(r"\{\{|\}\}(?!;)|\{%|%\}|\{#|#\}", source), "template syntax is left over"
    assert not re.search(r"\n\n\n|[ \t]\n|\t", source), "blank-line runs, trailing blanks or tabs"
    assert source.endswith("}\n")
    code = re.sub(r"//[^\n]*|\"[^\"\n]*\"", "", source)
    for opening, closing in ("{}", "()", "[]"):
        assert code.count(opening) == code.count(closing)
    assert re.search(rf'extern "C" __global__ void [^;]*\b{variant.family.entry}\(', source)
