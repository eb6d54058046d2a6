"""The commands and the call that ``tune`` prints make the same workload and config when they are typed or pasted."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
import scipy.sparse
from click.testing import CliRunner

import sparsegen
from sparsegen.cli.parts.called_again import CalledAgain
from sparsegen.cli.parts.matrix_options import MatrixOptions, matrix_options
from sparsegen.dispatch.wanted import Wanted
from sparsegen.kernels import families_of, family
from sparsegen.operators import (
    DEFAULT_OPERATOR,
    OPERATORS,
    DType,
    Epilogue,
    Layout,
    SpmmProblem,
    operator_named,
)

SHAPE = (96, 64)
NO_FILE = CalledAgain(MatrixOptions(None))


def pasted(call: str, matrix: object, prepare: Callable[..., Any]) -> Any:
    """The result of the call, in which ``prepare`` stands in for `sparsegen.prepare`."""
    module = SimpleNamespace(prepare=prepare, as_csr=sparsegen.as_csr)
    return eval(call, {"__builtins__": {}}, {"sparsegen": module, "matrix": matrix})


def arguments(*args: object, **options: Any) -> tuple[tuple[object, ...], dict[str, Any]]:
    return args, options


@pytest.mark.parametrize("operator", [name for name in OPERATORS if families_of(name)])
def test_every_operators_call_can_be_pasted(operator: str) -> None:
    kind = operator_named(operator)
    problem = kind.of(SHAPE, **dict.fromkeys(kind.dense_sizes, 24))
    config = families_of(operator)[0].config_type()
    args, options = pasted(NO_FILE.python(problem, config), "matrix", arguments)
    assert args == (("matrix",) if kind.has_pattern else ())
    assert options.pop("operator", "spmm") == operator
    assert family(options.pop("family")).config(**options.pop("config")) == config
    shape = SHAPE if kind.has_pattern else tuple(options.pop(name) for name in kind.matrix_sizes)
    assert kind.of(shape, **options) == problem


def test_what_is_no_default_is_named() -> None:
    problem = SpmmProblem(
        *SHAPE, 24, dtype=DType.FLOAT16, layout=Layout.COLUMN, epilogue=Epilogue.BIAS_RELU, batch=3
    )
    _, options = pasted(NO_FILE.python(problem, family("csr_spmm").config_type()), "matrix", arguments)
    del options["family"], options["config"]
    assert SpmmProblem.of(SHAPE, **options) == problem and len(options) == 5


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A square matrix that stores a zero, so that only the pattern tells what was made of it."""
    path = tmp_path / "a matrix.npz"
    rows, columns = [0, 0, 1, 3], [1, 3, 2, 0]
    scipy.sparse.save_npz(
        path, scipy.sparse.csr_matrix((np.float32([1, 0, 2, 3]), (rows, columns)), shape=(4, 4))
    )
    return path


WAYS = [
    {"drop_zeros": drop_zeros, "transpose": transpose}
    for drop_zeros, transpose in itertools.product((False, True), repeat=2)
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("operator", [name for name, kind in OPERATORS.items() if kind.has_pattern])
def test_the_call_makes_the_matrix_that_was_tuned(operator: str, way: dict[str, bool], file: Path) -> None:
    options = MatrixOptions(file, **way)
    assert options.reader is not None
    tuned, kind = options.reader(), operator_named(operator)
    problem = kind.of(tuned.shape, **dict.fromkeys(kind.dense_sizes, 24))

    def prepare(
        matrix: object, operator: str = DEFAULT_OPERATOR, transpose: bool = False, **options: Any
    ) -> Wanted:
        del options["family"], options["config"]
        return Wanted.of(matrix, None, operator, transpose, options)

    call = CalledAgain(options).python(problem, families_of(DEFAULT_OPERATOR)[0].config_type())
    wanted = pasted(call, sparsegen.load_matrix(file), prepare)
    assert wanted.problem == problem
    assert wanted.matrix.fingerprint() == tuned.fingerprint()
    np.testing.assert_array_equal(wanted.matrix.values, tuned.values)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("limit", [None, 1 << 30])
def test_the_command_names_the_matrix_that_was_tuned(
    way: dict[str, bool], limit: int | None, file: Path
) -> None:
    received: list[object] = []

    @click.command()
    @matrix_options
    @click.option("-n", type=int)
    @click.option("--device")
    @click.option("--db")
    def lookup(matrix_file: MatrixOptions, **others: object) -> None:
        received.extend((matrix_file, others))

    options = MatrixOptions(file, tensor="a tensor", memory_limit=limit, **way)
    called = CalledAgain(options, "emulator", "a place.db")
    typed = shlex.split(called.command("lookup", SpmmProblem(4, 4, 8)))
    assert typed[:2] == ["sparsegen", "lookup"]
    assert CliRunner().invoke(lookup, typed[2:]).exit_code == 0
    assert received == [options, {"n": 8, "device": "emulator", "db": "a place.db"}]
    assert called.command("source", SpmmProblem(4, 4, 8)).split(" ", 2)[1] == "source"
