"""Dense products in the place of kernels in TF32 are in TF32 too, and PyTorch's switch stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sparsegen.backends import emulator_device  # noqa: E402
from sparsegen.errors import LaunchError  # noqa: E402
from sparsegen.integrations.torch.blocks.plain_products import PlainProduct  # noqa: E402
from sparsegen.operators import DType, SddProblem  # noqa: E402
from sparsegen.plan import tf32  # noqa: E402
from sparsegen.tuning.prediction.targets import find_target  # noqa: E402

H200 = find_target("nvidia-h200").device


@pytest.fixture(autouse=True)
def ieee() -> Iterator[None]:
    """PyTorch's switch is off before each test, whatever ran in this process before."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("may", [False, True])
@pytest.mark.parametrize("is_old", [False, True])
def test_the_switch_is_on_for_the_product_alone(
    is_old: bool, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_old:  # PyTorch before 2.9
        names = "_get_cublas_allow_tf32", "_set_cublas_allow_tf32"
        old = SimpleNamespace(_C=SimpleNamespace(**{name: getattr(torch._C, name) for name in names}))
        monkeypatch.setitem(tf32.sys.modules, "torch", old)
    read, write, on = tf32._switch()
    first = read()

    def multiply(fails: bool) -> object:
        if fails:
            raise LaunchError("no memory")
        return read()

    try:
        write(on if may else first)
        before = read()
        multiplied = tf32.cut_as_kernels_do(multiply, DType.FLOAT32, H200)
        assert multiplied(False) == on and read() == before and (before == on) is may
        with pytest.raises(LaunchError):
            multiplied(True)
        assert read() == before
    finally:
        write(first)
    for dtype, device in ((DType.FLOAT16, H200), (DType.FLOAT32, None), (DType.FLOAT32, emulator_device())):
        assert tf32.cut_as_kernels_do(multiply, dtype, device) is multiply


def test_plain_products_are_in_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    read, _, on = tf32._switch()
    monkeypatch.setattr(SddProblem, "dense_result", lambda *_: seen.append(read()) or torch.zeros(1))
    for device in (H200, None):
        PlainProduct(SddProblem(32, 32, 32), 1.0, device)(torch.ones(32, 32), torch.ones(32, 32), None)
    assert seen[0] == on and seen[1] == read() != on
