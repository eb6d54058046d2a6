"""Every check catches the mistake that it is for, planted into a right family; the right one passes all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sparsegen import kernels
from sparsegen.errors import ConfigError, ContractError, KernelFault
from sparsegen.kernels.base import Constraint
from sparsegen.kernels.config import Config, tunable
from sparsegen.operators import DType, Epilogue, Layout
from sparsegen.testing import Kind, PlantedBugs, cases, check_family, checks
from sparsegen.testing.cover import short_ring
from sparsegen.testing.variants import sample

EXAMPLES = str(Path(__file__).parents[2] / "examples")
sys.path.insert(0, EXAMPLES)
from own_family import row_spmm  # noqa: E402

sys.path.remove(EXAMPLES)

FAMILY = row_spmm.FAMILY


class PackedByThreads(row_spmm.RowSpmm):
    def pack(self, problem: Any, config: Any, matrix: Any) -> Any:
        packed = super().pack(problem, config, matrix)
        return replace(packed, sizes={"threads": config.threads})


class InvalidHeuristic(row_spmm.RowSpmm):
    def constraints(self, problem: Any, config: Any, device: Any) -> Iterator[Constraint]:
        yield from super().constraints(problem, config, device)
        yield Constraint(config.threads != 128, "a block has 64 or 256 threads")


class ForgottenScope(row_spmm.RowSpmm):
    def constraints(self, problem: Any, config: Any, device: Any) -> Iterator[Constraint]:
        yield Constraint(config.threads >= 64, "a block has 64 threads or more")


class OneWord(row_spmm.RowSpmm):
    def constraints(self, problem: Any, config: Any, device: Any) -> Iterator[Constraint]:
        yield from super().constraints(problem, config, device)
        yield Constraint(config.threads < 256, "threads!")


class Unreasoned(row_spmm.RowSpmm):
    def is_valid(self, problem: Any, config: Any, device: Any) -> bool:
        return bool(config.threads < 256)


class NothingComputed(row_spmm.RowSpmm):
    def scope(self, problem: Any) -> Iterator[Constraint]:
        yield Constraint(False, "nothing is computed at all")


class SwappedValues(row_spmm.RowSpmm):
    def pack(self, problem: Any, config: Any, matrix: Any) -> Any:
        packed = super().pack(problem, config, matrix)
        return replace(packed, arrays={**packed.arrays, "values": packed.arrays["values"][::-1].copy()})


class LostValues(row_spmm.RowSpmm):
    def pack(self, problem: Any, config: Any, matrix: Any) -> Any:
        return replace(super().pack(problem, config, matrix), value_source=None)


class UnusedArray(row_spmm.RowSpmm):
    packed_names = ("row_offsets", "column_indices", "values", "order")


class EmptyLaunch(row_spmm.RowSpmm):
    def launch(self, problem: Any, config: Any, sizes: Any, device: Any) -> Any:
        return replace(super().launch(problem, config, sizes, device), grid=(0, 1, 1))


class Untidy(row_spmm.RowSpmm):
    template = "untidy.cu.j2"


@dataclass(frozen=True)
class UncheckedConfig(Config):
    threads: int = tunable(128, (64, 128, 256), "threads of a block")

    def __post_init__(self) -> None:
        """Takes anything."""


class Unchecked(row_spmm.RowSpmm):
    name = entry = "unchecked_row_spmm"
    config_type = UncheckedConfig


@dataclass(frozen=True)
class WideConfig(Config):
    threads: int = tunable(128, (64, 128, 4096), "threads of a block")


class Wide(row_spmm.RowSpmm):
    name = entry = "wide_row_spmm"
    config_type = WideConfig

    def constraints(self, problem: Any, config: Any, device: Any) -> Iterator[Constraint]:
        yield from super().constraints(problem, config, device)
        yield Constraint(config.threads <= 1024, "a block has at most 1024 threads")


@pytest.mark.parametrize(
    ("check", "wrong", "message"),
    [
        (checks.makes_every_choice, Wide, "threads = 4096"),
        (checks.meets_every_matrix_and_kind, NothingComputed, "computes no problem"),
        (checks.packings_with_one_key_are_equal, PackedByThreads, "packs otherwise for"),
        (checks.heuristics_are_valid, InvalidHeuristic, "64 or 256 threads"),
        (checks.scope_bounds_the_constraints, ForgottenScope, "leaves out of scope"),
        (checks.broken_constraints_are_sentences, OneWord, "'threads!' is no sentence"),
        (checks.broken_constraints_are_sentences, Unreasoned, "is_valid"),
        (checks.hostile_values_are_refused, Unchecked, "is not refused by name"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_declaration_is_caught(
    check: Callable[[Any], None], wrong: type[row_spmm.RowSpmm], message: str
) -> None:
    check(FAMILY)
    with pytest.raises(ContractError, match=message):
        check(wrong())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (SwappedValues, "not those that value_source names"),
        (LostValues, "need a value_source"),
        (UnusedArray, "packed"),
        (EmptyLaunch, "a launch is empty where the result is"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_packing_or_launch_is_caught(wrong: type[row_spmm.RowSpmm], message: str) -> None:
    variant = short_ring(FAMILY)[0]
    checks.packing_and_launch_agree(variant)
    with pytest.raises(ContractError, match=message):
        checks.packing_and_launch_agree(replace(variant, family=wrong()))


@pytest.mark.parametrize(
    ("piece", "instead", "message"),
    [
        ("constexpr int kThreads", "\n\nconstexpr int kThreads", "blank-line runs"),
        ("return;", "return;;)", "do not match"),
        ("float sum", "\tfloat sum", "tabs"),
        ("row_spmm(int m", "another(int m", "no __global__ function row_spmm"),
        ("0.0f;", "0.0f; // {# who #} {% raw %}{{{% endraw %}", "template syntax is left over in line"),
    ],
)
def test_an_untidy_source_is_caught(tmp_path: Path, piece: str, instead: str, message: str) -> None:
    template = (FAMILY.template_folder / FAMILY.template).read_text()
    assert piece in template
    (tmp_path / Untidy.template).write_text(template.replace(piece, instead))
    wrong = type("Untidy", (Untidy,), {"template_folder": tmp_path})()
    with pytest.raises(ContractError, match=message):
        checks.source_is_clean(short_ring(wrong)[0])


def test_a_sample_is_the_same_every_time() -> None:
    drawn = sample(FAMILY)
    assert sample.__wrapped__(FAMILY) == drawn and set(short_ring(FAMILY)) <= set(drawn)
    assert {variant.config.threads for variant in drawn} == {64, 128, 256}


def test_a_family_that_computes_nothing_has_no_variants_and_fails() -> None:
    nothing = NothingComputed()
    assert sample(nothing) == short_ring(nothing) == ()
    with pytest.raises(ContractError, match="computes no problem that was tried"):
        check_family(nothing)


@pytest.mark.sanitizer
def test_a_family_from_outside_holds_its_contract_and_a_bug_in_it_is_caught() -> None:
    names = check_family(FAMILY)
    assert len(names) == len(checks.OF_FAMILIES) + len(short_ring(FAMILY)) and len(set(names)) == len(names)
    kind = Kind.spmm(20, DType.FLOAT32, Layout.ROW, Epilogue.NONE)
    bug = {"row out of bounds": ("if (place >= static_cast<long long>(m) * n) return;", "")}
    planted = PlantedBugs(FAMILY, kind, {}, bug)
    planted.check()
    with pytest.raises(KernelFault, match="heap-buffer-overflow"):
        planted.check("row out of bounds")


def test_variants_run_plainly_on_a_device_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"register\(FAMILY\)"):
        cases(FAMILY, device="emulator")
    monkeypatch.setattr(kernels, "_loaded", {**kernels._loaded, FAMILY.name: FAMILY})
    listed = cases(FAMILY, device="emulator")
    listed[-1]()
    assert str(listed[-1]) == listed[-1].name


def test_all_that_does_not_hold_is_told_at_once() -> None:
    with pytest.raises(ContractError) as told:
        check_family(LostValues())
    assert str(told.value).count("need a value_source") == len(short_ring(FAMILY))


def test_a_bug_that_fits_nowhere_is_told() -> None:
    kind = Kind.spmm(20, DType.FLOAT32, Layout.ROW, Epilogue.NONE)
    planted = PlantedBugs(FAMILY, kind, {}, {"none": ("no such line", "")})
    assert planted.source().count("row_spmm(") == 1
    with pytest.raises(ValueError, match=r"row_spmm does not contain 'no such line'"):
        planted.source("none")
