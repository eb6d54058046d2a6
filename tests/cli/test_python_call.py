"""The call that ``tune`` prints makes the same problem and config when it is pasted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparsegen.cli.parts.problems import python_call
from sparsegen.kernels import families_of, family
from sparsegen.operators import OPERATORS, DType, Epilogue, Layout, SpmmProblem, operator_named

SHAPE = (96, 64)


def pasted(call: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with which the call reaches `sparsegen.prepare`."""
    prepare = SimpleNamespace(prepare=lambda *args, **options: (args, options))
    return eval(call, {"__builtins__": {}}, {"sparsegen": prepare, "matrix": "matrix"})  # type: ignore[no-any-return]


@pytest.mark.parametrize("operator", [name for name in OPERATORS if families_of(name)])
def test_every_operators_call_can_be_pasted(operator: str) -> None:
    kind = operator_named(operator)
    problem = kind.of(SHAPE, **dict.fromkeys(kind.dense_sizes, 24))
    config = families_of(operator)[0].config_type()
    args, options = pasted(python_call(problem, config))
    assert args == (("matrix",) if kind.has_pattern else ())
    assert options.pop("operator", "spmm") == operator
    assert family(options.pop("family")).config(**options.pop("config")) == config
    shape = SHAPE if kind.has_pattern else tuple(options.pop(name) for name in kind.matrix_sizes)
    assert kind.of(shape, **options) == problem


def test_what_is_no_default_is_named() -> None:
    problem = SpmmProblem(
        *SHAPE, 24, dtype=DType.FLOAT16, layout=Layout.COLUMN, epilogue=Epilogue.BIAS_RELU, batch=3
    )
    _, options = pasted(python_call(problem, family("csr_spmm").config_type()))
    del options["family"], options["config"]
    assert SpmmProblem.of(SHAPE, **options) == problem and len(options) == 5
