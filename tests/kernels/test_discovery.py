"""Families are found by name and by operator, and only those that are asked for are imported."""

from __future__ import annotations

from importlib import import_module

import pytest

from sparsegen import kernels, operators
from sparsegen.errors import ConfigError
from sparsegen.kernels.config import UnknownConfig

GROUPS = {f"sparsegen.kernels.{group}" for group in kernels._groups()}


def test_a_file_has_its_familys_name() -> None:
    for name, family in kernels.families().items():
        package, _, module = type(family).__module__.rpartition(".")
        assert module == name == family.name and package in GROUPS
        assert family.problem_type.operator in import_module(package).OPERATORS
        assert kernels.family(name) is family


def test_the_families_of_an_operator_are_all_that_compute_it(monkeypatch: pytest.MonkeyPatch) -> None:
    every = kernels.families().values()
    for operator in operators.OPERATORS:
        expected = [f for f in every if f.problem_type.operator == operator]
        monkeypatch.setattr(kernels, "_loaded", {})
        assert kernels.families_of(operator) == expected, operator
        groups = {type(f).__module__.rpartition(".")[0] for f in kernels._loaded.values() if f is not None}
        assert groups == {type(f).__module__.rpartition(".")[0] for f in expected}


@pytest.mark.parametrize("name", ["base", "layouts", "rows", "nothing", "csr_spmm.cu", "..csr_spmm"])
def test_what_is_no_family_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"there are .*csr_spmm, "):
        kernels.family(name)
    assert isinstance(kernels.read_config(name, {}), UnknownConfig)
