"""Checks of a job's result, for variants that the bundle never had and times that no device could give.

They do not stop deliberate lies: invented times that are plausible pass, and at worst choose a slow variant.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import astuple
from datetime import timedelta
from functools import cache

from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.kernels.rates import ARCHITECTURES, Rates, estimated
from sparsegen.tuning.jobs.bundle import Bundle
from sparsegen.tuning_db.json_reader import Node
from sparsegen.tuning_db.records import (
    Baseline,
    DeviceRates,
    MeasuredAs,
    Measurement,
    Outcome,
    Sample,
    Workload,
)

FASTER = 4.0  # times the estimated rates: no device of its kind is
SHORTEST_US = 0.2  # an event takes longer
LONGEST_US = 3.6e9  # an hour
MOST_SAMPLES = 1_000_000
MOST_REGISTERS = 255  # limit of a CUDA thread
MOST_MULTIPROCESSORS = 1024
MOST_OF_ONE = 200  # measurements of one variant on one workload
MOST_BASELINES = 200  # baselines of one workload
CLOCKS_DIFFER = timedelta(days=1)
RATES_WITHIN = 30.0  # times the estimate, or a part of it


class Checks:
    """Holds a result's records against its bundle, one after another.

    Args:
        device: device named by the result.
        compiler: the fingerprint of the toolchain that the result says.
    """

    def __init__(self, bundle: Bundle, device: Device, compiler: str) -> None:
        self._bundle, self._job, self._device, self._compiler = bundle, bundle.job, device, compiler
        self._sources: dict[tuple[Workload, Config], str] = {
            (task.workload, candidate.config): candidate.source
            for task in self._job.tasks
            for candidate in task.candidates
        }
        self._counts: Counter[object] = Counter()
        self._digest = cache(self._digest_of)

    def measurement(self, node: Node, m: Measurement) -> Measurement:
        """The measurement.

        Raises:
            BundleError: it cannot be; the message says what.
        """
        source = self._sources.get((m.workload, m.variant.config))
        if source is None:
            node.refuse("a variant that the bundle has for this workload")
        if m.variant.source_digest != self._digest(source):
            node.refuse("the digest that this variant's source has with the result's compiler")
        self._count(node, (m.workload, m.variant.config), MOST_OF_ONE)
        self._moment(node, m)
        if m.registers is not None and m.registers > MOST_REGISTERS:
            node.refuse(f"at most {MOST_REGISTERS} registers")
        if m.sample is not None:
            self._sample(node, m.sample, m.workload)
        if m.outcome is Outcome.OK and m.worst_error is None and not m.final:
            node.refuse("a verified error of what is said to be right")
        if m.outcome is Outcome.OK and m.worst_error is not None and m.worst_error > 1:
            node.refuse("an error within its bound of what is said to be right")
        return m

    def baseline(self, node: Node, b: Baseline) -> Baseline:
        """The baseline; raises as `measurement` does."""
        self._count(node, (b.workload, "baselines"), MOST_BASELINES)
        self._moment(node, b)
        self._sample(node, b.sample, b.workload)
        return b

    def rates(self, node: Node, r: DeviceRates) -> DeviceRates:
        """The rates; raises as `measurement` does."""
        self._count(node, "rates", MOST_OF_ONE)
        self._moment(node, r)
        for told, usual in zip(astuple(r.rates), astuple(self._usual()), strict=True):
            if not usual / RATES_WITHIN <= told <= usual * RATES_WITHIN:
                node.refuse("rates that a device of this description can have")
        return r

    def _digest_of(self, source: str) -> str:
        text = self._bundle.source(source)
        return hashlib.sha256(text.encode() + b"\0" + self._compiler.encode()).hexdigest()

    def _count(self, node: Node, what: object, most: int) -> None:
        self._counts[what] += 1
        if self._counts[what] > most:
            node.refuse(f"at most {most} such records")

    def _moment(self, node: Node, record: Measurement | Baseline | DeviceRates) -> None:
        if record.measured_at < self._job.made_at - CLOCKS_DIFFER:
            node.refuse("a record that is no older than its bundle")

    def _sample(self, node: Node, sample: Sample, workload: Workload) -> None:
        if not SHORTEST_US <= sample.low_us <= sample.median_us <= sample.high_us <= LONGEST_US:
            node.refuse(f"times in order, between {SHORTEST_US:g} µs and an hour")
        if sample.count > MOST_SAMPLES or sample.measured_as is not MeasuredAs.COLD:
            node.refuse(f"at most {MOST_SAMPLES} calls, each with a cold L2")
        cost = workload.problem.cost(workload.features.nnz)
        from_memory = max(0, cost.bytes - self._device.l2_bytes)
        least = self._usual().least_us(cost.flop, from_memory, workload.problem.multiplied) / FASTER
        if sample.median_us < least:
            node.refuse(f"no time below {least:.4g} µs, which no such device could reach")

    def _usual(self) -> Rates:
        """Rates that a device of this description should have; for an unknown compute capability, the fastest ones.

        The emulator gets those of the GPU that it imitates, which it never reaches.
        """
        capability = self._device.compute_capability
        known = capability if capability in ARCHITECTURES else max(ARCHITECTURES)
        return estimated(known, min(self._device.multiprocessors, MOST_MULTIPROCESSORS))
