"""Preparation of a choice: a check at its first use, and a race with the dense product if estimates do not decide."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsegen import backends
from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.dense_or_sparse import Source, Time, probed_as
from sparsegen.dispatch.options import Dense
from sparsegen.errors import DeviceMemoryError, DeviceUnavailableError, LaunchError, WrongResultError
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.race import Race, on_operands, record
from sparsegen.operators import Launcher, MaskedProblem, Problem
from sparsegen.plan.dense_calls import DenseCalls
from sparsegen.plan.dense_gradient import DenseGradientLauncher
from sparsegen.plan.dense_launcher import DenseLauncher, MaskedDenseLauncher, obstacle
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.variant_launcher import VariantLauncher
from sparsegen.system.cuda_graphs import is_capturing
from sparsegen.system.numpy_types import Array
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.records import Check, MeasuredAs, Outcome, Workload
from sparsegen.verify.variants import CheckedCall

log = logging.getLogger(__name__)

# Random numbers of a large operand, which repeat: a prime, so that no two of its rows are equal.
DRAWN = (1 << 17) - 1
MOST_HOST_FLOP = 2e8  # FLOP of a reference that the host computes; a tenth of a second
MOST_FAILED = 3  # variants in a row: then it is not they

# Variants that were right in this process: device, driver, source digest.
_verified: set[tuple[str, str, str]] = set()


class FewDraws(np.random.Generator):
    """Draws at most `DRAWN` normal numbers and repeats them in larger arrays: drawing takes longest."""

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        count = 1 if size is None else int(np.prod(size))
        if out is not None or count <= DRAWN:
            return super().standard_normal(size, dtype, out)
        return np.resize(super().standard_normal(DRAWN, dtype), size)


def can_be_checked(problem: Problem, matrix: CsrMatrix, backend: str) -> bool:
    """True if a reference takes little time: one by the device, or a small one."""
    by_device = backend == "cuda" and bool(problem.reference_files)
    return by_device or problem.cost(matrix.nnz).flop <= MOST_HOST_FLOP


def checked(
    launcher: VariantLauncher,
    workload: Workload,
    matrix: CsrMatrix,
    driver: str,
    *,
    value_order: Array | None = None,
) -> Check | None:
    """Checks one launch on random operands of a matrix's workload; None if there is no memory for it.

    Afterwards kept operands, and values that batch elements have of their own, are as before.

    Args:
        value_order: the one that the launcher was made with.

    Raises:
        SparsegenError: the device's reference differs from the host's, so that nothing can be verified.
    """
    began = time.monotonic()
    outcome, reason, worst = Outcome.OK, "", None
    try:
        with launcher.prepared.executor.entered():  # its memory is freed inside, too
            worst, reason = _launched(launcher, workload.problem, matrix, value_order)
        if not worst <= 1:
            outcome = Outcome.WRONG
    except DeviceMemoryError as error:
        log.info("%s is not checked: %s", launcher.variant.family, error)
        return None
    except LaunchError as error:
        outcome, reason = Outcome.CRASHED, str(error)
    seconds = time.monotonic() - began
    return Check(workload, launcher.device, launcher.variant, driver, outcome, seconds, reason, worst)


def _launched(
    launcher: VariantLauncher, problem: Problem, matrix: CsrMatrix, value_order: Array | None
) -> tuple[float, str]:
    """The largest error over its bound, and what is wrong; the executor is entered."""
    bound, executor = launcher.prepared, launcher.prepared.executor
    own = bound.packed.arrays[bound.packed.values] if problem.value_sets > 1 and bound.packed.values else None
    before = None if own is None else np.empty(own.nbytes, np.uint8)
    if own is not None and before is not None:
        executor.synchronize()
        executor.download(own, before)
    call = CheckedCall(bound, problem, matrix, FewDraws(np.random.PCG64(1)), value_order)
    reason = "" if call.worst <= 1 else call.explain()
    if own is not None and before is not None:
        executor.overwrite(own, before)
        executor.synchronize()
    return call.worst, reason


@dataclass(frozen=True, slots=True)
class Preparation:
    """Arguments of `sparsegen.prepare`.

    Attributes:
        workload: the matrix's workload.
        location: place of the database that is written.
        kind: the kind of times that counts.
        database: holds what was verified.
        choose: returns the choice without the variants that failed these checks.
        verifies: check a variant on its first use.
        probes: allow a race of a variant and the dense product.
        pattern, kept, value_order: see `VariantLauncher`.
    """

    matrix: CsrMatrix
    workload: Workload
    device: Device
    location: str
    database: Layer
    choose: Callable[[Sequence[Check]], Choice]
    kept: Mapping[str, object]
    pattern: str | None
    value_order: Array | None
    verifies: bool
    probes: bool
    kind: MeasuredAs | None

    def launcher(self, choice: Choice) -> Launcher:
        """Returns the launcher of the variant or of the dense product, whichever is faster.

        A variant that gives a wrong result on its first use is recorded, and the next best one takes its place.

        Raises:
            DeviceUnavailableError: the dense product was demanded, and cannot run.
            CompileError, LaunchError: the variant cannot be built or loaded, or crashed on its first use.
            WrongResultError: the caller named a variant that is wrong, or `MOST_FAILED` are.
        """
        failed: list[Check] = []
        while True:
            choice = self._with_obstacle(choice)
            if choice.use_dense and not (choice.is_open and self._may_probe()):
                return self._dense(choice)
            sparse = self._sparse(choice)
            check = self._checked(sparse, choice)
            if check is None:
                break
            failed.append(check)
            self._refuse(check, choice, len(failed))
            choice = self.choose(failed)
        if not (choice.is_open and self._may_probe()):
            return sparse
        dense = self._dense(choice)
        probed = self._probed(choice, sparse, dense)
        sparse.choice = dense.choice = probed
        return dense if probed.use_dense else sparse

    def _checked(self, sparse: VariantLauncher, choice: Choice) -> Check | None:
        """The check that the variant failed, if it was checked now and failed."""
        problem, digest = choice.problem, sparse.variant.source_digest
        if not self.verifies or is_capturing():
            return None
        driver = backends.driver_version(self.device)
        key = (self.device.key, driver, digest)
        if key in _verified or self.database.is_verified(self.device, driver, digest):
            sparse.verified = "verified on such a device with this driver before"
            return None
        if not can_be_checked(problem, self.matrix, self.device.backend):
            sparse.verified = "not verified on this device and driver: the reference would take too long"
            return None
        few = problem.to_check()
        launcher = sparse if few == problem else self._of_fewer(sparse, few)
        workload = (
            replace(self.workload, problem=few) if few.has_pattern else Workload.of(few, few.without_pattern)
        )
        check = checked(launcher, workload, self.matrix, driver, value_order=self.value_order)
        if check is None:
            sparse.verified = "not verified on this device and driver: there is not enough memory"
            return None
        record(self.location, lambda store: store.add_check(check))
        if check.outcome is not Outcome.OK:
            return check
        _verified.add(key)
        sparse.verified = (
            f"verified on this first use in {check.seconds * 1e3:.0f} ms: largest error "
            f"{check.worst_error or 0.0:.3g} of its bound"
        )
        return None

    def _refuse(self, check: Check, choice: Choice, failed: int) -> None:
        """Say what failed; raise where no other variant may take its place."""
        what = "crashed" if check.outcome is Outcome.CRASHED else "gives wrong results"
        said = f"{choice.family.name} ({check.variant.config}) {what} on {self.device.name}: {check.reason}"
        if check.outcome is Outcome.CRASHED and self.device.backend == "cuda":
            raise LaunchError(f"{said}; it is recorded, and a new process takes another variant")
        if choice.how in (How.NAMED, How.PINNED) or failed >= MOST_FAILED:
            raise WrongResultError(said)
        log.warning("%s; it is recorded, and another variant is taken", said)

    def _with_obstacle(self, choice: Choice) -> Choice:
        """The choice, knowing whether a dense product can run at all."""
        if choice.policy is Dense.NEVER or (choice.policy is Dense.AUTO and choice.dense is None):
            return choice
        why = obstacle(self.device, choice.policy)
        if why and choice.policy is Dense.ALWAYS:
            raise DeviceUnavailableError(f"dense = always, but {why}")
        return replace(choice, obstacle=why)

    def _may_probe(self) -> bool:
        return self.probes and not is_capturing()

    def _sparse(self, choice: Choice) -> VariantLauncher:
        return VariantLauncher(
            choice,
            self.matrix,
            executor=shared_executor(self.device),
            toolchain=backends.toolchain(self.device),
            kept=self.kept,
            pattern=self.pattern,
            value_order=self.value_order,
        )

    def _of_fewer(self, sparse: VariantLauncher, few: Problem) -> VariantLauncher:
        """The same variant for a problem with fewer items: on the same matrix, or without one on nothing."""
        own = not few.has_pattern
        return VariantLauncher(
            replace(sparse.choice, problem=few),
            few.without_pattern if own else sparse.prepared.packed,
            executor=sparse.prepared.executor,
            toolchain=backends.toolchain(self.device),
            kept=few.kept({}) if own else self.kept,
            pattern=self.pattern,
        )

    def _dense(self, choice: Choice) -> DenseCalls:
        if not choice.problem.has_pattern:
            made = MaskedDenseLauncher if isinstance(choice.problem, MaskedProblem) else DenseGradientLauncher
            return made(choice, self.device, self.kept)
        return DenseLauncher(
            choice,
            self.matrix,
            self.device,
            kept=self.kept,
            pattern=self.pattern,
            value_order=self.value_order,
        )

    def _probed(self, choice: Choice, sparse: VariantLauncher, dense: DenseCalls) -> Choice:
        """The choice with both times; as it was, by estimates, where they cannot be taken."""
        race = Race(self.workload, self.device, sparse.variant, probed_as(self.kind))
        try:
            probe = race.run(on_operands(sparse, dense, choice.problem, self.matrix), self.location)
        except LaunchError as error:
            log.warning("dense or sparse is decided by estimates, as they cannot be timed: %s", error)
            return choice
        return replace(
            choice, probed_us=probe.sparse_us, dense=Time.of_dense(probe.dense_us, Source.MEASURED)
        )
