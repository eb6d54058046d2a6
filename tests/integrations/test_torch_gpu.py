"""Sparse layers on a GPU: results, gradients, half precision, graphs that see new values."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_database")]
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
pytest.importorskip("pycuda")

from cuda_graphs import captured  # noqa: E402
from host_costs import host_costs_us  # noqa: E402
from torch import nn  # noqa: E402

from sparsegen import masks  # noqa: E402
from sparsegen.integrations.torch import (  # noqa: E402
    QuantizedLinear,
    SparseAttention,
    SparseLinear,
    linear,
)
from sparsegen.operators import Quantization, ScaleGroup, ValueType  # noqa: E402

# Host time of a call over that of a dense layer in the same process, in inference and with autograd. Hosts differ by a
# factor of three in microseconds (`benchmarks.host_cost`), and not in this: 0.73 and 1.17 on an H100's, 1.27 by dense
# products in inference.
MOST_HOST_COSTS = {"never": (1.0, 1.5), "always": (1.6, 2.0)}
TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 2e-1}


def layer(dtype: Any = torch.float32, run_dense: str = "never", **shape: int) -> SparseLinear:
    torch.manual_seed(0)
    dense = nn.Linear(shape.get("columns", 256), shape.get("rows", 192), device="cuda", dtype=dtype)
    return SparseLinear.from_dense(dense, sparsity=0.8, run_dense=run_dense)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("run_dense", MOST_HOST_COSTS)
def test_results_and_gradients(dtype: Any, run_dense: str) -> None:
    sparse = layer(dtype, run_dense)
    dense = sparse.to_dense().double()
    x = torch.randn(4, 48, 256, device="cuda", dtype=dtype, requires_grad=True)
    wide = x.detach().double().requires_grad_()
    sparse(x)  # the next is a call like one before
    y, expected = sparse(x), dense(wide)
    seed = torch.randn_like(y)
    y.backward(seed)
    expected.backward(seed.double())
    rows, columns, _ = sparse.pattern.places(x.device)
    for ours, right in (
        (y, expected),
        (x.grad, wide.grad),
        (sparse.values.grad, dense.weight.grad[rows, columns]),
        (sparse.bias.grad, dense.bias.grad),
    ):
        scale = right.abs().max().item()
        assert ours.dtype is dtype and (ours.double() - right).abs().max().item() <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize("run_dense", MOST_HOST_COSTS)
def test_host_cost(run_dense: str) -> None:
    dense = nn.Linear(64, 64, device="cuda")
    sparse = SparseLinear.from_dense(dense, sparsity=0.9, run_dense=run_dense)
    x = torch.randn(32, 64, device="cuda")
    most_inference, most_training = MOST_HOST_COSTS[run_dense]
    sparse(x)
    theirs, ours = host_costs_us(lambda: dense(x), lambda: sparse(x))
    assert ours <= most_training * theirs
    dense.requires_grad_(False)
    sparse.requires_grad_(False)
    with torch.inference_mode():
        theirs, ours = host_costs_us(lambda: dense(x), lambda: sparse(x))
    assert ours <= most_inference * theirs


def test_a_slice_that_begins_anywhere() -> None:
    sparse = layer()
    x = torch.randn(33 * 256 + 1, device="cuda")[1:].view(33, 256)
    torch.testing.assert_close(sparse(x), sparse.to_dense()(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("run_dense", MOST_HOST_COSTS)
@pytest.mark.parametrize("trains", [True, False])
def test_a_captured_graph_and_new_values(trains: bool, run_dense: str) -> None:
    sparse = layer(torch.float16, run_dense)
    sparse.requires_grad_(trains)
    x = torch.randn(64, 256, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        graph, y = captured(lambda: linear(x, sparse.values, sparse.pattern, sparse.bias))
        before = sparse.to_dense()(x)
        sparse.values.mul_(2)
        graph.replay()
        expected = sparse.to_dense()(x) if trains else before
        torch.testing.assert_close(y, expected, rtol=3e-2, atol=3e-2)


def test_autocast_and_a_compiled_model() -> None:
    model = nn.Sequential(layer(), nn.GELU(), layer(rows=64, columns=192))
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(32, 256, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        for _ in range(2):
            y = compiled(x)
            torch.testing.assert_close(y, model(x), rtol=2e-2, atol=2e-2)
            y.float().sum().backward()
            with torch.no_grad():
                model[0].values -= 0.01 * model[0].values.grad
    assert y.dtype is torch.float16 and model[0].values.grad.dtype is torch.float32


@pytest.mark.parametrize("prepared", [False, True])
def test_codes_in_the_graphs_of_a_compiled_model(prepared: bool) -> None:
    int4 = Quantization(ValueType.INT4, ScaleGroup.OF_64)
    layers = [QuantizedLinear.from_sparse(layer(torch.float16, rows=256), int4) for _ in range(2)]
    model = nn.Sequential(*(one.prepared(4) if prepared else one for one in layers))
    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    x = torch.randn(4, 256, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            assert torch.equal(compiled(x).clone(), model(x))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [64, 33])
def test_attention_and_its_gradients(dtype: Any, width: int) -> None:
    torch.manual_seed(0)
    mask = masks.band(301, 16, 0.9)
    seen = torch.as_tensor(mask.to_scipy().toarray() != 0, device="cuda")
    given = [torch.randn(2, 3, 301, width, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]
    wide = [t.detach().double().requires_grad_() for t in given]
    out = SparseAttention(mask, 3, width)(*given)
    expected = nn.functional.scaled_dot_product_attention(*wide, attn_mask=seen)
    seed = torch.randn_like(out)
    out.backward(seed)
    expected.backward(seed.double())
    for ours, right in ((out, expected), *((t.grad, w.grad) for t, w in zip(given, wide, strict=True))):
        scale = right.abs().max().item()
        assert ours.dtype is dtype and (ours.double() - right).abs().max().item() <= TOLERANCE[dtype] * scale


def test_a_captured_graph_of_attention() -> None:
    mask = masks.band(256, 16, 0.9)
    attention = SparseAttention(mask, 4, 64)
    given = [torch.randn(4, 256, 64, device="cuda", dtype=torch.float16) for _ in range(3)]
    graph, out = captured(lambda: attention(*given))
    for tensor in given:
        tensor.copy_(torch.randn_like(tensor))
    graph.replay()
    torch.testing.assert_close(out, attention(*given))
