"""Eager calls on a GPU: on whatever stream PyTorch is, behind what was queued there, and in captured graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
pytest.importorskip("pycuda")

from sparsegen import masks  # noqa: E402
from sparsegen.integrations.torch import (  # noqa: E402
    BlockMaskTensor,
    KernelMap,
    SparseAttention,
    SparseLinear,
    SparsePattern,
    masked_conv2d,
    sampled_product,
    scaled_dsd,
    submanifold_conv3d,
    transposed_product,
)

Call = Callable[[], tuple[Any, ...]]  # reads what may have changed since the call before
WAIT = 20_000_000  # cycles, some 10 ms: what is queued behind them has not run when the call is made


def drawn(*shape: int, dtype: Any = torch.float16, trained: bool = False) -> Any:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=trained)


def convolution() -> tuple[list[Any], Call]:
    x = drawn(2, 64, 48, 40).contiguous(memory_format=torch.channels_last)
    weight, bias, mask = drawn(64, 64, 3, 3) / 24, drawn(64), torch.rand(2, 3, 3, device="cuda") < 0.5
    return [x], lambda: (masked_conv2d(x, weight, mask, bias, block=16, padding=1, relu=True, dense="never"),)


def convolution_of_any_input() -> tuple[list[Any], Call]:
    x = drawn(2, 64, 48, 40).contiguous(memory_format=torch.channels_last)
    weight, mask = drawn(64, 64, 3, 3) / 24, torch.rand(2, 3, 3, device="cuda") < 0.5
    return [x], lambda: (
        masked_conv2d(x, weight, mask, block=16, padding=1, mask_of="any_input", dense="never"),
    )


def convolution_and_gradients() -> tuple[list[Any], Call]:
    x = drawn(2, 64, 48, 40).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight, bias = (drawn(64, 64, 3, 3) / 24).requires_grad_(), drawn(64, trained=True)
    mask, dy = torch.rand(2, 3, 3, device="cuda") < 0.5, drawn(2, 64, 48, 40)

    def call() -> tuple[Any, ...]:
        y = masked_conv2d(x, weight, mask, bias, block=16, padding=1, dense="never")
        return y, *torch.autograd.grad(y, (x, weight, bias), dy)

    return [x, dy], call


def attention() -> tuple[list[Any], Call]:
    layer, given = SparseAttention(masks.band(256, 16, 0.9), 4, 64), [drawn(4, 256, 64) for _ in range(3)]
    return given, lambda: (layer(*given),)


def attention_and_gradients() -> tuple[list[Any], Call]:
    layer = SparseAttention(masks.band(256, 16, 0.9), 4, 64)
    given, seed = [drawn(4, 256, 64, trained=True) for _ in range(3)], drawn(4, 256, 64)

    def call() -> tuple[Any, ...]:
        out = layer(*given)
        return out, *torch.autograd.grad(out, given, seed)

    return [*given, seed], call


def products_of_a_pattern() -> tuple[list[Any], Call]:
    pattern = SparsePattern(masks.band(192, 16, 0.5), run_dense="never")
    y, x, values = drawn(40, 192), drawn(40, 192), drawn(pattern.nnz)
    return [y, x], lambda: (transposed_product(y, values, pattern), sampled_product(y, x, pattern))


def sparse_layer() -> tuple[list[Any], Call]:
    layer = SparseLinear.from_dense(torch.nn.Linear(256, 192), sparsity=0.8, run_dense="never").cuda().half()
    x, dy = drawn(40, 256, trained=True), drawn(40, 192)

    def call() -> tuple[Any, ...]:
        y = layer(x)
        return y, *torch.autograd.grad(y, (x, *layer.parameters()), dy)

    return [x, dy], call


def kernel_map_and_convolution() -> tuple[list[Any], Call]:
    cells = (torch.rand(2, 9, 9, 9) < 0.3).nonzero().int().cuda()
    x, weight = drawn(len(cells), 16), drawn(16, 3, 3, 3, 16) / 20
    return [x], lambda: (submanifold_conv3d(x, weight, KernelMap.of(cells)),)


def packed_mask() -> tuple[list[Any], Call]:
    chances = drawn(9, 70, dtype=torch.float32)

    def call() -> tuple[Any, ...]:
        mask = BlockMaskTensor.from_blocks(chances > 0, 64)
        return mask.blocks(), mask.transposed().blocks()

    return [chances], call


def eight_bit_product() -> tuple[list[Any], Call]:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("8-bit factors need sm_90")
    x, weight, one = drawn(256, 256), drawn(128, 256), torch.ones((), device="cuda")
    mask = BlockMaskTensor.from_blocks(torch.rand(2, 2, device="cuda") < 0.7, 128)
    e4m3 = torch.float8_e4m3fn
    return [x], lambda: (scaled_dsd(x.to(e4m3), weight.to(e4m3), mask, one, one),)


CASES = [
    convolution,
    convolution_of_any_input,
    convolution_and_gradients,
    attention,
    attention_and_gradients,
    products_of_a_pattern,
    sparse_layer,
    kernel_map_and_convolution,
    packed_mask,
    eight_bit_product,
]


@pytest.fixture(autouse=True)
def own_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    torch.manual_seed(0)


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def case(request: pytest.FixtureRequest) -> tuple[list[Any], Call]:
    inputs, call = request.param()
    return inputs, call


def change(inputs: list[Any]) -> None:
    with torch.no_grad():
        for tensor in inputs:
            tensor.copy_(torch.randn_like(tensor))


def copies(results: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(result.detach().clone() for result in results)


def hold(found: tuple[Any, ...], right: tuple[Any, ...], before: tuple[Any, ...]) -> None:
    """The results are those of the new inputs, which differ from those of the inputs before."""
    torch.testing.assert_close(found, right, rtol=1e-2, atol=1e-2)
    assert all(not torch.equal(one, other) for one, other in zip(right, before, strict=True))


def test_calls_stand_behind_what_their_stream_has_queued(case: tuple[list[Any], Call]) -> None:
    """The other stream is long done when the inputs change on this one."""
    inputs, call = case
    before = copies(call())
    kept = [tensor.detach().clone() for tensor in inputs]
    change(inputs)
    right = copies(call())
    with torch.no_grad():
        new = [tensor.detach().clone() for tensor in inputs]
        for tensor, old in zip(inputs, kept, strict=True):
            tensor.copy_(old)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(WAIT)
        with torch.no_grad():
            for tensor, value in zip(inputs, new, strict=True):
                tensor.copy_(value)
        found = call()
    side.synchronize()
    hold(found, right, before)


def test_a_graph_holds_the_calls(case: tuple[list[Any], Call]) -> None:
    inputs, call = case
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        before = copies(call())
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    change(inputs)
    graph.replay()
    right = call()
    torch.cuda.synchronize()
    hold(found, right, before)
