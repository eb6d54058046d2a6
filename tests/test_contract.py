"""Contract of every kernel family, over a sample of its variants; new families need no new tests.

The checks themselves are public (`sparsegen.testing`), for families that others write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from contract_ring import all_variants, by_matrices, in_rings, with_new_values
from sharing import IS_WORKER

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import CompiledKernel
from sparsegen.kernels import families
from sparsegen.kernels.base import AnyFamily
from sparsegen.testing import checks, products
from sparsegen.testing.variants import Variant, sample

VARIANTS = all_variants()
COMPILERS = 2
each_family = pytest.mark.parametrize("family", families().values(), ids=families())


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
@pytest.mark.parametrize("variant", by_matrices(VARIANTS))
def test_the_product_is_right_and_memory_is_respected(
    variant: Variant, compiled: Callable[[Variant], CompiledKernel]
) -> None:
    products.results_are_right(variant, compiled(variant))


@pytest.mark.sanitizer
@pytest.mark.parametrize("variant", in_rings(with_new_values()))
def test_new_values_are_a_gather_through_value_source(
    variant: Variant, compiled: Callable[[Variant], CompiledKernel]
) -> None:
    if not products.has_values(variant):
        pytest.skip("the result depends on the pattern alone")
    products.new_values_are_gathered(variant, compiled(variant))


# --- what families declare ---


@each_family
def test_the_sample_makes_every_choice(family: AnyFamily) -> None:
    checks.makes_every_choice(family)


@each_family
def test_the_sample_meets_every_matrix_and_kind(family: AnyFamily) -> None:
    checks.meets_every_matrix_and_kind(family)


@each_family
def test_packing_is_consistent_and_launches_are_possible(family: AnyFamily) -> None:
    for variant in sample(family):
        checks.packing_and_launch_agree(variant)


@each_family
def test_configs_with_one_packing_key_share_one_packing(family: AnyFamily) -> None:
    checks.packings_with_one_key_are_equal(family)


@each_family
def test_heuristics_are_valid(family: AnyFamily) -> None:
    checks.heuristics_are_valid(family)


@each_family
def test_no_config_is_valid_outside_the_scope(family: AnyFamily) -> None:
    checks.scope_bounds_the_constraints(family)


@each_family
def test_broken_constraints_are_told_in_sentences(family: AnyFamily) -> None:
    checks.broken_constraints_are_sentences(family)


@each_family
def test_configs_survive_a_round_trip_through_text(family: AnyFamily) -> None:
    checks.configs_survive_text(family)


@each_family
def test_values_outside_the_choices_never_reach_a_template(family: AnyFamily) -> None:
    """There is no such config."""
    checks.hostile_values_are_refused(family)


@each_family
def test_sources_are_clean(family: AnyFamily) -> None:
    for variant in sample(family):
        checks.source_is_clean(variant)


def test_these_are_all_checks() -> None:
    called = Path(__file__).read_text()
    assert all(f"checks.{check.__name__}(" in called for check in (*checks.OF_FAMILIES, *checks.OF_VARIANTS))
