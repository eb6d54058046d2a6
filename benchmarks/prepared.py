"""What scripts on prepared operators share: workloads tuned once, checked calls, a host that is never late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import click
import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.errors import NoVariantError, SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.clock import Clock
from sparsegen.operators import Operator, Problem
from sparsegen.plan.variant_launcher import variant_launcher
from sparsegen.tuning.tuner import Backend, Budget, tune
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.store import Store
from sparsegen.verify.variants import CheckedCall

LEAD_US = 500.0  # that the device waits for the host, which starts up to some fifty kernels meanwhile


class WrongResultError(SparsegenError):
    """A result that is outside of its error bound; such a time is not to be published."""


def tuned_once(
    matrix: CsrMatrix, problem: Problem, device: Device, db: str, seconds: float, searches: int = 1
) -> str:
    """Search over all families, unless that was finished earlier; what came of it in words."""
    with Store.open(db) as store:
        workload = Workload(problem, matrix.fingerprint(), Features.of(matrix))
        if any(m.final for m in store.measurements(workload, device)):
            return "was tuned"
        budget = Budget(seconds=seconds)
        backend = Backend.of(device, problem, baselines=False, searches=searches)
        try:
            result = tune(matrix, problem, device=device, store=store, budget=budget, backend=backend)
        except NoVariantError as error:
            return f"nothing of it can run: {error}"
    winners = {
        name: round(best.sample.median_us, 2) for name, best in result.family_winners.items() if best.sample
    }
    return f"{result.counts.tried} tried in {result.seconds:.0f} s: {winners}"


def tune_all(
    workloads: Sequence[tuple[CsrMatrix, Problem]], device: Device, db: str, seconds: float, jobs: int
) -> None:
    """`tuned_once` for each, some side by side in processes of their own; they take turns on the device.

    Nothing is done for ``seconds`` of 0: dispatch then goes by what the database holds.
    """
    if not seconds:
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        begun = [
            pool.submit(tuned_once, matrix, problem, device, db, seconds, jobs)
            for matrix, problem in workloads
        ]
        for (_, problem), done in zip(workloads, begun, strict=True):
            click.echo(f"tuned {problem}: {done.result()}")


def checked_call(operator: Operator, matrix: CsrMatrix, seed: int = 7) -> CheckedCall:
    """A prepared operator on random operands, its result held against float64.

    Raises:
        WrongResultError: the result is wrong.
    """
    prepared = variant_launcher(operator).prepared
    call = CheckedCall(prepared, operator.problem, matrix, np.random.default_rng(seed))
    if not call.worst <= 1:
        raise WrongResultError(f"{operator.problem}: {call.explain()}")
    return call


def waiting_lead(executor: Executor) -> Callable[[], Any] | None:
    """What keeps a GPU busy until the host has queued a call of many launches; the emulator waits for nobody."""
    return Clock(executor).lead(LEAD_US)


def torch_place(device: Device) -> Any:
    """Where PyTorch's tensors for this device lie.

    Raises:
        SparsegenError: PyTorch is not installed, or sees no GPU.
    """
    try:
        import torch
    except ImportError as error:
        raise SparsegenError("this script needs PyTorch: pip install torch") from error
    if device.backend != "cuda":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SparsegenError("PyTorch sees no GPU: install a build for CUDA")
    torch.cuda.set_device(device.index)
    return torch.device("cuda", device.index)
