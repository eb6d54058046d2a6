"""Look-ups take a remembered description of a GPU; what runs is decided for the device as its driver describes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsegen
from sparsegen import api, backends
from sparsegen.backends.cuda import early_init
from sparsegen.dispatch import look_up
from sparsegen.dispatch.chosen import Choice
from sparsegen.errors import ConfigError, NoVariantError
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.generators import random_uniform

M, K, N = 12, 17, 8
THERE = backends.emulator_device()  # what the driver is to describe


class Asked:
    """Record of the remembered device, and of the devices that dispatch decided for.

    Attributes:
        remembered: the remembered description; None for nothing.
        choices: the devices that dispatch was asked about.
        begun: number of times that the driver was started in the background.
    """

    def __init__(self) -> None:
        self.remembered: Device | None = THERE
        self.choices: list[Device] = []
        self.begun = 0


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    made, choose = Asked(), look_up.choose

    def noted(workload: Any, device: Device, *others: Any) -> Choice:
        made.choices.append(device)
        if device.compute_capability < (5, 0):
            raise NoVariantError("no family has a variant")
        return choose(workload, device, *others)

    def begin() -> None:
        made.begun += 1

    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    monkeypatch.setattr(backends, "remembered_device", lambda name: made.remembered)
    monkeypatch.setattr(backends, "find_device", lambda name: THERE)
    monkeypatch.setattr(backends, "may_be_gpu", lambda name: True)
    monkeypatch.setattr(early_init, "begin_once", begin)
    monkeypatch.setattr(look_up, "choose", noted)
    return made


@pytest.fixture
def matrix() -> CsrMatrix:
    return random_uniform(M, K, 0.3, seed=2)


def check(op: sparsegen.SparseOperator, matrix: CsrMatrix) -> None:
    b = np.random.default_rng(0).standard_normal((K, N)).astype(np.float32)
    np.testing.assert_allclose(op(b), matrix.to_scipy().toarray() @ b, rtol=1e-4, atol=1e-5)


def test_a_look_up_takes_what_is_remembered(
    asked: Asked, matrix: CsrMatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "find_device", lambda name: pytest.fail("the driver is asked"))
    asked.remembered = replace(THERE, multiprocessors=77)
    sparsegen.lookup(matrix, n=N, device="cuda")
    assert asked.choices == [asked.remembered] and not asked.begun


def test_without_it_the_driver_starts_beside(asked: Asked, matrix: CsrMatrix) -> None:
    asked.remembered = None
    sparsegen.lookup(matrix, n=N, device="cuda")
    check(sparsegen.prepare(matrix, n=N, device="cuda"), matrix)
    assert asked.choices == [THERE, THERE] and asked.begun == 2


def test_what_the_driver_confirms_is_decided_once(asked: Asked, matrix: CsrMatrix) -> None:
    check(sparsegen.prepare(matrix, n=N, device="cuda"), matrix)
    assert asked.choices == [THERE] and asked.begun == 1


STALE = [
    {"multiprocessors": 77},
    {"clock_mhz": 900.0},
    {"uuid": "GPU-11111111-1111-1111-1111-111111111111"},
    {"index": 1},
    {"compute_capability": (3, 5)},  # no variant at all
]


@pytest.mark.parametrize("change", STALE, ids=str)
def test_what_the_driver_describes_otherwise_is_decided_again(
    change: dict[str, Any], asked: Asked, matrix: CsrMatrix
) -> None:
    asked.remembered = replace(THERE, **change)
    op = sparsegen.prepare(matrix, n=N, device="cuda")
    first, second = asked.choices
    assert first is asked.remembered and second is THERE
    assert op.choice == sparsegen.prepare(matrix, n=N, device=THERE).choice
    check(op, matrix)


def test_a_named_variant_is_held_against_the_device_that_is_there(
    asked: Asked, matrix: CsrMatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked.remembered = replace(THERE, shared_memory_per_block=1, shared_memory_per_multiprocessor=1)
    named = {"family": "panel_spmm", "device": "cuda"}
    check(sparsegen.prepare(matrix, n=N, **named), matrix)
    with pytest.raises(ConfigError, match="there"):
        sparsegen.prepare(matrix, n=N, family="panel_spmm", config={"there": 1}, device="cuda")


def test_a_search_is_made_on_the_device_that_is_there(
    asked: Asked, matrix: CsrMatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned: list[Device] = []
    monkeypatch.setattr(api, "tune", lambda *_, device, **__: tuned.append(device))
    asked.remembered = replace(THERE, multiprocessors=77)
    check(sparsegen.prepare(matrix, n=N, on_miss="tune", device="cuda"), matrix)
    assert tuned == [THERE]
