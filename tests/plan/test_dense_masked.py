"""Prepared products with masks run PyTorch's product where the caller or times say so, by the mask as it is packed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sparsegen  # noqa: E402
from sparsegen.backends.emulator import device as emulator  # noqa: E402
from sparsegen.dispatch import padded_dense  # noqa: E402
from sparsegen.dispatch.choice import choose  # noqa: E402
from sparsegen.dispatch.chosen import Choice  # noqa: E402
from sparsegen.dispatch.dense_or_sparse import Source, Time, estimated_dense, zeroing_us  # noqa: E402
from sparsegen.dispatch.options import DispatchOptions  # noqa: E402
from sparsegen.errors import ConfigError, OperandError  # noqa: E402
from sparsegen.measure import preparing  # noqa: E402
from sparsegen.operators import (  # noqa: E402
    Block,
    Density,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Epilogue,
    Layout,
    MaskedProblem,
    Rest,
    SddProblem,
)
from sparsegen.tuning.prediction.targets import named_target  # noqa: E402
from sparsegen.tuning_db.records import Workload  # noqa: E402
from sparsegen.tuning_db.shared_layers import shared_layers  # noqa: E402
from sparsegen.verify.bounds import worst_error  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_emulator")
SIZES = (40, 56, 24)
BLOCK = Block(16, 32)
PROBLEMS = [
    DsdProblem(*SIZES, block=BLOCK),
    DsdProblem(*SIZES, block=BLOCK, w_layout=Layout.COLUMN, epilogue=Epilogue.BIAS_RELU),
    DsdProblem(*SIZES, block=BLOCK, epilogue=Epilogue.BIAS_GELU),
    DsdProblem(*SIZES, block=BLOCK, epilogue=Epilogue.BIAS_RESIDUAL),
    DsdTransposedProblem(*SIZES, block=BLOCK),
    DsdTransposedProblem(*SIZES, block=BLOCK, y_layout=Layout.COLUMN),
    SddProblem(*SIZES, block=BLOCK),
    SddProblem(*SIZES, block=BLOCK, w_layout=Layout.COLUMN),
    SddProblem(*SIZES, block=BLOCK, rest="kept"),
]


def call(operator: Any, problem: MaskedProblem, given: dict[str, Any], **more: Any) -> Any:
    out = np.full(problem.result(0).shape, 7.0, np.float32) if problem.result(0).is_updated else None
    first, *others = (name for name in given if name != "scale")
    found = operator(given[first], **{name: given[name] for name in others}, out=out, **more)
    if out is not None:
        dead = ~problem.mask_of(given).expand()
        assert (out[dead] == 7.0).all()
        return np.where(dead, 0.0, found)
    return found


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_it_computes_what_the_problem_says(problem: MaskedProblem) -> None:
    given = problem.random_operands(np.random.default_rng(0), 0)
    filled = replace(problem, rest="filled") if isinstance(problem, SddProblem) else problem
    reference = filled.reference(problem.without_pattern, given)
    scale = float(given["scale"][0])
    operator = sparsegen.prepare(problem=problem, dense="always", scale=scale)
    assert operator.variant is None and operator.explain().startswith(
        "dense: PyTorch's product with dead blocks"
    )
    assert worst_error(reference, call(operator, problem, given)) <= 1
    by_call = sparsegen.prepare(problem=problem, dense="always")
    assert worst_error(reference, call(by_call, problem, given, scale=given["scale"])) <= 1
    with pytest.raises(OperandError, match="no values to update"):
        operator.update_values(given["scale"])


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_rows_that_no_vector_divides_are_padded(
    problem: MaskedProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operands and results; a result in another's memory keeps its rows, so that its contraction alone is padded."""
    is_kept = isinstance(problem, SddProblem) and problem.rest is Rest.KEPT
    odd = replace(problem, m=37, k=56 if is_kept else 53, n=21)
    seen = []
    monkeypatch.setattr(
        padded_dense,
        "is_dense_faster_padded",
        lambda *given: not seen.append(given[1]),  # type: ignore[func-returns-value]
    )
    test_it_computes_what_the_problem_says(odd)
    assert {(wider.m, wider.k, wider.n) for wider in seen} == {(37, 56, 24)}
    assert padded_dense.padded_for_dense(replace(odd, k=56, n=24), emulator()) is None


