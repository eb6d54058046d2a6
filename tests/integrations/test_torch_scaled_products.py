"""Products with masks of 8-bit tensors, by PyTorch's own and by the kernels in the emulator, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import BlockMaskTensor, scaled_dsd, scaled_sdd  # noqa: E402
from sparsegen.operators import Float8  # noqa: E402

TOKENS, IN, OUT, BLOCK = 80, 272, 48, (64, 128)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ROUNDED = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def some_mask() -> BlockMaskTensor:
    live = torch.tensor([[True, False, True], [False, True, True]])
    return BlockMaskTensor.from_blocks(live, BLOCK, (TOKENS, IN))


def numbers(*shape: int, kind: Any = E4M3) -> Any:
    return torch.randn(shape).to(kind)


def scales() -> tuple[Any, Any]:
    return torch.tensor(0.5), torch.tensor([3.0])


@pytest.fixture(params=["plain", "emulator"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "emulator":
        monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")


def test_there_is_no_gradient() -> None:
    x, w = numbers(TOKENS, IN).requires_grad_(), numbers(OUT, IN)
    with torch.no_grad():
        assert not scaled_dsd(x, w, some_mask(), *scales()).requires_grad
    y = scaled_dsd(x, w, some_mask(), *scales())
    with pytest.raises(RuntimeError, match=r"backward through sparsegen\.scaled_dsd"):
        y.sum().backward()


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.usefixtures("where")
def test_products_are_those_of_the_numbers(dtype: Any) -> None:
    torch.manual_seed(0)
    mask, live = some_mask(), some_mask().expand().double()
    x, w, d = numbers(TOKENS, IN), numbers(OUT, IN), numbers(TOKENS, OUT, kind=E5M2)
    along = w.t().contiguous().t()
    found = scaled_dsd(x, w, mask, *scales(), scale=2.0, dtype=dtype)
    exact = 3.0 * (x.double() * live) @ w.double().t()
    assert found.dtype is dtype and found.shape == (TOKENS, OUT)
    torch.testing.assert_close(found.double(), exact, rtol=ROUNDED[dtype], atol=60 * ROUNDED[dtype])
    found = scaled_sdd(d, along, mask, *scales(), dtype=dtype)
    exact = 1.5 * (d.double() @ w.double()) * live
    torch.testing.assert_close(found.double(), exact, rtol=ROUNDED[dtype], atol=60 * ROUNDED[dtype])


@pytest.mark.usefixtures("where")
def test_the_gradient_of_the_weight_is_a_product_of_transposes() -> None:
    """The error of `dsd_transposed` and its module say so."""
    torch.manual_seed(1)
    live = torch.rand(2, 2) < 0.6
    live[0, 0] = True
    mask = BlockMaskTensor.from_blocks(live, (128, 64), (160, 112))
    x, d = numbers(160, 112), numbers(160, OUT, kind=E5M2)
    turned = mask.transposed()
    assert turned.block == (64, 128)
    found = scaled_dsd(x.t().contiguous(), d.t().contiguous(), turned, *scales(), dtype=torch.float32)
    exact = 1.5 * (x.double() * mask.expand()).t() @ d.double()
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-2)


def test_numbers_are_pytorchs() -> None:
    for kind, dtype in ((Float8.E4M3, E4M3), (Float8.E5M2, E5M2)):
        codes = np.arange(256, dtype=np.uint8)
        theirs = torch.from_numpy(codes).view(dtype).float().numpy()
        np.testing.assert_array_equal(kind.from_storage(codes), theirs)
        some = (np.random.default_rng(0).standard_normal(4096) * np.logspace(-8, 1, 4096)).astype(np.float32)
        np.testing.assert_array_equal(
            kind.to_storage(some), torch.from_numpy(some).to(dtype).view(torch.uint8).numpy()
        )


def test_bad_tensors_are_refused_in_words() -> None:
    mask, w, x = some_mask(), numbers(OUT, IN), numbers(TOKENS, IN)
    for bad, message in (
        (
            (x.half(), w),
            "x: expected torch.float8_e4m3fn or torch.float8_e5m2, got torch.float16; dsd and sdd take",
        ),
        ((x, w.float()), "weight: expected torch.float8_e4m3fn"),
        ((x, numbers(OUT, IN + 16)), f"weight: expected shape {OUT} × {IN}"),
        (
            (numbers(IN, TOKENS).t(), w),
            "x: expected a contiguous tensor: tensor cores take 8-bit numbers along",
        ),
        ((x, numbers(IN, OUT).t()), "weight: expected a contiguous tensor"),
        ((x[0], w), "x: expected a matrix"),
    ):
        with pytest.raises(OperandError, match=message):
            scaled_dsd(*bad, mask, *scales())
    with pytest.raises(OperandError, match=r"weight: expected one whose transpose is contiguous"):
        scaled_sdd(numbers(TOKENS, OUT), w, mask, *scales())
    with pytest.raises(OperandError, match="the weight's scale: expected one"):
        scaled_dsd(x, w, mask, torch.ones(()), torch.ones(2))
    with pytest.raises(OperandError, match="dtype: results are float16, bfloat16 or float32"):
        scaled_dsd(x, w, mask, *scales(), dtype=torch.float64)
    other = BlockMaskTensor.from_blocks(torch.ones(1, 1, dtype=torch.bool), BLOCK, (64, 128))
    with pytest.raises(OperandError, match=f"mask: expected one over {TOKENS} × {IN}"):
        scaled_dsd(x, w, other, *scales())
    other = BlockMaskTensor((TOKENS - 1, IN), BLOCK, mask.words)
    with pytest.raises(OperandError, match=f"got one over {TOKENS - 1} × {IN}"):
        scaled_dsd(x, w, other, *scales())


def test_they_compile_whole() -> None:
    mask, w, x = some_mask(), numbers(OUT, IN), numbers(TOKENS, IN)

    def layer(x: Any, w: Any) -> Any:
        return scaled_dsd(x, w, mask, *scales(), dtype=torch.float32).relu()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w), layer(x, w))
