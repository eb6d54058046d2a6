"""Structured dropout on a GPU: results, gradients, half precision, graphs that draw anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
pytest.importorskip("pycuda")

from cuda_graphs import captured  # noqa: E402

from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import (  # noqa: E402
    BlockMaskTensor,
    DropoutLinear,
    draw_block_mask,
    dsd,
    dsd_transposed,
    sdd,
)
from sparsegen.integrations.torch.blocks import dropout, dropout_choice  # noqa: E402
from sparsegen.masks import BlockMask, Drawn, MaskDraw  # noqa: E402
from sparsegen.matrix.block_mask_draw import draw_blocks  # noqa: E402
from sparsegen.measure import decision, race  # noqa: E402
from sparsegen.tuning_db.records import Called  # noqa: E402

TOLERANCE = {torch.float32: 5e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
TOKENS, IN, OUT = 520, 392, 264


@pytest.fixture(autouse=True)
def masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes at which dense products would run in training."""
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    monkeypatch.setattr(dropout, "masked_products_pay", lambda *_: True)


def layer(dtype: Any = torch.float16, **options: Any) -> DropoutLinear:
    torch.manual_seed(0)
    return DropoutLinear(IN, OUT, 0.4, "64x64", device="cuda", dtype=dtype, **options)


def live_of(x_grad: Any) -> Any:
    """Returns the part of the layer's input that it saw, from the gradient: a bool for each element."""
    rows, columns = -(-TOKENS // 64), -(-IN // 64)
    padded = torch.zeros(rows * 64, columns * 64, device="cuda")
    padded[:TOKENS, :IN] = x_grad != 0
    blocks = padded.reshape(rows, 64, columns, 64).amax((1, 3))
    return blocks.repeat_interleave(64, 0).repeat_interleave(64, 1)[:TOKENS, :IN].bool()


def expected(found: DropoutLinear, x: Any, seed: Any, live: Any) -> tuple[Any, ...]:
    wide = x.detach().double().requires_grad_()
    weight, bias = (t.detach().double().requires_grad_() for t in found.parameters())
    y = torch.nn.functional.linear(torch.where(live, wide, 0) / 0.6, weight, bias)
    return y, *torch.autograd.grad(y, (wide, weight, bias), seed.double())


def assert_close(ours: Any, right: Any, dtype: Any) -> None:
    assert (ours.double() - right).abs().max() <= TOLERANCE[dtype] * right.abs().max()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_results_and_gradients(dtype: Any) -> None:
    found = layer(dtype)
    x = torch.randn(2, TOKENS // 2, IN, device="cuda", dtype=dtype, requires_grad=True)
    y = found(x)
    seed = torch.randn_like(y)
    grads = torch.autograd.grad(y, (x, *found.parameters()), seed)
    flat = x.detach().reshape(TOKENS, IN)
    live = live_of(grads[0].reshape(TOKENS, IN))
    assert 0.3 < live.float().mean() < 0.9
    right = expected(found, flat, seed.reshape(TOKENS, OUT), live)
    for mine, theirs in zip((y, *grads), right, strict=True):
        assert_close(mine.reshape(theirs.shape), theirs, dtype)


@pytest.mark.parametrize("drawn", Drawn)
def test_masks_of_a_state(drawn: Drawn) -> None:
    state = torch.tensor([-5, 7], dtype=torch.int64, device="cuda")
    mask = draw_block_mask((TOKENS, IN), (64, 64), 0.4, drawn, state=state)
    live = draw_blocks(mask.layout, MaskDraw(0.4, drawn), 2**64 - 5, 7)
    np.testing.assert_array_equal(mask.to_host().blocks(), live)
    given = BlockMaskTensor.from_blocks(torch.from_numpy(live).cuda(), (64, 64), (TOKENS, IN))
    host = BlockMaskTensor.from_host(BlockMask.from_blocks(live, (64, 64), (TOKENS, IN)), "cuda")
    for other in (given, host):
        np.testing.assert_array_equal(other.words.cpu().numpy(), mask.words.cpu().numpy())


def test_a_replayed_step_draws_what_eager_steps_draw() -> None:
    """Forward and backward in one graph, 1,000 times, against the same steps outside it."""
    found = layer()
    x = torch.randn(TOKENS, IN, device="cuda", dtype=torch.float16, requires_grad=True)
    seed = torch.randn(TOKENS, OUT, device="cuda", dtype=torch.float16)

    def step() -> tuple[Any, ...]:
        y = found(x)
        return y, *torch.autograd.grad(y, (x, found.weight), seed)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph, results = captured(step, stream)
        torch.manual_seed(9)
        eager = torch.stack([torch.stack([part.double().sum() for part in step()]) for _ in range(1000)])
        torch.manual_seed(9)
        replayed = []
        for _ in range(1000):
            graph.replay()
            replayed.append(torch.stack([part.double().sum() for part in results]))
    stream.synchronize()
    assert torch.equal(torch.stack(replayed), eager)
    assert eager[:, 0].unique().numel() > 990


def test_draws_and_products_follow_each_other() -> None:
    """The stream has only these two, and memory that the allocator hands out again while a kernel still runs."""
    state = torch.tensor([11, 0], dtype=torch.int64, device="cuda")
    x = torch.randn(TOKENS, IN, device="cuda", dtype=torch.float16)
    weight = torch.randn(OUT, IN, device="cuda", dtype=torch.float16)

    def chain(count: int) -> list[Any]:
        return [
            dsd(x, weight, draw_block_mask((TOKENS, IN), (64, 64), 0.4, state=state), dense="never")
            for _ in range(count)
        ]

    def right(step: int) -> Any:
        layout = draw_block_mask((TOKENS, IN), (64, 64), 0.4, state=state.clone()).layout
        live = torch.from_numpy(draw_blocks(layout, MaskDraw(0.4), 11, step)).cuda()
        whole = live.repeat_interleave(64, 0).repeat_interleave(64, 1)[:TOKENS, :IN]
        return torch.where(whole, x, 0).double() @ weight.double().t()

    chain(2)
    found = chain(50)
    for step, y in enumerate(found):
        assert_close(y, right(2 + step), torch.float16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain(7)
    for turn in range(30):
        graph.replay()
        if turn % 10 == 9:
            last = [y.clone() for y in captured]
            for step, y in enumerate(last):
                assert_close(y, right(52 + 7 * turn + step), torch.float16)
            found = chain(1)  # and again behind a graph
            assert_close(found[0], right(52 + 7 * (turn + 1)), torch.float16)
            state[1] -= 1


def test_gradients_at_once_are_those_of_eager_steps() -> None:
    """Two layers in one graph, whose kernels and side stream are the same; replays behind each other."""
    first, second = (layer(own_seed=True) for _ in range(2))
    x = torch.randn(TOKENS, IN, device="cuda", dtype=torch.float16, requires_grad=True)
    seed = torch.randn(TOKENS, OUT, device="cuda", dtype=torch.float16)

    def step() -> tuple[Any, ...]:
        parameters = *first.parameters(), *second.parameters()
        return torch.autograd.grad(first(x) + second(x), (x, *parameters), seed)

    def rewind() -> None:
        for one in (first, second):
            one._own_state(x.device)[1] = 0

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
        rewind()
        right = [[part.double() for part in step()] for _ in range(20)]
        graph, results = captured(step, stream)
        rewind()
        for parts in right:
            graph.replay()
            for mine, theirs in zip(results, parts, strict=True):
                assert_close(mine, theirs, torch.float16)


def test_a_seed_of_its_own_is_not_drawn_in_a_graph() -> None:
    found, x = layer(own_seed=True), torch.randn(TOKENS, IN, device="cuda", dtype=torch.float16)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(OperandError, match="once before a CUDA graph is captured"), torch.cuda.graph(graph):
        found(x)
    assert found(x).shape == (TOKENS, OUT)


def test_a_replayed_step_with_seeds_of_the_layers_own() -> None:
    """Two layers, whose masks are drawn behind each other's products, in one graph and outside it."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"own_seed": True, "device": "cuda", "dtype": torch.float16}
    first = DropoutLinear(IN, OUT, 0.4, "64x64", activation="relu", **options)
    second = DropoutLinear(OUT, IN, 0.4, "64x64", **options)
    x = torch.randn(TOKENS, IN, device="cuda", dtype=torch.float16, requires_grad=True)

    def step() -> tuple[Any, ...]:
        y = second(first(x))
        return y, *torch.autograd.grad(y, (x, first.weight, second.weight), torch.ones_like(y))

    def sums(results: tuple[Any, ...]) -> Any:
        return torch.stack([part.double().abs().sum() for part in results])

    def rewind(to: list[Any]) -> None:
        for found, state in zip((first, second), to, strict=True):
            found._state.copy_(state)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph, results = captured(step, stream)
        start = [found._state.clone() for found in (first, second)]
        eager = torch.stack([sums(step()) for _ in range(300)])
        rewind(start)
        replayed = []
        for _ in range(300):
            graph.replay()
            replayed.append(sums(results))
    stream.synchronize()
    assert torch.equal(torch.stack(replayed), eager)
    assert eager[:, 0].unique().numel() > 290


@pytest.mark.parametrize("own_seed", [False, True])
def test_a_graph_captures_products_that_no_eager_call_ran(
    own_seed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Masked products may be faster in graphs alone; autograd's thread has launches of its own."""
    monkeypatch.setattr(dropout, "masked_products_pay", dropout_choice.masked_products_pay)
    monkeypatch.setattr(decision, "_decisions", {})
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))

    def timed(enter: Any, executor: Any, called: Called, *_: Any) -> tuple[float, float]:
        for run in enter(executor):
            run()
        return (1.0, 2.0) if called is Called.DEVICE else (2.0, 1.0)

    monkeypatch.setattr(race, "pair_us", timed)
    found = DropoutLinear(
        IN + 8,
        OUT + 8,
        0.4,
        "64x64",
        activation="relu",
        own_seed=own_seed,
        device="cuda",
        dtype=torch.float16,
    )
    x = torch.randn(TOKENS, IN + 8, device="cuda", dtype=torch.float16, requires_grad=True)

    def step() -> tuple[Any, ...]:
        y = found(x)
        return y, *torch.autograd.grad(y, (x, found.weight), torch.ones_like(y))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph, results = captured(step, stream)
        for _ in range(3):
            graph.replay()
    stream.synchronize()
    ((*_, made),) = decision.decisions()
    assert not made.from_host and made.on_device
    assert all(part.isfinite().all() and part.any() for part in results)


def test_a_graph_replays_the_dense_way_on_the_mask_of_its_step() -> None:
    """Dense products read the packed mask on the device: nothing waits for the host, and each replay sees new words."""
    torch.manual_seed(0)
    x, d, weight = (torch.randn(s, device="cuda").half() for s in ((TOKENS, IN), (TOKENS, OUT), (OUT, IN)))
    state = torch.tensor([7, 0], device="cuda")

    def step() -> tuple[Any, ...]:
        mask = draw_block_mask((TOKENS, IN), 64, 0.4, state=state)
        return (
            dsd(x, weight, mask, dense="always"),
            dsd_transposed(x, d, mask, dense="always"),
            sdd(d, weight, mask, dense="always"),
            mask.words,
        )

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
        graph, results = captured(step, stream)
        for _ in range(3):
            graph.replay()
    stream.synchronize()
    *products, words = results
    live = BlockMaskTensor((TOKENS, IN), (64, 64), words).expand()
    kept = torch.where(live, x, 0)
    for found, expected in zip(
        products, (kept @ weight.t(), d.t() @ kept, torch.where(live, d @ weight, 0)), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-1)


def test_compiled_with_inductor() -> None:
    found = layer(activation="relu")
    compiled = torch.compile(found, fullgraph=True)
    x = torch.randn(TOKENS, IN, device="cuda", dtype=torch.float16, requires_grad=True)
    y = compiled(x)
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    dead = ~live_of(grad)
    assert dead.any() and not dead.all() and not torch.equal(compiled(x), y)


def test_a_weight_of_another_order() -> None:
    mask = draw_block_mask((TOKENS, IN), (64, 64), 0.4, device="cuda")
    x = torch.randn(TOKENS, IN, device="cuda", dtype=torch.float16)
    weight = torch.randn(IN, OUT, device="cuda", dtype=torch.float16)
    right = torch.where(mask.expand(), x, 0).double() @ weight.double()
    assert_close(dsd(x, weight.t(), mask, dense="never"), right, torch.float16)
