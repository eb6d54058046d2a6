"""Several result files as one, where they were measured under the same conditions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sparsegen.bench.results.results import TOOLCHAIN, Results
from sparsegen.errors import ResultsMismatchError


def require_same_conditions(old: Results, new: Results) -> None:
    """Refuse to put rows of one beside rows of the other.

    Device, the driver's major version, the protocol, and the versions that both name have to be the same.

    Raises:
        ResultsMismatchError: with every difference.
    """
    differences = tuple(_differences(old, new))
    if differences:
        message = "measured under other conditions; write to another file, or measure everything anew:"
        raise ResultsMismatchError(message, differences=differences)


def _differences(old: Results, new: Results) -> Iterator[str]:
    facts = [
        ("device", old.device.key, new.device.key),
        ("driver", old.device.driver.partition(".")[0], new.device.driver.partition(".")[0]),
        ("L2", old.protocol.l2, new.protocol.l2),
        ("rounds", old.protocol.rounds, new.protocol.rounds),
        ("samples", old.protocol.samples, new.protocol.samples),
        ("tune", old.protocol.tune, new.protocol.tune),
        *((name, old.versions[name], new.versions[name]) for name in old.versions if name in new.versions),
    ]
    for name, before, now in facts:
        if before != now:
            yield f"{name}: {before} before, {now} now"


def merge(parts: Sequence[Results]) -> Results:
    """Several files of one device and protocol as one; the rates are those of the first that has some.

    Files without a suite in common may have been tuned for different times, and with different compilers of our
    kernels: ``tune`` is that of the first, and ``versions`` has all of them.

    Raises:
        ResultsMismatchError: they were measured under different conditions, or have a row in common.
    """
    first, *others = parts
    rows = {row.key: row for row in first.rows}
    for i, other in enumerate(others, 1):
        require_same_conditions(first, _tuned_like(other, first))
        for earlier in parts[:i]:
            if earlier.suites & other.suites:
                require_same_conditions(earlier, other)
        twice = tuple(str(row.key) for row in other.rows if row.key in rows)
        if twice:
            raise ResultsMismatchError("rows stand in several of the files:", differences=twice)
        rows |= {row.key: row for row in other.rows}
    return replace(
        first,
        versions={
            name: "; ".join(dict.fromkeys(part.versions[name] for part in parts if name in part.versions))
            for name in dict.fromkeys(name for part in parts for name in part.versions)
        },
        rates=next((part.rates for part in parts if part.rates is not None), None),
        invocations=tuple(invocation for part in parts for invocation in part.invocations),
        rows=tuple(rows.values()),
    )


def _tuned_like(results: Results, other: Results) -> Results:
    """The results with the other's tuning time and compiler in place of their own."""
    versions = {name: value for name, value in results.versions.items() if name != TOOLCHAIN}
    return replace(results, protocol=replace(results.protocol, tune=other.protocol.tune), versions=versions)
