"""Families are found by name and by operator, and only those that are asked for are imported."""

from __future__ import annotations

import pytest

from sparsegen import kernels, operators
from sparsegen.errors import ConfigError
from sparsegen.kernels.config import UnknownConfig


def test_a_file_has_its_familys_name() -> None:
    for name, family in kernels.families().items():
        assert type(family).__module__ == f"sparsegen.kernels.{name}" and family.name == name
        assert kernels.family(name) is family


def test_the_families_of_an_operator_are_all_that_compute_it(monkeypatch: pytest.MonkeyPatch) -> None:
    every = kernels.families().values()
    for operator in operators.OPERATORS:
        expected = [f for f in every if f.problem_type.operator == operator]
        monkeypatch.setattr(kernels, "_loaded", {})
        assert kernels.families_of(operator) == expected, operator
        assert {f.problem_type.operator for f in kernels._loaded.values() if f is not None} <= {
            other for other in operators.OPERATORS if operator.startswith(other) or other.startswith(operator)
        }


@pytest.mark.parametrize("name", ["base", "layouts", "nothing", "csr_spmm.cu", "..csr_spmm"])
def test_what_is_no_family_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"there are .*csr_spmm, "):
        kernels.family(name)
    assert isinstance(kernels.read_config(name, {}), UnknownConfig)
