"""Prepared operators on a GPU: zero-copy calls, streams, graphs, threads, host cost."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from cuda_graphs import captured
from host_costs import host_costs_us

import sparsegen
from sparsegen.errors import OperandError

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_database")]
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
pytest.importorskip("pycuda")

M, K, N = 300, 512, 64
# Host time over that of PyTorch's dense product in the same process; hosts differ in microseconds
# (`benchmarks.host_cost`), and not in this: 0.52 to 0.57 on three of them, 0.70 to 0.80 with a new result.
MOST_INTO_OUT, MOST_ALONE = 0.7, 0.95


@pytest.fixture(scope="module")
def pattern() -> Any:
    return scipy.sparse.random(M, K, 0.1, format="csr", random_state=0, dtype=np.float32)


def prepare(pattern: Any, **options: Any) -> Any:
    return sparsegen.prepare(pattern, n=N, device="cuda:0", **{"dense": "never", **options})


def random(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(getattr(torch, dtype))


def close(actual: Any, pattern: Any, b: Any) -> bool:
    weight = torch.as_tensor(pattern.toarray(), device="cuda").to(b.dtype).double()
    expected = weight @ b.double()
    tolerance = 1e-4 if b.dtype is torch.float32 else 3e-2
    return bool(torch.allclose(actual.double(), expected, rtol=tolerance, atol=tolerance))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torch(pattern: Any, dtype: str) -> None:
    op, b = prepare(pattern, dtype=dtype), random((K, N), dtype)
    c = op(b)
    assert c.dtype is b.dtype and c.device == b.device and close(c, pattern, b)
    out = torch.empty_like(c)
    assert op(b, out) is out and torch.equal(out, c)


def test_pinned_memory_of_the_host_is_read_and_written_where_it_lies(pattern: Any) -> None:
    op, b = prepare(pattern), random((K, N))
    pinned, out = b.cpu().pin_memory(), torch.empty((M, N), pin_memory=True)
    assert op(pinned, out=out) is out
    torch.cuda.synchronize()
    assert torch.equal(out.cuda(), op(b)) and op(pinned).is_cuda
    with pytest.raises(OperandError, match="device"):
        op(b.cpu())


def test_a_bias_and_columns(pattern: Any) -> None:
    bias = random((M,))
    op = prepare(pattern, layout="column", epilogue="bias_relu", bias=bias)
    b = random((N, K))
    weight = torch.as_tensor(pattern.toarray(), device="cuda")
    expected = torch.relu(b @ weight.T + bias)
    assert torch.allclose(op(b), expected, atol=1e-3) and torch.allclose(
        op(b, bias=bias), expected, atol=1e-3
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_transposed_product_takes_new_values_in_the_order_of_the_matrix(pattern: Any, dtype: str) -> None:
    op, b = prepare(pattern, transpose=True, dtype=dtype), random((M, N), dtype)
    assert close(op(b), pattern.T, b)
    other = pattern.copy()
    for values in (random((pattern.nnz,), dtype), np.ones(pattern.nnz, np.float32)):
        op.update_values(values)
        other.data = np.asarray(values.float().cpu() if hasattr(values, "cpu") else values)
        assert close(op(b), other.T, b)


def test_gelu_and_a_residual(pattern: Any) -> None:
    bias, b, residual = random((M,)), random((K, N)), random((M, N))
    weight = torch.as_tensor(pattern.toarray(), device="cuda")
    plain = weight @ b + bias[:, None]
    gelu = prepare(pattern, epilogue="bias_gelu", bias=bias)(b)
    added = prepare(pattern, epilogue="bias_residual", bias=bias)(b, residual=residual)
    assert torch.allclose(gelu, torch.nn.functional.gelu(plain), atol=1e-3)
    assert torch.allclose(added, plain + residual, atol=1e-3)


def test_numpy_and_torch_agree(pattern: Any) -> None:
    op, b = prepare(pattern), random((K, N))
    assert np.array_equal(op(b.cpu().numpy()), op(b).cpu().numpy())


def test_wrong_device_and_strides(pattern: Any) -> None:
    op = prepare(pattern)
    for wrong in (torch.zeros(K, N), random((N, K)).T, random((K, N)).double()):
        with pytest.raises(OperandError, match="b: expected"):
            op(wrong)


def test_streams(pattern: Any) -> None:
    op, b = prepare(pattern), random((K, N))
    expected = op(b)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for given in (stream, stream.cuda_stream):
        c = op(b, stream=given)
        stream.synchronize()
        assert torch.equal(c, expected)
    with torch.cuda.stream(stream):
        c = op(b)
    stream.synchronize()
    assert torch.equal(c, expected)


def test_memory_goes_while_a_graph_is_captured(pattern: Any) -> None:
    held, total = [prepare(pattern)], torch.zeros(4, device="cuda")
    held[0](random((K, N)))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total += 1
        held.clear()
    graph.replay()
    assert total.tolist() == [1.0] * 4


def test_a_graph_captures_calls(pattern: Any) -> None:
    op, b = prepare(pattern), random((K, N))
    out = torch.zeros(M, N, device="cuda")
    graph, (_, inner) = captured(lambda: (op(b, out), op(b)))
    b.copy_(random((K, N)))
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert close(out, pattern, b) and torch.equal(inner, out)


def test_new_values_without_leaving_the_gpu(pattern: Any) -> None:
    for dtype in ("float32", "bfloat16"):
        op, b = prepare(pattern, dtype=dtype), random((K, N), dtype)
        values = random((pattern.nnz,))
        op.update_values(values)
        other = pattern.copy()
        other.data = values.cpu().numpy()
        on_device = op(b)
        assert close(on_device, other, b)
        op.update_values(other.data)
        assert torch.equal(op(b), on_device)


def test_threads(pattern: Any) -> None:
    """Also threads in which nothing has touched CUDA, and NumPy calls in them."""
    op, b = prepare(pattern), random((K, N))
    expected, host = op(b), b.cpu().numpy()
    out = [torch.empty_like(expected) for _ in range(4)]
    torch.cuda.synchronize()
    wrong: list[object] = []

    def run(i: int) -> None:
        try:
            for _ in range(50):
                op(b, out[i], stream=0)
            if not np.array_equal(op(host), expected.cpu().numpy()):
                wrong.append(i)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert wrong == [] and all(torch.equal(o, expected) for o in out)


def test_cupy(pattern: Any) -> None:
    cupy = pytest.importorskip("cupy")
    op, b = prepare(pattern), random((K, N))
    c = op(cupy.asarray(b))
    cupy.cuda.get_current_stream().synchronize()
    assert isinstance(c, cupy.ndarray) and np.array_equal(c.get(), op(b).cpu().numpy())


def test_dense(pattern: Any) -> None:
    op, b = prepare(pattern, dense="always"), random((K, N))
    assert "dense" in op.explain() and close(op(b), pattern, b)
    assert np.allclose(op(b.cpu().numpy()), op(b).cpu().numpy(), atol=1e-4)


def test_host_cost(pattern: Any) -> None:
    op, b = prepare(pattern), random((K, N))
    out, dense = op(b), torch.as_tensor(pattern.toarray(), device="cuda")
    theirs, with_out, alone = host_costs_us(lambda: dense @ b, lambda: op(b, out), lambda: op(b))
    assert with_out <= MOST_INTO_OUT * theirs
    assert alone <= MOST_ALONE * theirs