def test_where_padded_products_are_estimated_to_be_faster() -> None:
    h200 = named_target("nvidia-h200").device
    for odd in (
        DsdTransposedProblem(
            8191, 4001, 4003, DType.FLOAT16
        ),  # by rows, which functions of PyTorch do not ask for
        SddProblem(4096, 4096, 4001, DType.FLOAT16, rest="kept"),
    ):
        wider = padded_dense.padded_for_dense(odd, h200)
        assert wider is not None and wider.n == 4008
        chosen = choose(Workload.of(odd, odd.without_pattern), h200, shared_layers(None), DispatchOptions())
        own = estimated_dense(odd, h200, ())
        assert chosen.dense is not None and own is not None and chosen.dense.us < 0.7 * own.us


def test_a_read_only_out_is_refused() -> None:
    given = PROBLEMS[0].random_operands(np.random.default_rng(0), 0)
    out = np.empty(PROBLEMS[0].result(0).shape, np.float32)
    out.flags.writeable = False
    operator = sparsegen.prepare(problem=PROBLEMS[0], dense="always")
    with pytest.raises(OperandError, match="expected a writeable array, got a read-only one"):
        operator(given["x"], **{name: given[name] for name in given if name != "x"}, out=out)


def test_tensors_of_16_bits() -> None:
    problem = DsdProblem(*SIZES, DType.BFLOAT16, BLOCK)
    stored = problem.random_operands(np.random.default_rng(0), 0)
    x, w = (torch.from_numpy(problem.dtype.from_storage(stored[name])).bfloat16() for name in ("x", "w"))
    mask = torch.from_numpy(stored["mask"])
    found = sparsegen.prepare(problem=problem, dense="always")(x, w, mask)
    live = torch.from_numpy(problem.mask_of(stored).expand())
    torch.testing.assert_close(found, torch.where(live, x, 0) @ w)
    with pytest.raises(OperandError, match=r"mask: expected dtype torch\.uint64"):
        sparsegen.prepare(problem=problem, dense="always")(x, w, mask.view(torch.int64).int())


def test_no_dense_product_of_batches_and_8_bits() -> None:
    with pytest.raises(ConfigError, match="one batch element"):
        sparsegen.prepare(problem=replace(PROBLEMS[0], batch=2), dense="always")
    eight = DsdProblem(
        256, 256, 256, DType.FLOAT16, Block(128, 128), w_layout=Layout.COLUMN, factor_type="e4m3"
    )
    with pytest.raises(ConfigError, match="no dense product in the place of this one"):
        sparsegen.prepare(problem=eight, dense="always")


def test_estimates_that_overlap_are_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The race gets both launchers on operands of their own, and what it says runs and is recorded."""
    problem = PROBLEMS[0]

    def open_choice(self: Choice) -> bool:
        return self.probed_us is None

    monkeypatch.setattr(Choice, "is_open", property(open_choice))
    for dense_us, is_dense in ((1.0, True), (9.0, False)):

        def raced(self: Any, enter: Any, location: str, calls: int = 1, dense_us: float = dense_us) -> Any:
            pair = enter(sparsegen.plan.executors.shared_executor(self.device))
            np.testing.assert_allclose(pair[0](), pair[1](), rtol=2e-2, atol=2e-2)
            return type("Probe", (), {"sparse_us": 3.0, "dense_us": dense_us})

        monkeypatch.setattr(preparing.Race, "run", raced)
        operator = sparsegen.prepare(problem=problem)
        assert (operator.variant is None) is is_dense
        assert operator.choice.dense == Time.of_dense(dense_us, Source.MEASURED)
        assert f"dense takes {dense_us:g} µs (measured)" in operator.explain()


def test_estimates_of_a_gpu() -> None:
    """Small blocks of a mask that is mostly live are left to dense products; few live blocks are not."""
    target = named_target("nvidia-h100")
    assert target is not None
    options = DispatchOptions.of("nearest", "auto", None, None)
    faster = {}
    for side, share in ((16, 0.9), (128, 0.1)):
        problem = DsdProblem(4096, 4096, 4096, DType.FLOAT16, Block(side, side), Density(share))
        found = choose(
            Workload.of(problem, problem.without_pattern), target.device, shared_layers(None), options
        )
        assert found.dense is not None and found.dense.us > zeroing_us(problem, target.device) > 0
        faster[side] = found.use_dense
    assert faster == {16: True, 128: False}
