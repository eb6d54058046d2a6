"""Block-masked products for PyTorch, by PyTorch's own and by the kernels in the emulator, against dense ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuda_graphs import captured  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from sparsegen import backends  # noqa: E402
from sparsegen.dispatch import decision  # noqa: E402
from sparsegen.dispatch.decision import Decision  # noqa: E402
from sparsegen.dispatch.options import Dense  # noqa: E402
from sparsegen.errors import ConfigError, OperandError  # noqa: E402
from sparsegen.integrations.torch import BlockMaskTensor, dsd, dsd_transposed, sdd, sdd_into  # noqa: E402
from sparsegen.integrations.torch.blocks import padded_products, product_launch  # noqa: E402
from sparsegen.integrations.torch.blocks.plain_products import PlainProduct, drawn_words  # noqa: E402
from sparsegen.integrations.torch.calls import devices  # noqa: E402
from sparsegen.integrations.torch.calls.launches import calls  # noqa: E402
from sparsegen.integrations.torch.calls.prepared_operators import Operators  # noqa: E402
from sparsegen.integrations.torch.calls.row_copies import RowCopy  # noqa: E402
from sparsegen.operators import (  # noqa: E402
    Block,
    Density,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Rest,
    SddProblem,
)
from sparsegen.tuning.prediction.targets import find_target  # noqa: E402
from sparsegen.tuning_db.records import Called, Task  # noqa: E402

TOKENS, IN, OUT, BLOCK, SCALE = 40, 56, 24, (16, 32), 1.25
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-2, torch.float16: 2e-2, torch.bfloat16: 2e-1}


def tensors(dtype: Any, *, grad: bool = False) -> dict[str, Any]:
    torch.manual_seed(0)
    shapes = {"x": (TOKENS, IN), "d": (TOKENS, OUT), "w": (OUT, IN), "bias": (OUT,)}
    return {name: torch.randn(shape).to(dtype).requires_grad_(grad) for name, shape in shapes.items()}


def some_mask() -> BlockMaskTensor:
    live = torch.from_numpy(np.random.default_rng(0).random((3, 2)) < 0.6)
    assert 0 < live.sum() < 6
    return BlockMaskTensor.from_blocks(live, BLOCK, (TOKENS, IN))


def ours(given: dict[str, Any], mask: BlockMaskTensor) -> dict[str, Any]:
    x, d, w, bias = given.values()
    return {
        "dsd": dsd(x, w, mask, scale=SCALE),
        "bias": dsd(x, w, mask, bias, scale=SCALE),
        "relu": dsd(x, w, mask, bias, scale=SCALE, relu=True),
        "dsd_transposed": dsd_transposed(x, d, mask, scale=SCALE),
        "sdd": sdd(d, w, mask, scale=SCALE),
    }


def dense(given: dict[str, Any], live: Any) -> dict[str, Any]:
    x, d, w, bias = given.values()
    masked = torch.where(live, x, 0) * SCALE
    return {
        "dsd": masked @ w.t(),
        "bias": masked @ w.t() + bias,
        "relu": (masked @ w.t() + bias).relu(),
        "dsd_transposed": d.t() @ masked,
        "sdd": torch.where(live, d @ w, 0) * SCALE,
    }


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_products_and_gradients_are_those_of_dense_ones(
    place: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators = Operators()
    monkeypatch.setattr(product_launch, "operators", operators)
    monkeypatch.setattr(calls, "known", {})
    mask, given = some_mask(), tensors(dtype, grad=True)
    wide = {name: t.detach().double().requires_grad_() for name, t in given.items()}
    expected = dense(wide, mask.expand())
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype] * 5}
    for name, found in ours(given, mask).items():
        assert found.dtype is dtype and found.is_contiguous()
        torch.testing.assert_close(found.double(), expected[name], **close)
        seed = torch.randn_like(found)
        grads = torch.autograd.grad(found, list(given.values()), seed, allow_unused=True)
        theirs = torch.autograd.grad(
            expected[name], list(wide.values()), seed.double(), allow_unused=True, retain_graph=True
        )
        for mine, right in zip(grads, theirs, strict=True):
            assert (mine is None) == (right is None)
            if mine is not None:
                torch.testing.assert_close(mine.double(), right, **close)
    kernels_ran = place == "emulator" and dtype is not torch.float64
    assert bool(operators.found) == kernels_ran


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("sizes", [(41, 57, 23), (40, 57, 24), (33, 64, 21)], ids=str)
def test_rows_that_no_vector_divides_are_padded_where_that_takes_less_time(
    sizes: tuple[int, int, int], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The products, their gradients, a transposed weight; and infinities of dead blocks play no part."""
    (m, k, n), operators = sizes, Operators()
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    monkeypatch.setattr(product_launch, "operators", operators)
    monkeypatch.setattr(padded_products, "is_faster_padded", lambda *_: True)
    monkeypatch.setattr(calls, "known", {})
    torch.manual_seed(0)
    mask = BlockMaskTensor.from_blocks(torch.rand(-(-m // 16), -(-k // 32)) < 0.6, BLOCK, (m, k))
    shapes = {"x": (m, k), "d": (m, n), "w": (n, k), "bias": (n,)}
    given = {name: torch.randn(shape).to(dtype).requires_grad_() for name, shape in shapes.items()}
    wide = {name: t.detach().double().requires_grad_() for name, t in given.items()}
    with torch.no_grad():
        given["x"][~mask.expand()] = torch.inf
    expected = dense(wide, mask.expand())
    transposed = given["w"].t().contiguous().t()
    for found in (ours(given, mask), ours(given | {"w": transposed}, mask)):
        for name, result in found.items():
            assert result.is_contiguous() and result.dtype is dtype
            torch.testing.assert_close(result.double(), expected[name], rtol=2e-2, atol=1e-1)
    found = ours(given, mask)
    for name in ("relu", "dsd_transposed", "sdd"):
        seed = torch.randn_like(found[name])
        leaves = [one for one in given if one != "x"]
        mine = torch.autograd.grad(found[name], [given[one] for one in leaves], seed, allow_unused=True)
        right = torch.autograd.grad(
            expected[name], [wide[one] for one in leaves], seed.double(), allow_unused=True
        )
        for own, other in zip(mine, right, strict=True):
            assert (own is None) == (other is None)
            if own is not None:
                torch.testing.assert_close(own.double(), other, rtol=2e-2, atol=2e-1)
    with torch.no_grad():
        kept = torch.full((m, k), 7.0).to(dtype)
        sdd_into(kept, given["d"], given["w"], mask, scale=SCALE)
        torch.testing.assert_close(kept, torch.where(mask.expand(), found["sdd"], 7.0))
    vector = 128 // torch.finfo(dtype).bits
    *others, (into, *_) = operators.found
    assert into.k == k and (k % vector or into.n % vector == 0)
    assert others and all(p.k % vector == 0 and p.n % vector == 0 for p, *_ in others)


@pytest.mark.parametrize("sizes", [(41, 57, 23), (40, 57, 24), (33, 64, 21)], ids=str)
def test_dense_products_are_padded_too(sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    (m, k, n), operators = sizes, Operators()
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    monkeypatch.setattr(product_launch, "operators", operators)
    monkeypatch.setattr(padded_products, "is_dense_faster_padded", lambda *_: True)
    monkeypatch.setattr(padded_products, "is_faster_padded", lambda *_: False)
    multiplied: list[Any] = []
    by_columns: list[bool] = []

    class Seen(PlainProduct):  # type: ignore[misc]  # of PyTorch, which may be missing
        def __call__(self, first: Any, second: Any, *rest: Any, **more: Any) -> Any:
            multiplied.append((*first.shape, *second.shape))
            by_columns.append(not second.is_contiguous())
            return super().__call__(first, second, *rest, **more)

    monkeypatch.setattr(padded_products, "PlainProduct", Seen)
    monkeypatch.setattr(calls, "known", {})
    torch.manual_seed(0)
    mask = BlockMaskTensor.from_blocks(torch.rand(-(-m // 16), -(-k // 32)) < 0.6, BLOCK, (m, k))
    x, d, w, bias = (torch.randn(shape).half() for shape in ((m, k), (m, n), (n, k), (n,)))
    x = torch.where(mask.expand(), x, torch.inf)
    for call in (
        lambda w, dense: dsd(x, w, mask, bias, scale=SCALE, relu=True, dense=dense),
        lambda w, dense: dsd_transposed(x, d, mask, scale=SCALE, dense=dense),
        lambda w, dense: sdd(d, w, mask, scale=SCALE, dense=dense),
    ):
        for weight in (w, w.t().contiguous().t()):
            found = call(weight, "always")
            assert found.is_contiguous()
            torch.testing.assert_close(found, call(weight, "never"), rtol=2e-2, atol=5e-2)
    assert len(multiplied) == 6 and not any(side % 8 for sides in multiplied for side in sides if side != m)
    assert by_columns == [False, True, False, False, False, True], (
        "a copy of a transposed weight transposes nothing"
    )


@pytest.mark.parametrize("density", [0.01, 0.3, 1.0])
def test_races_run_on_masks_of_the_expected_share(place: str, density: float) -> None:
    problem = SddProblem(100, 70, 32, block=Block(32, 16), density=Density(density))
    mask = BlockMaskTensor((100, 70), (32, 16), drawn_words(problem, torch.device("cpu")))
    assert mask.blocks().sum() == max(1, round(density * 20))


def test_which_products_are_padded() -> None:
    """Large ones whose rows no vector divides; none that writes another's memory, and none so small."""
    h200 = find_target("nvidia-h200").device
    for padded in (padded_products.padded, padded_products.padded_for_dense):
        for kind in (DsdProblem, DsdTransposedProblem, SddProblem):
            odd = kind(4001, 4003, 4005, DType.FLOAT16)
            assert padded(odd, h200) == replace(odd, k=4008, n=4008)
            assert padded(replace(odd, k=4000, n=4000), h200) is None
            assert padded(replace(odd, m=64, k=65, n=65), h200) is None
        assert padded(replace(odd, rest=Rest.KEPT), h200) is None
    cut = replace(odd, dtype=DType.FLOAT32)
    assert padded_products.padded_for_dense(cut, h200) == replace(cut, k=4004, n=4008), "in TF32"


@pytest.mark.parametrize("shape", [(TOKENS, IN), (48, 64)], ids=str)
def test_dense_products_are_the_same_and_run_no_kernel(
    place: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Infinities of dead blocks play no part either."""
    operators = Operators()
    monkeypatch.setattr(product_launch, "operators", operators)
    monkeypatch.setattr(calls, "known", {})
    torch.manual_seed(0)
    m, k = shape
    mask = BlockMaskTensor.from_blocks(some_mask().blocks(), BLOCK, shape)
    x, d, w, bias = (torch.randn(s).half() for s in ((m, k), (m, OUT), (OUT, k), (OUT,)))
    x = torch.where(mask.expand(), x, torch.inf)
    for call in (
        lambda dense: dsd(x, w, mask, bias, scale=SCALE, relu=True, dense=dense),
        lambda dense: dsd_transposed(x, d, mask, scale=SCALE, dense=dense),
        lambda dense: sdd(d, w, mask, scale=SCALE, dense=dense),
    ):
        by_dense = call("always")
        assert not operators.found
        by_kernel = call(Dense.NEVER)
        assert bool(operators.found) is (place == "emulator")
        torch.testing.assert_close(by_dense, by_kernel, rtol=2e-2, atol=2e-2)
        operators.found.clear()
    with pytest.raises(ConfigError, match="dense"):
        sdd(d, w, mask, dense="sometimes")


def test_contractions_over_another_s_memory_are_padded() -> None:
    kept, h200 = (
        SddProblem(4001, 4000, 4005, DType.FLOAT16, rest=Rest.KEPT),
        find_target("nvidia-h200").device,
    )
    for padded in (padded_products.padded, padded_products.padded_for_dense):
        assert padded(kept, h200) == replace(kept, n=4008)


def test_the_dense_way_is_one_launch_and_one_product() -> None:
    """The mask stays packed: PyTorch allocates, multiplies, and does nothing else to elements."""
    seen: list[str] = []

    class Seen(TorchDispatchMode):  # type: ignore[misc]  # of PyTorch, which may be missing
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function.overloadpacket.__name__)
            return function(*args, **(kwargs or {}))

    mask, given = some_mask(), tensors(torch.float32)
    sizes = TOKENS, IN, OUT, DType.FLOAT32, Block(16, 32)
    for kind, names in (
        (DsdProblem, ("x", "w", "bias")),
        (DsdTransposedProblem, ("x", "d")),
        (SddProblem, ("d", "w")),
    ):
        product = PlainProduct(kind(*sizes), SCALE, backends.emulator_device())
        seen.clear()
        with Seen():
            product(*(given[name] for name in names), mask.words)
        assert seen.count("addmm") == 1
        assert set(seen) <= {"addmm", "empty_like", "new_empty", "t"}


@pytest.mark.parametrize("moved", ["rows apart", "not aligned", "columns first"])
def test_the_dense_way_reads_x_where_it_lies(place: str, moved: str) -> None:
    mask, given = some_mask(), tensors(torch.float16)
    x = given["x"]
    if moved == "rows apart":
        given["x"] = torch.zeros(TOKENS, IN + 8).half()[:, :IN].copy_(x)
    elif moved == "not aligned":
        given["x"] = torch.zeros(TOKENS * IN + 1).half()[1:].view(TOKENS, IN).copy_(x)
    else:
        given["x"] = x.t().contiguous().t()
    for call in (
        lambda x: dsd(x, given["w"], mask, dense="always"),
        lambda x: dsd_transposed(x, given["d"], mask, dense="always"),
    ):
        assert torch.equal(call(given["x"]), call(x))


def test_a_product_runs_as_is_decided_for_its_way_of_being_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer may be open in a capture, differ by the way of being called, and hold for every call."""
    asked: list[Any] = []

    def decide(
        task: Task, problem: Any, device: Any, enter: Any, policy: Dense, context: str
    ) -> Decision | None:
        assert not context, "the problem's own kernel runs"
        asked.append((task, policy))
        pair = enter().pair(Called.HOST)
        torch.testing.assert_close(pair[0](), pair[1](), rtol=2e-2, atol=2e-2)
        ran.clear()
        return answers.pop(0)

    emulator = backends.emulator_device()
    monkeypatch.setitem(devices._gpus, torch.device("cpu"), emulator)
    monkeypatch.setattr(product_launch, "decide", decide)
    ran: list[str] = []

    class Seen(PlainProduct):  # type: ignore[misc]  # of PyTorch, which may be missing
        def __call__(self, *given: Any) -> Any:
            ran.append("dense")
            return super().__call__(*given)

    monkeypatch.setattr(product_launch, "PlainProduct", Seen)
    mask, given = some_mask(), tensors(torch.float16)
    for answers, captures, expected in (
        ([Decision.always(True, "")], [False, True], [[], []]),
        ([Decision.always(False, "")], [False, True], [["dense"], ["dense"]]),
        ([Decision(False, True, "")], [False, True, False], [["dense"], [], ["dense"]]),
        ([None, None, Decision.always(False, "")], [True, False, False], [[], ["dense"], ["dense"]]),
    ):
        monkeypatch.setattr(calls, "known", {})
        for is_captured, runs in zip(captures, expected, strict=True):
            monkeypatch.setattr(decision, "is_capturing", lambda is_captured=is_captured: is_captured)
            ran.clear()
            dsd(given["x"], given["w"], mask, scale=SCALE)
            assert ran == runs
        assert not answers
    assert set(asked) == {(Task.PRODUCT, Dense.AUTO)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dead_blocks_are_left_as_they_were(place: str, dtype: Any) -> None:
    mask, given = some_mask(), tensors(dtype)
    before = torch.randn(TOKENS, IN).to(dtype)
    out = before.clone()
    assert sdd_into(out, given["d"], given["w"], mask, scale=SCALE) is out
    live = mask.expand()
    assert torch.equal(out[~live], before[~live])
    torch.testing.assert_close(out[live], sdd(given["d"], given["w"], mask, scale=SCALE)[live])
    nothing = sdd_into(before.clone(), given["d"][:, :0], given["w"][:0], mask)
    assert torch.equal(nothing, torch.where(live, 0, before))
    with pytest.raises(OperandError, match="out: expected a contiguous tensor"):
        sdd_into(before.t().contiguous().t(), given["d"], given["w"], mask)


def test_gradients_of_any_order() -> None:
    mask = some_mask()
    x, d, w, bias = (t.requires_grad_() for t in tensors(torch.float64).values())
    small = {"atol": 1e-6, "nondet_tol": 0.0}
    for function, inputs in (
        (lambda x, w, b: dsd(x, w, mask, b, scale=SCALE), (x, w, bias)),
        (lambda x, d: dsd_transposed(x, d, mask, scale=SCALE), (x, d)),
        (lambda d, w: sdd(d, w, mask, scale=SCALE), (d, w)),
    ):
        assert torch.autograd.gradcheck(function, inputs, fast_mode=True, **small)
        assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True, **small)


def test_operators_are_what_they_say() -> None:
    mask, given = some_mask(), tensors(torch.float32, grad=True)
    rest = (mask.words, SCALE, *mask.shape, *BLOCK, mask.density)
    ops = torch.ops.sparsegen
    torch.library.opcheck(ops.dsd, (given["x"], given["w"], given["bias"], *rest, True, "auto"))
    torch.library.opcheck(ops.dsd_transposed, (given["x"], given["d"], *rest, "auto"))
    torch.library.opcheck(ops.sdd, (given["d"], given["w"], *rest, "auto"))
    out, d, w = torch.zeros(TOKENS, IN), given["d"].detach(), given["w"].detach()
    torch.library.opcheck(ops.sdd_into, (out, d, w, *rest))


def test_a_transposed_weight_is_read_where_it_lies(place: str) -> None:
    mask, given = some_mask(), tensors(torch.float16)
    turned = {**given, "w": given["w"].t().contiguous().t()}
    for name, found in ours(turned, mask).items():
        torch.testing.assert_close(found, ours(given, mask)[name])


def test_no_tokens() -> None:
    mask, given = some_mask(), tensors(torch.float32)
    nothing = given["x"][:0]
    assert dsd(nothing, given["w"], mask, given["bias"]).shape == (0, OUT)
    assert torch.equal(dsd_transposed(nothing, given["d"][:0], mask), torch.zeros(OUT, IN))


def test_a_mask_over_another_shape_of_as_many_blocks_is_refused_at_every_call() -> None:
    mask, given = some_mask(), tensors(torch.float32)
    x, d, w, _ = given.values()
    products = (
        lambda mask: dsd(x, w, mask),
        lambda mask: dsd_transposed(x, d, mask),
        lambda mask: sdd(d, w, mask),
        lambda mask: sdd_into(torch.zeros(TOKENS, IN), d, w, mask),
    )
    other = BlockMaskTensor((TOKENS - 1, IN), BLOCK, mask.words, mask.density)
    for product in products:
        product(mask)
        with pytest.raises(OperandError, match=rf"over {TOKENS} × {IN} .* got one over {TOKENS - 1} × {IN}"):
            product(other)


def test_bad_operands() -> None:
    mask, given = some_mask(), tensors(torch.float32)
    x, d, w, bias = given.values()
    with pytest.raises(OperandError, match=r"weight: expected shape out features × 56, got \(24, 55\)"):
        dsd(x, w[:, 1:], mask)
    with pytest.raises(OperandError, match=r"bias: expected torch\.float32 .* got torch\.float16"):
        dsd(x, w, mask, bias.half())
    with pytest.raises(OperandError, match=r"mask: expected one over 64 × 56 elements in blocks of 16 × 32"):
        dsd(torch.ones(64, IN), w, mask)
    with pytest.raises(OperandError, match="needs a bias"):
        dsd(x, w, mask, relu=True)
    odd = BlockMaskTensor.from_blocks(torch.ones(2, 2, dtype=torch.bool), (24, 32), (TOKENS, IN))
    with pytest.raises(OperandError, match="sides are 16, 32, 64, 128, 256, not 24 × 32"):
        dsd(x, w, odd)
    with pytest.raises(OperandError, match="is no BlockMaskTensor"):
        sdd(d, w, mask.words)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_copies_of_rows(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros behind rows, and rows of them; a vector is a row; what lies otherwise is read as it is meant."""
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    vector = 128 // torch.finfo(dtype).bits
    for sizes in ((5, 70), (3, 1), (67, 2 * vector), (11,)):
        wanted = *(size + 2 for size in sizes[:-1]), -(-sizes[-1] // vector) * vector
        matrix = torch.randn(sizes).to(dtype)
        apart = torch.randn(*sizes[:-1], 2 * sizes[-1]).to(dtype)[..., ::2].copy_(matrix)
        expected = torch.zeros(wanted, dtype=dtype)
        expected[tuple(slice(size) for size in sizes)] = matrix
        copy = RowCopy(matrix, wanted)
        assert torch.equal(copy(matrix), expected) and torch.equal(copy(apart), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("runs_dense", ["never", "always"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_graphs_of_padded_products_follow_their_masks_on_a_gpu(
    dtype: Any, runs_dense: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("is_faster_padded", "is_dense_faster_padded"):
        monkeypatch.setattr(padded_products, name, lambda *_: True)
    monkeypatch.setattr(calls, "known", {})
    m, k, n, block = 1001, 1003, 1005, (64, 64)
    generator = torch.Generator("cuda").manual_seed(0)
    given = [torch.randn(s, generator=generator, device="cuda").to(dtype) for s in ((m, k), (m, n), (n, k))]
    x, d, w = given
    mask = BlockMaskTensor.from_blocks(torch.ones(16, 16, dtype=torch.bool, device="cuda"), block, (m, k))

    def step() -> tuple[Any, ...]:
        return (
            dsd(x, w, mask, dense=runs_dense),
            dsd_transposed(x, d, mask, dense=runs_dense),
            sdd(d, w, mask, dense=runs_dense),
        )

    graph, found = captured(step)
    for share in (0.5, 0.0, 1.0, 0.1):
        live = torch.rand(16, 16, generator=generator, device="cuda") < share
        mask.words.view(torch.int64).copy_(
            BlockMaskTensor.from_blocks(live, block, (m, k)).words.view(torch.int64)
        )
        graph.replay()
        wide = [one.double() for one in given]
        masked = torch.where(mask.expand(), wide[0], 0)
        right = masked @ wide[2].t(), wide[1].t() @ masked, torch.where(mask.expand(), wide[1] @ wide[2], 0)
        for own, expected in zip(found, right, strict=True):
            assert own.shape == expected.shape
            error = (own.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-3)
            assert error < 2e-3, (share, tuple(own.shape), error)


@pytest.mark.parametrize("dense", ["never", "always"])
def test_autocast_leaves_the_operands_dtype(dense: str, place: str) -> None:
    """Whichever product runs, so that gradients have it too."""
    t = tensors(torch.float32, grad=True)
    mask = BlockMaskTensor.from_blocks(torch.rand(3, 2) < 0.5, BLOCK, (TOKENS, IN))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = dsd(t["x"], t["w"], mask, dense=dense)
    assert y.dtype is torch.float32
    y.sum().backward()
    assert t["w"].grad.dtype is torch.float32
