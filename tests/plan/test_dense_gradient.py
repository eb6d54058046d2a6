"""Prepared gradients of masked convolutions by their weights run PyTorch's where the caller or times say so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import sparsegen  # noqa: E402
from sparsegen.backends import find_device  # noqa: E402
from sparsegen.dispatch.choice import choose  # noqa: E402
from sparsegen.dispatch.chosen import Choice  # noqa: E402
from sparsegen.dispatch.dense_or_sparse import Source, Time, zeroing_us  # noqa: E402
from sparsegen.dispatch.options import DispatchOptions  # noqa: E402
from sparsegen.errors import ConfigError, OperandError  # noqa: E402
from sparsegen.measure import preparing  # noqa: E402
from sparsegen.operators import (  # noqa: E402
    Density,
    Dilation,
    DType,
    FilterSize,
    Groups,
    MaskBlock,
    MaskedConv2dWeightsProblem,
    Padding,
    Stride,
)
from sparsegen.plan.dense_gradient import LivePixels  # noqa: E402
from sparsegen.tuning.prediction.targets import named_target  # noqa: E402
from sparsegen.tuning_db.records import Workload  # noqa: E402
from sparsegen.tuning_db.shared_layers import shared_layers  # noqa: E402
from sparsegen.verify.bounds import worst_error  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_emulator")
PLAIN = MaskedConv2dWeightsProblem(20, 26, 8, 16, 2, DType.FLOAT16)
PROBLEMS = [
    PLAIN,
    replace(PLAIN, channels=5, filters=3, dtype=DType.BFLOAT16, mask_block=MaskBlock(8, 16)),
    replace(PLAIN, filter_size=FilterSize(5, 3), stride=Stride(2, 3), padding=Padding(2, 0)),
    replace(PLAIN, dilation=Dilation(2, 2), padding=Padding(2, 2), mask_block=MaskBlock(12, 20)),
]


def tensors(problem: MaskedConv2dWeightsProblem, stored: dict[str, Any]) -> list[Any]:
    """The operands in the problem's order; dead outputs hold what must not count."""
    dtype = getattr(torch, problem.dtype.value)
    x, dy = (torch.from_numpy(problem.dtype.from_storage(stored[name])).to(dtype) for name in ("x", "dy"))
    p = problem.forward
    for gradient, words in zip(dy, stored["mask"].reshape(problem.images, -1), strict=True):
        gradient[torch.from_numpy(~p.live(words))] = float("nan")
    return [x, dy, torch.from_numpy(stored["mask"])]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_it_computes_what_the_problem_says(problem: MaskedConv2dWeightsProblem) -> None:
    stored = problem.random_operands(np.random.default_rng(0), 0)
    reference = problem.reference(problem.without_pattern, stored)
    operator = sparsegen.prepare(problem=problem, dense="always")
    assert operator.variant is None and operator.explain().startswith("dense: PyTorch's product with dead")
    given = tensors(problem, stored)
    found = operator(*given)
    assert found.is_contiguous() and tuple(found.shape) == problem.result(0).shape
    assert worst_error(reference, found.view(torch.uint16).numpy().view(problem.dtype.storage)) <= 1
    out = torch.empty_like(found)
    x, dy, mask = given
    sliced = torch.cat([dy.reshape(-1)[:1], dy.reshape(-1)])[1:].reshape(dy.shape)  # on no whole vector
    assert operator(x, sliced, mask, out=out) is out and torch.equal(out, found)
    with pytest.raises(OperandError, match="no values to update"):
        operator.update_values(found)


def test_live_pixels_are_one_launch() -> None:
    """PyTorch gives the memory, and computes nothing."""
    ran: list[str] = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ran.append(str(operator))
            return operator(*args, **(kwargs or {}))

    stored = PLAIN.random_operands(np.random.default_rng(1), 0)
    _, dy, mask = tensors(PLAIN, stored)
    live = LivePixels(PLAIN, find_device("emulator"))
    with Noted():
        found = live.of(dy, mask)
    assert ran == ["aten.empty_like.default"]
    assert torch.equal(found, dy.nan_to_num())


def test_groups_float32_and_batches_have_none() -> None:
    for other in (
        replace(PLAIN, groups=Groups(2)),
        replace(PLAIN, dtype=DType.FLOAT32),
        replace(PLAIN, batch=2),
    ):
        assert other.dense_product is None
        with pytest.raises(ConfigError, match="dense = always"):
            sparsegen.prepare(problem=other, dense="always")


def test_estimates_that_overlap_are_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The race gets both launchers on operands of their own, and what it says runs."""
    monkeypatch.setattr(Choice, "is_open", property(lambda self: self.probed_us is None))
    for dense_us, is_dense in ((1.0, True), (9.0, False)):

        def raced(self: Any, enter: Any, location: str, calls: int = 1, dense_us: float = dense_us) -> Any:
            pair = enter(sparsegen.plan.executors.shared_executor(self.device))
            np.testing.assert_allclose(
                np.asarray(pair[0](), np.float32), np.asarray(pair[1](), np.float32), rtol=2e-2, atol=2e-2
            )
            return type("Probe", (), {"sparse_us": 3.0, "dense_us": dense_us})

        monkeypatch.setattr(preparing.Race, "run", raced)
        operator = sparsegen.prepare(problem=PLAIN)
        assert (operator.variant is None) is is_dense
        assert operator.choice.dense == Time.of_dense(dense_us, Source.MEASURED)


def test_estimates_of_a_gpu() -> None:
    """Few live blocks are left to our kernels; where all live, in sizes that no vector divides, a race decides."""
    target = named_target("nvidia-h200")
    assert target is not None
    options = DispatchOptions.of("nearest", "auto", None, None)
    few = MaskedConv2dWeightsProblem(1080, 1920, 64, 64, 4, DType.FLOAT16, density=Density(0.02))
    whole = replace(few, height=200, width=204, channels=147, filters=98, density=Density(1.0))
    found = [
        choose(Workload.of(p, p.without_pattern), target.device, shared_layers(None), options)
        for p in (few, whole)
    ]
    for problem, choice in zip((few, whole), found, strict=True):
        assert choice.dense is not None and choice.dense.us > zeroing_us(problem, target.device) > 0
    assert not found[0].is_open and not found[0].use_dense
    assert found[1].is_open
