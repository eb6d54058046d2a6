"""Families say which matrices suit them: what tuning, dispatch and named variants make of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tuning_fakes
from tuning_fakes import MATRIX, TOY, ToyConfig, tune_toy
from tuning_samples import DIGEST, H100, timed, workload

import sparsegen
from sparsegen.backends.emulator import device
from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import How
from sparsegen.errors import ConfigError, NoVariantError
from sparsegen.kernels import families_of, family
from sparsegen.kernels.base import Constraint
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.testing.matrices import matrices
from sparsegen.tuning.space import Space
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import Measurement, Variant, Workload
from sparsegen.tuning_db.store import Store

LONG_ROW = matrices()["huge_row"]
LONG_ROW_PROBLEM = SpmmProblem(*LONG_ROW.shape, 8)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("SPARSEGEN_CACHE", str(tmp_path / "cache"))
    tuning_fakes.install(monkeypatch.setattr)
    with Store.open(tmp_path / "tuning.db") as opened:
        yield opened
    tuning_fakes.uninstall()


def ask_of_toy(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    """The toy family now asks of a matrix that its config's size be at most this."""

    def requirements(
        self: Any, problem: SpmmProblem, features: Features, config: ToyConfig
    ) -> Iterator[Constraint]:
        yield Constraint(config.size <= largest, f"size ({config.size}) suits rows of {features.row_max}")

    monkeypatch.setattr(type(TOY), "requirements", requirements)


def test_families_ask_nothing_by_default() -> None:
    features = Features.of(LONG_ROW)
    csr = family("csr_spmm")
    config = csr.heuristic(LONG_ROW_PROBLEM, features, device())
    assert csr.broken_requirements(LONG_ROW_PROBLEM, features, config) == []
    csr.require_suited(LONG_ROW_PROBLEM, features, config, device())


def test_a_space_leaves_out_what_does_not_suit_and_says_why() -> None:
    features = Features.of(LONG_ROW)
    space = Space.build(families_of("spmm"), LONG_ROW_PROBLEM, device(), features=features)
    assert "uspmm" not in space.family_names and "csr_spmm" in space.family_names
    assert f"padded to the longest ({features.row_max} nonzeros)" in space.left_out["uspmm"]
    assert any(reason.startswith("uspmm: rows padded to the longest take") for reason in space.pruned)
    anything = Space.build(families_of("spmm"), LONG_ROW_PROBLEM, device())
    assert "uspmm" in anything.family_names and not anything.left_out


def test_single_configs_are_left_out_too() -> None:
    """Padding to the longest row, not HYB, is what few long rows rule out."""
    matrix = matrices()["few_long_rows"]
    features = replace(Features.of(matrix), row_cov=0.9)
    problem = SpmmProblem(*matrix.shape, 32)
    space = Space.build([family("uspmm_vec")], problem, device(), features=features)
    assert {c.ell_width for c in space.candidates} == {"quartile"} and not space.left_out


def test_tuning_tries_what_suits(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_of_toy(monkeypatch, 4)
    result = tune_toy(store, tmp_path, trials=100)
    assert result.winner.variant.config.to_dict()["size"] == 4
    assert result.pruned[f"toy: size suits rows of {Features.of(MATRIX).row_max}"] == 6
    assert not result.left_out


def test_tuning_only_what_does_not_suit_is_refused_in_words(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_of_toy(monkeypatch, 0)
    with pytest.raises(NoVariantError, match=r"toy does not suit this matrix: size \(\d+\) suits rows"):
        tune_toy(store, tmp_path)


def test_a_named_family_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"uspmm .* does not suit this matrix; .* at most 2 places"):
        sparsegen.prepare(LONG_ROW, n=8, family="uspmm", device="emulator")
    even = matrices()["uniform_rows"]
    operator = sparsegen.prepare(even, n=8, family="uspmm", device="emulator")
    assert operator.choice.family.name == "uspmm"


def measured_with(name: str, of: Workload, microseconds: float) -> Measurement:
    chosen = family(name)
    config = chosen.heuristic(of.problem, of.features, H100)
    return replace(timed(microseconds, of), variant=Variant(config, DIGEST))


def test_dispatch_does_not_follow_neighbours_where_a_family_does_not_suit() -> None:
    even, uneven = workload(tag="even", row_cov=0.0), workload(tag="uneven")
    even = replace(even, features=replace(even.features, row_max=round(even.features.row_mean)))
    longest = replace(uneven.features, row_max=250)
    layer = MemoryLayer([measured_with("uspmm", even, 5.0), measured_with("csr_spmm", even, 9.0)], [])

    def chosen(features: Features) -> str:
        fingerprint = f"{features.row_max:064x}"
        choice = choose(Workload(even.problem, fingerprint, features), H100, layer)
        assert choice.how in (How.BUCKET, How.NEAREST)
        return choice.family.name

    assert chosen(even.features) == "uspmm"
    assert chosen(longest) != "uspmm"


def test_every_family_suits_uniform_rows() -> None:
    matrix = matrices()["uniform_rows"]
    features = Features.of(matrix)
    assert features.row_cov == 0 and np.ptp(np.diff(matrix.row_offsets)) == 0
    by_tokens = SpmmProblem(*matrix.shape, 32, DType.FLOAT16, Layout.COLUMN)
    for candidate in families_of("spmm"):
        problem = by_tokens if candidate.computes(by_tokens) else replace(by_tokens, layout=Layout.ROW)
        assert candidate.suits(problem, features, candidate.heuristic(problem, features, device()), device())
