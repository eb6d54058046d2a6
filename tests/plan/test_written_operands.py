"""Operands that a call writes beside its result: they come back, and a wrong one is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sparsegen
from sparsegen.backends import emulator_device, open_executor
from sparsegen.errors import OperandError
from sparsegen.masks import BlockMask
from sparsegen.settings import Settings
from sparsegen.verify.bounds import worst_error
from sparsegen.verify.written import WrittenOperands

TOKENS, HEADS = 192, 2


@pytest.fixture(scope="module")
def attend(emulator_settings: Settings) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARSEGEN_DEVICE", "emulator")
        return sparsegen.prepare(
            operator="block_attention",
            queries=TOKENS,
            keys=TOKENS,
            kv_heads=HEADS,
            group=1,
            head_dim=32,
            dtype="float16",
            block="64x64",
            density=0.5,
            span="causal",
        )


def operands() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal((HEADS, TOKENS, 32)).astype(np.float16) for name in "qkv"}
    live = np.array(
        [[False, True, True], [True, False, True], [True, False, True]]
    )  # the first rows see nothing
    return given | {"mask": BlockMask.from_blocks(live, (64, 64)).words}


def test_a_call_writes_its_lse_with_and_without_a_band(attend: Any) -> None:
    given, lse = operands(), np.full((HEADS, TOKENS), np.nan, np.float32)
    problem = attend.problem
    usual = {"scale": np.array([32**-0.5], np.float32)}
    for band in (None, sparsegen.Band.of(TOKENS, TOKENS, window=100)):
        words = problem.band.words if band is None else band.words
        found = attend(*given.values(), band=None if band is None else words, lse=lse)
        whole = given | usual | {"band": words}
        assert worst_error(problem.reference(problem.without_pattern, whole), found) <= 1
        must_be = problem.written_references(problem.without_pattern, whole)["lse"]
        assert worst_error(must_be, lse) <= 1
        assert np.isneginf(lse[:, :64]).all() == (band is None)
    attend(*given.values())  # which needs no room for it


def test_what_cannot_be_written_is_refused(attend: Any) -> None:
    lse = np.zeros((HEADS, TOKENS), np.float32)
    lse.setflags(write=False)
    with pytest.raises(OperandError, match="lse: expected a writeable array, got a read-only one"):
        attend(*operands().values(), lse=lse)


def test_a_wrong_one_is_found_and_named(attend: Any) -> None:
    problem, executor = attend.problem, open_executor(emulator_device())
    drawn = problem.random_operands(np.random.default_rng(1), 0)
    right = problem.written_references(problem.without_pattern, drawn)["lse"].exact.astype(np.float32)
    buffers = {"lse": executor.upload(right)}
    written = WrittenOperands(problem, problem.without_pattern, drawn, buffers, executor)
    assert written.worst_error() <= 1
    right[:, np.flatnonzero(np.isfinite(right[0]))[0]] += np.float32(0.5)
    executor.overwrite(buffers["lse"], right)
    assert written.worst_error() > 1
    assert written.explain().startswith(f"{HEADS} of {HEADS * TOKENS} values are wrong; the worst is lse[")
