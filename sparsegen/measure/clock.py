"""The clock: times of single calls on a device, whatever asks for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sparsegen.backends.executor import Event, Executor
from sparsegen.measure.l2 import L2
from sparsegen.measure.timing_kernels import Reader, Spinner

AT_ONCE = 10  # samples queued before the host waits for them, if the budget allows
LATE_PAUSE_S = 0.01  # after samples in which the host was late throughout: something else has its cores
LEAD_CALLS = 4  # their median is the host's time for a call
LEAD_MARGIN_US = 15.0
LEAD_LIMIT_US = 3000.0

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of single calls in microseconds, and what the device's clocks did meanwhile."""

    samples_us: tuple[float, ...]
    clock_mhz: int | None = None
    throttle_reasons: int | None = None

    @property
    def median_us(self) -> float:
        return float(np.median(self.samples_us))


class Clock:
    """Times calls on one device, from one thread at a time.

    A call stands between two events. On the emulator, whose calls return when they have ended, states of the L2 and
    leads have no meaning.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._is_cuda = executor.device.backend == "cuda"

    def time(
        self,
        call: Call,
        *,
        samples: int,
        l2: L2 = L2.COLD,
        budget_s: float = 2.0,
        warmup: int = 3,
        lead: Call | None = None,
    ) -> Timing:
        """Time single calls; the first one is timed whatever it takes, others within the budget.

        A sample in which the device waited for the host is taken anew while the budget lasts.

        Args:
            l2: state of the second-level cache before each call.
            warmup: calls ahead of the first sample.
            lead: queued ahead of each first event: something that keeps the device busy for as long as the host
                needs to queue the call, such as `lead_for` gives.

        Raises:
            LaunchError: a call failed.
        """
        executor = self._executor
        began, warm = time.perf_counter(), 0
        while warm < warmup and time.perf_counter() <= began + budget_s:
            call()
            warm += 1
        executor.synchronize()
        seconds = time.perf_counter() - began  # seconds of all these calls
        most = min(AT_ONCE, max(1, int(budget_s * warm / seconds))) if warm else AT_ONCE
        taken: list[tuple[float, bool]] = []
        on_time = 0
        deadline = time.perf_counter() + budget_s
        while on_time < samples and (not taken or time.perf_counter() < deadline):
            queued: list[tuple[Event, Event, bool]] = []
            pairs = [(executor.event(), executor.event()) for _ in range(min(most, samples - on_time))]
            for start, stop in pairs:
                if queued and time.perf_counter() >= deadline:
                    break
                self._ready(l2)
                if lead is not None:
                    lead()
                start.record()
                call()
                stop.record()
                queued.append((start, stop, start.has_passed()))  # the device came here before all was queued
            executor.synchronize()
            taken += [(stop.us_since(start), late) for start, stop, late in queued]
            late = [was_late for _, _, was_late in queued]
            on_time += late.count(False)
            if all(late):
                time.sleep(LATE_PAUSE_S)
        mhz, reasons = executor.clocks()
        return Timing(tuple(undisturbed(taken, samples)), mhz, reasons)

    def time_from_host(
        self,
        call: Call,
        *,
        samples: int,
        calls: int = 1,
        l2: L2 = L2.COLD,
        budget_s: float = 2.0,
        warmup: int = 3,
    ) -> Timing:
        """Time calls as the host starts them on an idle device: where the device waits for it, that counts.

        The first sample is taken whatever it takes, others within the budget.

        Args:
            calls: behind each other in a sample, whose time is divided by their number: the host may be ahead of a
                device that takes longer.
            l2, warmup: see `time`.

        Raises:
            LaunchError: a call failed.
        """
        executor, taken = self._executor, list[float]()
        for _ in range(warmup):
            call()
        deadline = time.perf_counter() + budget_s
        while len(taken) < samples and (not taken or time.perf_counter() < deadline):
            start, stop = executor.event(), executor.event()
            self._ready(l2)
            executor.synchronize()
            start.record()
            for _ in range(calls):
                call()
            stop.record()
            executor.synchronize()
            taken.append(stop.us_since(start) / calls)
        return Timing(tuple(taken), *executor.clocks())

    def time_in_stages(
        self,
        call: Call,
        *,
        samples: int,
        first_samples: int,
        limit_us: float,
        l2: L2 = L2.COLD,
        budget_s: float = 2.0,
        warmup: int = 3,
    ) -> Timing:
        """`time`, but that no more than the first samples are taken where their median is over a limit."""
        first = self.time(call, samples=min(first_samples, samples), l2=l2, budget_s=budget_s, warmup=warmup)
        left = samples - len(first.samples_us)
        budget_s -= sum(first.samples_us) * 1e-6
        if left <= 0 or budget_s <= 0 or first.median_us > limit_us:
            return first
        rest = self.time(call, samples=left, l2=l2, budget_s=budget_s, warmup=0)
        return replace(rest, samples_us=first.samples_us + rest.samples_us)

    def lead(self, us: float) -> Call | None:
        """Returns a call that keeps the device busy for about ``us`` microseconds; None on the emulator, which never
        waits.
        """
        return self._spinner.spin(us) if self._is_cuda else None

    def lead_for(self, call: Call) -> Call | None:
        """Returns a call that keeps the device busy for longer than the host takes to queue ``call``, which is
        measured.
        """
        if not self._is_cuda:
            return None
        host_us = []
        for _ in range(LEAD_CALLS):
            self._executor.synchronize()
            began = time.perf_counter()
            call()
            host_us.append((time.perf_counter() - began) * 1e6)
        self._executor.synchronize()
        return self.lead(min(1.5 * float(np.median(host_us)) + LEAD_MARGIN_US, LEAD_LIMIT_US))

    def _ready(self, l2: L2) -> None:
        if l2 is not L2.WARM:
            self._executor.overwrite_l2()
        if l2 is L2.CLEAN and self._is_cuda:
            self._reader()

    @cached_property
    def _spinner(self) -> Spinner:
        return Spinner(self._executor)

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self._executor)


def undisturbed(taken: Sequence[tuple[float, bool]], samples: int) -> list[float]:
    """Times of the samples in which the device did not wait for the host.

    If they are less than half of what was asked for, the host is late as a rule and not by accident: then all.

    Args:
        taken: microseconds, and whether the host was late.
        samples: asked for.
    """
    kept = [us for us, late in taken if not late]
    return kept if 2 * len(kept) >= samples else [us for us, _ in taken]
