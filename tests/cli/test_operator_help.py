"""Help of commands that compute: what the operator at hand takes, and no option of another."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sparsegen.cli.main import cli
from sparsegen.operators import OPERATORS, fields_of

COMMANDS = (["tune"], ["bench"], ["lookup"], ["verify"], ["job", "export"])


def _help(*words: str) -> str:
    found = CliRunner().invoke(cli, [*words, "--help"])
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_is_about_the_operator_that_is_named(command: list[str]) -> None:
    said = _help(*command, "--operator", "dsd")
    assert "--density" in said and "--w-layout" in said and "X ⊙ mask" in said
    assert "--image-height" not in said and "--filter-size" not in said and "--readout" not in said
    usual = _help(*command)
    assert "--layout" in usual and "--density" not in usual
    assert "`--operator NAME --help`" in " ".join(usual.split())


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_field_of_an_operator_is_shown(operator: str) -> None:
    kind, said = OPERATORS[operator], _help("lookup", "--operator", operator)
    for name, field in fields_of(kind).items():
        if name not in kind.matrix_sizes or not kind.has_pattern:
            assert field.flags[-1] in said, name


def test_where_any_operator_is_meant_all_are_shown() -> None:
    said = _help("families")
    assert "--density" in said and "--layout" in said and "--filter-size" in said
