"""Programs that leave the process carry their patterns: another process computes with them what this one does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from sparsegen.integrations.torch import SparseAttention, SparseLinear  # noqa: E402
from sparsegen.integrations.torch.pattern import carried_patterns  # noqa: E402
from sparsegen.integrations.torch.pattern.carried_patterns import restored  # noqa: E402

X = torch.linspace(-1, 1, 8 * 24).view(8, 24)
Q = torch.linspace(-1, 1, 2 * 16 * 8).view(1, 2, 16, 8)

IN_ANOTHER_PROCESS = """
import sys, torch
from sparsegen.integrations.torch import SparseLinear
kept = [SparseLinear.from_dense(torch.nn.Linear(24, 16), sparsity=0.5) for _ in range(3)]  # numbers that are taken
for kind, program, given, wanted in zip(*[iter(sys.argv[1:])] * 4):
    x, y = torch.load(given), torch.load(wanted)
    if kind == "export":
        run = torch.export.load(program).module()
    elif kind == "jit":
        run = torch.jit.load(program)
    else:
        run = torch.load(program, weights_only=False)
    for scale in (1, 1):
        torch.testing.assert_close(run(*x), y)
print("equal")
"""


def _linear() -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    return SparseLinear.from_dense(nn.Linear(24, 16), sparsity=0.5).eval(), (X,)


def _attention() -> tuple[nn.Module, tuple[Any, ...]]:
    seen = torch.arange(256).view(16, 16) % 3 > 0
    return SparseAttention(seen, 2, 8).eval(), (Q, 2 * Q, 3 * Q)


def _exported(module: nn.Module, given: tuple[Any, ...], path: Path) -> None:
    torch.export.save(torch.export.export(module, given), path)


def _traced(module: nn.Module, given: tuple[Any, ...], path: Path) -> None:
    torch.jit.save(torch.jit.trace(module, given), path)


def _made_fx(module: nn.Module, given: tuple[Any, ...], path: Path) -> None:
    torch.save(make_fx(lambda *x: module(*x))(*given), path)


WRITERS: dict[str, Callable[[nn.Module, tuple[Any, ...], Path], None]] = {
    "export": _exported,
    "jit": _traced,
    "fx": _made_fx,
}


@pytest.mark.filterwarnings("ignore")
def test_another_process_computes_the_same(tmp_path: Path) -> None:
    arguments = []
    for name, made in (("linear", _linear), ("attention", _attention)):
        module, given = made()
        data, wanted = tmp_path / f"{name}.x", tmp_path / f"{name}.y"
        with torch.no_grad():
            torch.save(module(*given), wanted)
            torch.save(given, data)
            for kind, write in WRITERS.items():
                program = tmp_path / f"{name}.{kind}"
                write(module, given, program)
                arguments += [kind, str(program), str(data), str(wanted)]
    command = [sys.executable, "-W", "ignore", "-c", IN_ANOTHER_PROCESS, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stdout == "equal\n", run.stderr


def test_an_exported_program_has_gradients() -> None:
    module, (x,) = _linear()
    program = torch.export.export(module, (x,)).module()
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    module(one).square().sum().backward()
    program(other).square().sum().backward()
    torch.testing.assert_close(one.grad, other.grad)


def test_an_exported_program_takes_other_numbers_of_tokens() -> None:
    module, (x,) = _linear()
    dynamic = ({0: torch.export.Dim("tokens")},)
    program = torch.export.export(module, (x,), dynamic_shapes=dynamic).module()
    torch.testing.assert_close(program(x[:3]), module(x[:3]))


def test_a_strict_export_says_what_to_do() -> None:
    module, given = _linear()
    with pytest.raises(Exception, match="strict=False"):
        torch.export.export(module, given, strict=True)


def test_restored_patterns_live_as_long_as_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[Any, Any] = {}
    monkeypatch.setattr(carried_patterns, "_restored", kept)

    def tensors(shift: int) -> tuple[Any, Any]:
        return torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([shift, 1], dtype=torch.int32)

    offsets, columns = tensors(0)
    first = restored(offsets, columns, 4, "auto", None)
    assert restored(offsets, columns, 4, "auto", None) is first
    assert restored(offsets.detach(), columns.detach(), 4, "auto", None) is first
    columns[0] = 2
    changed = restored(offsets, columns, 4, "auto", None)
    assert changed is not first and changed.matrix.column_indices.tolist() == [2, 1]
    for shift in range(20):  # in memory that was used before
        one = tensors(shift % 3)
        found = restored(*one, 4, "auto", None)
        assert found.matrix.column_indices.tolist() == [shift % 3, 1]
        del one
    assert len(kept) <= 3


def test_the_two_orders_of_functional_gradients() -> None:
    module, (x,) = _linear()
    parameters = dict(module.named_parameters())

    def loss(p: Any, x: Any) -> Any:
        return torch.func.functional_call(module, p, (x,)).pow(3).sum()

    module(x).pow(3).sum().backward()
    found = torch.func.grad(loss)(parameters, x)
    for name, parameter in parameters.items():
        torch.testing.assert_close(found[name], parameter.grad)
    each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x[:, None])
    for name, parameter in parameters.items():
        torch.testing.assert_close(each[name].sum(0), parameter.grad, rtol=1e-4, atol=1e-5)

    def slope(t: Any) -> Any:
        return torch.func.grad(lambda t: loss(parameters, t * x))(t)

    step = 1e-2
    one = torch.tensor(1.0)
    second = torch.func.grad(slope)(one)
    torch.testing.assert_close(
        second, (slope(one + step) - slope(one - step)) / (2 * step), rtol=1e-2, atol=1e-1
    )
