"""Data-parallel training with structured dropout: every process drops other blocks, and gradients are averaged."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from patience import LONG

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("PyTorch without gloo", allow_module_level=True)

import data_parallel  # noqa: E402


def test_gradients_are_those_of_all_processes(place: str, tmp_path: Path) -> None:
    started = torch.multiprocessing.spawn(
        data_parallel.train, (str(tmp_path),), nprocs=data_parallel.PROCESSES, join=False
    )
    ends = time.monotonic() + LONG
    while not started.join(timeout=1.0):
        if time.monotonic() > ends:
            for process in started.processes:
                process.kill()
            pytest.fail("the processes do not end")
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(data_parallel.PROCESSES))
    assert torch.equal(one["weight"], other["weight"])
    for mine, theirs in zip(one["steps"], other["steps"], strict=True):
        assert not torch.equal(mine["alone"][0], theirs["alone"][0]), (
            "the masks of both processes are the same"
        )
        for a, b, both, again in zip(
            mine["alone"], theirs["alone"], mine["together"], theirs["together"], strict=True
        ):
            assert torch.equal(both, again)
            torch.testing.assert_close(both.float(), (a.float() + b.float()) / 2, rtol=2e-3, atol=2e-4)
    first, second = (found["alone"][0] for found in one["steps"][:2])
    assert not torch.equal(first, second), "every step drops other blocks"
