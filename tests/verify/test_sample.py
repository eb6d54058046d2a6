"""A device's reference is held against the host's: what may differ by rounding, and what may not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sparsegen.errors import SparsegenError
from sparsegen.matrix.generators import random_rows
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.operators import (
    ConvEpilogue,
    Density,
    DType,
    MaskedConv2dProblem,
    MaskOf,
    Problem,
    Readout,
    Reference,
    Rest,
    SddmmProblem,
    SparseNetworkProblem,
    SpmmProblem,
)
from sparsegen.verify import sample
from sparsegen.verify.sample import ROWS, require_sample

MATRIX = random_rows(24, 40, 0.3, 0.6, 3)
PROBLEMS: list[Problem] = [SpmmProblem(24, 40, 9), SddmmProblem(24, 40, 9), SpmmProblem(24, 40, 9, batch=3)]


@dataclass(frozen=True)
class Computed:
    """In the place of a `DeviceReference`: a reference on the host, as a device would have it."""

    whole: Reference

    def part(self, start: int, count: int) -> Computed:
        exact, magnitude = (
            np.ravel(a)[start : start + count] for a in (self.whole.exact, self.whole.magnitude)
        )
        return Computed(self.whole._replace(exact=exact, magnitude=magnitude))

    def download(self, shape: tuple[int, ...], device: object) -> Reference:
        assert self.whole.exact.shape == shape
        return self.whole


def check(problem: Problem, exact: float = 1.0, magnitude: float = 1.0, **changes: Any) -> None:
    """Require the sample of a reference that is off by these factors."""
    operands = problem.random_operands(np.random.default_rng(0), MATRIX.nnz)
    right = problem.reference(MATRIX, operands)
    made = right._replace(exact=right.exact * exact, magnitude=right.magnitude * magnitude)
    found: Any = Computed(made._replace(**changes))
    require_sample(problem, MATRIX, operands, found, device=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_rounding_of_float64_and_of_magnitudes_in_float32_is_allowed(problem: Problem) -> None:
    check(problem)
    check(problem, exact=1 + 1e-14, magnitude=1 - 1e-6)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize(
    "change", [{"exact": 1 + 1e-6}, {"magnitude": 1 + 1e-3}, {"magnitude": 0.5}], ids=str
)
def test_what_float32_would_give_is_no_reference(problem: Problem, change: dict[str, float]) -> None:
    with pytest.raises(SparsegenError, match=r"float64 result of .* is wrong"):
        check(problem, **change)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_nan_is_no_number(problem: Problem) -> None:
    with pytest.raises(SparsegenError, match=r"is wrong: nan"):
        check(problem, exact=np.nan)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_row_is_copied_at_once_unless_it_is_wide_apart(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    part = Computed.part

    def counted(self: Computed, start: int, count: int) -> Computed:
        copied.append(count)
        return part(self, start, count)

    monkeypatch.setattr(Computed, "part", counted)
    check(problem)
    assert len(copied) <= ROWS < sum(copied)
    together = len(copied)
    monkeypatch.setattr(sample, "SPAN", 0)
    check(problem)
    assert set(copied[together:]) == {1}
    with pytest.raises(SparsegenError, match="is wrong"):
        check(problem, exact=1 + 1e-6)


@pytest.mark.parametrize("readout", Readout)
def test_random_inputs_of_a_network_are_checked_together(readout: Readout) -> None:
    network = radixnet(32, 3, bias=0.1).stacked(DType.FLOAT16)
    problem = SparseNetworkProblem(*network.shape, 40, DType.FLOAT16, readout=readout)
    operands = problem.random_operands(np.random.default_rng(0), network.nnz)
    (alone,) = problem.lone_rows(network, operands, range(ROWS), np.random.default_rng(1))
    assert alone.problem.reference(alone.matrix, alone.operands).exact.size == alone.places.size
    right = problem.reference(network, operands)
    for factor in (1.0, 1 + 1e-6):
        found: Any = Computed(right._replace(exact=right.exact * factor))
        if factor == 1:
            require_sample(problem, network, operands, found, device=None)  # type: ignore[arg-type]
        else:
            with pytest.raises(SparsegenError, match="is wrong"):
                require_sample(problem, network, operands, found, device=None)  # type: ignore[arg-type]


def test_what_is_left_as_it_was_has_no_magnitude() -> None:
    """No live pixel reaches these outputs: their magnitude, of the bias alone, does not count."""
    problem = MaskedConv2dProblem(
        40, 40, 4, 6, epilogue=ConvEpilogue.BIAS, mask_of=MaskOf.INPUT, rest=Rest.KEPT, density=Density(0.01)
    )
    operands = problem.random_operands(np.random.default_rng(0), 0)
    operands["mask"] = np.zeros_like(operands["mask"])
    right = problem.reference(problem.without_pattern, operands)
    assert np.isnan(right.exact).all() and right.magnitude.any()
    found: Any = Computed(right)
    require_sample(problem, problem.without_pattern, operands, found, device=None)  # type: ignore[arg-type]
