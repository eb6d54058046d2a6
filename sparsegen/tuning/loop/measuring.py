"""Measures compiled variants in the session of one search, and says what is recorded of each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from sparsegen import backends
from sparsegen.errors import CacheEntryError
from sparsegen.kernels.config import Config
from sparsegen.measure.session import Attempt, Session
from sparsegen.measure.summary import summarize
from sparsegen.measure.worker import Measure
from sparsegen.plan.variants import CompiledVariant
from sparsegen.tuning.loop.ledger import Ledger
from sparsegen.tuning.loop.pipeline import CompileAhead, Compiled
from sparsegen.tuning_db.records import Measurement, Outcome, Variant

log = logging.getLogger(__name__)

REASON_LENGTH = 2000


class Measuring:
    """The measurements of one search. Owns none of what it is given.

    Args:
        ahead: compiles what is not there, or not any more.
        ledger: ledger of the workload and the device; nothing is recorded in it here.
    """

    def __init__(self, session: Session, ahead: CompileAhead, ledger: Ledger) -> None:
        self._session, self._ahead, self._ledger = session, ahead, ledger
        self._compiled: dict[Variant, CompiledVariant] = {}

    def keep(self, variant: Variant, compiled: CompiledVariant) -> None:
        """Remember a binary for `binary`."""
        self._compiled[variant] = compiled

    def binary(self, variant: Variant) -> CompiledVariant:
        """The variant's binary: what was kept, or for one that an earlier search measured, what the cache has."""
        if variant not in self._compiled:
            self._compiled[variant] = self._compiled_now(variant.config)
        return self._compiled[variant]

    def attempt(self, request: Measure, meanwhile: Callable[[], None] | None = None) -> Attempt:
        """Measures a variant; a binary that was deleted or damaged meanwhile is compiled again, once.

        Args:
            meanwhile: see `Session.measure`.
        """
        try:
            return self._session.measure(request, meanwhile)
        except CacheEntryError as error:
            log.warning("%s; it is compiled again", error)
            compiled = self._compiled_now(request.compiled.rendered.config)
            return self._session.measure(replace(request, compiled=compiled))

    def _compiled_now(self, config: Config) -> CompiledVariant:
        compiled = self._ahead.compile(config)
        if compiled.variant is None:
            assert compiled.error is not None
            raise compiled.error
        return compiled.variant

    # --- what is recorded ---

    def measurement(
        self, variant: Variant, compiled: CompiledVariant, attempt: Attempt, compile_seconds: float | None
    ) -> Measurement:
        """The record of an attempt."""
        measured = attempt.measured
        return Measurement(
            self._ledger.workload,
            self._ledger.device,
            variant,
            attempt.outcome,
            sample=summarize([measured.timing]) if measured.timing else None,
            reason=measured.reason[:REASON_LENGTH],
            worst_error=measured.worst_error,
            registers=compiled.kernel.registers,
            spill_bytes=compiled.kernel.spill_bytes,
            compile_seconds=compile_seconds,
            prepare_seconds=measured.prepare_seconds,
            packed_bytes=measured.packed_bytes,
            driver=backends.driver_version(self._ledger.device),
        )

    def compile_failure(self, variant: Variant, compiled: Compiled) -> Measurement:
        """The record of a variant that has no binary."""
        return Measurement(
            self._ledger.workload,
            self._ledger.device,
            variant,
            Outcome.COMPILE_FAILED,
            reason=str(compiled.error)[:REASON_LENGTH],
            compile_seconds=compiled.seconds,
        )
