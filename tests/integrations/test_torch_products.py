"""The differentiable products for PyTorch, by PyTorch's own product and by the kernels in the emulator."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from sparsegen import api  # noqa: E402
from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import (  # noqa: E402
    SparsePattern,
    linear,
    sampled_product,
    transposed_product,
)
from sparsegen.integrations.torch.pattern import pattern  # noqa: E402
from sparsegen.integrations.torch.pattern.carried_patterns import HELD  # noqa: E402
from sparsegen.matrix.generators import random_rows  # noqa: E402

# Not whether a trace that knows no tensor's data can have a handle's gradient: it may leave the process.
IN_THIS_PROCESS = ("test_schema", "test_autograd_registration", "test_faketensor")
OUT, IN, TOKENS = 24, 40, 7
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 2e-1}


@pytest.fixture
def shared() -> SparsePattern:
    return SparsePattern(random_rows(OUT, IN, 0.3, 0.6, 3))


def tensors(shared: SparsePattern, dtype: Any = None, *, grad: bool = False) -> dict[str, Any]:
    torch.manual_seed(0)
    shapes = {"x": (TOKENS, IN), "y": (TOKENS, OUT), "values": (shared.nnz,), "bias": (OUT,)}
    return {
        name: torch.randn(shape, dtype=dtype or torch.float32, requires_grad=grad)
        for name, shape in shapes.items()
    }


def dense_weight(shared: SparsePattern, values: Any) -> Any:
    rows, columns, _ = shared.places(values.device)
    return torch.zeros(shared.shape, dtype=values.dtype).index_put((rows, columns), values)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_products_and_gradients_are_those_of_dense_ones(
    shared: SparsePattern, place: str, dtype: Any
) -> None:
    found, wide = tensors(shared, dtype, grad=True), tensors(shared, dtype)
    wide = {name: t.double().requires_grad_() for name, t in wide.items()}
    weight = dense_weight(shared, wide["values"])
    rows, columns, _ = shared.places(torch.device("cpu"))
    pairs = (
        (
            linear(found["x"], found["values"], shared, found["bias"]),
            torch.nn.functional.linear(wide["x"], weight, wide["bias"]),
        ),
        (transposed_product(found["y"], found["values"], shared), wide["y"] @ weight),
        (sampled_product(found["y"], found["x"], shared), (wide["y"].t() @ wide["x"])[rows, columns]),
    )
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    for ours, theirs in pairs:
        assert ours.dtype is dtype and ours.is_contiguous()
        torch.testing.assert_close(ours.double(), theirs, **close)
        seed = torch.randn_like(ours)
        grads = torch.autograd.grad(ours, list(found.values()), seed, allow_unused=True)
        expected = torch.autograd.grad(
            theirs, list(wide.values()), seed.double(), allow_unused=True, retain_graph=True
        )
        for mine, right in zip(grads, expected, strict=True):
            assert (mine is None) == (right is None)
            if mine is not None:
                torch.testing.assert_close(mine.double(), right, **close)
    kernels_ran = place == "emulator" and dtype is not torch.float64
    assert bool(shared._prepared) == kernels_ran


def test_derivatives_of_first_and_second_order(shared: SparsePattern) -> None:
    t = tensors(shared, torch.float64, grad=True)
    for function, inputs in (
        (lambda x, v, b: linear(x, v, shared, b), (t["x"], t["values"], t["bias"])),
        (lambda y, v: transposed_product(y, v, shared), (t["y"], t["values"])),
        (lambda y, x: sampled_product(y, x, shared), (t["y"], t["x"])),
    ):
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


def test_the_operators_keep_pytorchs_rules(shared: SparsePattern, place: str) -> None:
    t = tensors(shared, grad=True)
    for name, inputs in (
        ("linear", (t["x"], t["values"], t["bias"])),
        ("linear", (t["x"], t["values"], None)),
        ("linear", (t["x"].expand(2, *t["x"].shape), t["values"], t["bias"])),
        ("transposed_product", (t["y"], t["values"])),
        ("sampled_product", (t["y"], t["x"])),
    ):
        of_handle, portable = (getattr(torch.ops.sparsegen, f"{name}{end}") for end in ("", "_carried"))
        torch.library.opcheck(of_handle, (*inputs, shared.handle), test_utils=IN_THIS_PROCESS)
        torch.library.opcheck(portable, (*inputs, *HELD.carried(shared)))


@pytest.mark.parametrize("place", ["emulator"], indirect=True)
def test_new_values_prepare_nothing(
    shared: SparsePattern, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    prepare = api.prepare
    monkeypatch.setattr(
        api, "prepare", lambda *args, **options: calls.append(options) or prepare(*args, **options)
    )
    t = tensors(shared)
    values = torch.nn.Parameter(t["values"].clone())
    for _ in range(3):
        (linear(t["x"], values, shared).sum() + transposed_product(t["y"], values, shared).sum()).backward()
        with torch.no_grad():
            values -= 0.1 * values.grad
            values.grad = None
        right = t["x"] @ dense_weight(shared, values.detach()).t()
        torch.testing.assert_close(linear(t["x"], values, shared), right)
    assert len(calls) == 3  # one for each of the three products
    doubled = values.detach() * 2
    torch.testing.assert_close(linear(t["x"], doubled, shared), right * 2)
    torch.testing.assert_close(linear(t["x"], values, shared), right, msg="back to the first tensor")
    linear(t["x"][:3], values, shared)
    assert len(calls) == 4  # another number of tokens


@pytest.mark.parametrize("place", ["emulator"], indirect=True)
def test_values_that_are_known_are_not_sent_again(shared: SparsePattern, place: str) -> None:
    t = tensors(shared)
    linear(t["x"], t["values"], shared)
    [prepared] = shared._prepared.values()
    sent = []
    prepared.operator.update_values = sent.append
    linear(t["x"], t["values"], shared)
    assert sent == []
    t["values"].mul_(2)
    linear(t["x"], t["values"], shared)
    linear(t["x"], t["values"].clone(), shared)
    assert len(sent) == 2
    with torch.inference_mode():
        for _ in range(2):
            linear(t["x"], torch.ones(shared.nnz), shared)
    assert len(sent) == 4, "a tensor without a version always is"


@pytest.mark.parametrize("place", ["emulator"], indirect=True)
def test_changes_that_pytorch_does_not_count_are_seen_while_training(
    shared: SparsePattern, place: str
) -> None:
    t = tensors(shared)
    values = torch.nn.Parameter(t["values"].clone())
    before, version = linear(t["x"], values, shared), values._version
    values.data.mul_(2)
    assert values._version == version
    torch.testing.assert_close(linear(t["x"], values, shared), before * 2)


@pytest.mark.parametrize("place", ["emulator"], indirect=True)
def test_old_operators_go_but_not_those_of_a_graph(
    shared: SparsePattern, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern, "MOST_PREPARED", 2)
    t = tensors(shared)
    for tokens in (1, 2, 3):
        linear(t["x"][:tokens], t["values"], shared)
        next(iter(shared._prepared.values())).was_captured = tokens == 1
        shared._prepared[next(iter(shared._prepared))].was_captured = True
    assert [key[1] for key in shared._prepared] == [1, 3]


def test_a_compiled_function_is_one_graph_and_stays(shared: SparsePattern) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    layer = torch.compile(lambda x, v: linear(x, v, shared).relu().sum(), backend=counter, fullgraph=True)
    t = tensors(shared, grad=True)
    for _ in range(3):
        loss = layer(t["x"], t["values"])
        expected = torch.relu(t["x"] @ dense_weight(shared, t["values"]).t()).sum()
        torch.testing.assert_close(loss, expected)
        got, right = (torch.autograd.grad(out, (t["x"], t["values"])) for out in (loss, expected))
        torch.testing.assert_close(got, right)
        with torch.no_grad():
            t["values"].add_(0.5)
    assert counter.frame_count == 1


def test_nothing_to_multiply() -> None:
    t = torch.zeros
    for shape in ((0, 5), (5, 0), (4, 6)):
        empty = SparsePattern(np.zeros(shape, np.float32))
        assert linear(t(3, shape[1]), t(0), empty).shape == (3, shape[0])
        assert transposed_product(t(3, shape[0]), t(0), empty).shape == (3, shape[1])
        assert sampled_product(t(3, shape[0]), t(3, shape[1]), empty).shape == (0,)
    full = SparsePattern(np.ones((2, 3), np.float32))
    assert linear(t(0, 3), t(6), full).shape == (0, 2)
    assert torch.equal(sampled_product(t(0, 2), t(0, 3), full), t(6))


def test_what_does_not_fit_is_refused(shared: SparsePattern) -> None:
    t = tensors(shared)
    for given, words in (
        ((t["x"][:, :3], t["values"], None), r"x: expected shape tokens × 40, got \(7, 3\)"),
        ((t["x"][0], t["values"], None), "x: expected shape"),
        ((t["x"], t["values"][:-1], None), "values: expected shape"),
        ((t["x"], t["values"], t["x"]), "bias: expected shape 24"),
        (
            (t["x"], t["values"].half(), None),
            r"x: expected torch\.float16, the dtype of the values, got torch\.float32",
        ),
    ):
        x, values, bias = given
        with pytest.raises(OperandError, match=words):
            linear(x, values, shared, bias)
    with pytest.raises(OperandError, match="y: expected shape tokens × 24"):
        transposed_product(t["x"], t["values"], shared)
    with pytest.raises(OperandError, match="x: expected shape 7 × 40"):
        sampled_product(t["y"], t["x"][:2], shared)


def test_a_pattern_that_is_gone() -> None:
    handle = SparsePattern(np.eye(3, dtype=np.float32)).handle
    gc.collect()
    with pytest.raises(OperandError, match=f"no sparsity pattern {handle}: keep the SparsePattern"):
        torch.ops.sparsegen.linear(torch.zeros(1, 3), torch.zeros(3), None, handle)


def test_a_graph_keeps_its_pattern() -> None:
    values = torch.ones(3, requires_grad=True)
    loss = linear(torch.ones(2, 3), values, SparsePattern(np.eye(3, dtype=np.float32))).sum()
    gc.collect()
    loss.backward()
    assert torch.equal(values.grad, torch.full((3,), 2.0))
