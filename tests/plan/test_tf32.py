"""Dense products in the place of kernels in TF32 are in TF32 too, and PyTorch's switch stays as it was."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sparsegen.integrations.torch.blocks.plain_products import PlainProduct  # noqa: E402
from sparsegen.operators import DType, SddProblem  # noqa: E402
from sparsegen.plan import tf32  # noqa: E402
from sparsegen.tuning.prediction.targets import find_target  # noqa: E402

H200 = find_target("nvidia-h200").device


@pytest.mark.parametrize("may", [False, True])
@pytest.mark.parametrize("is_old", [False, True])
def test_the_switch_is_on_in_the_context_alone(
    is_old: bool, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_old:  # PyTorch before 2.9
        names = "_get_cublas_allow_tf32", "_set_cublas_allow_tf32"
        old = SimpleNamespace(_C=SimpleNamespace(**{name: getattr(torch._C, name) for name in names}))
        monkeypatch.setitem(tf32.sys.modules, "torch", old)
    tf32._switch.cache_clear()
    read, write, on = tf32._switch()
    first = read()
    try:
        if may:
            write(on)
        before = read()
        with tf32.precision_of(DType.FLOAT32, H200)():
            assert read() == on
            with tf32.precision_of(DType.FLOAT32, H200)():
                assert read() == on
            assert read() == on
        assert read() == before and (before == on) is may
        for other in (
            (DType.FLOAT16, H200),
            (DType.FLOAT32, None),
            (DType.FLOAT32, replace(H200, backend="emulator")),
        ):
            with tf32.precision_of(*other)():
                assert read() == before
    finally:
        write(first)
        tf32._switch.cache_clear()


def test_plain_products_are_in_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    read, _, on = tf32._switch()
    monkeypatch.setattr(SddProblem, "dense_result", lambda *_: seen.append(read()) or torch.zeros(1))
    for device in (H200, None):
        PlainProduct(SddProblem(32, 32, 32), 1.0, device)(torch.ones(32, 32), torch.ones(32, 32), None)
    assert seen[0] == on and seen[1] == read() != on
