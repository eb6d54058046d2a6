"""The list of candidates, made in a process of its own while the search's process has other things to do.

A list takes most of a second of Python. In a thread it would share the interpreter's lock with compiles, proposals and
imports, each of which then waits for it again and again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Any

from sparsegen import kernels
from sparsegen.errors import MachineError, NoVariantError
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.kernels.config import Config, Value
from sparsegen.system.child import ChildDiedError, ChildProcess, ChildTimeoutError, answer, requests
from sparsegen.tuning.prediction.model import expected_times
from sparsegen.tuning.space import Space, points
from sparsegen.tuning_db.records import Workload

FEW_POINTS = 20_000  # points of all families: this many are listed before a process has started
LONGEST_SECONDS = 600.0


@dataclass(frozen=True)
class Listed:
    """Arguments of `Space.build`, with families given by name."""

    families: Sequence[str]
    workload: Workload
    device: Device
    first: Sequence[Config]
    whole: bool
    deterministic: bool

    @classmethod
    def of(
        cls,
        families: Sequence[AnyFamily],
        workload: Workload,
        device: Device,
        first: Sequence[Config],
        *,
        whole: bool,
        deterministic: bool,
    ) -> Listed:
        names = [family.name for family in families]
        return cls(names, workload, device, first, whole, deterministic)

    def build(self, families: Sequence[AnyFamily]) -> Space:
        """The space, and what the cost model expects of its candidates."""
        space = Space.build(
            families,
            self.workload.problem,
            self.device,
            features=self.workload.features,
            first=self.first,
            whole=self.whole,
            deterministic=self.deterministic,
        )
        return replace(space, expected_us=expected_times(self.workload, space.candidates, self.device))


@dataclass(frozen=True)
class Rows:
    """A `Space` as it is sent: of each candidate the family's place and its values, read faster than objects."""

    families: Sequence[str]
    candidates: Sequence[tuple[int, tuple[Value, ...]]]
    pruned: Mapping[str, int]
    left_out: Mapping[str, str]
    expected_us: Sequence[float]

    @classmethod
    def of(cls, space: Space) -> Rows:
        places = {family.config_type: place for place, family in enumerate(space.families)}
        values = {kind: _values(kind) for kind in places}
        rows = [(places[type(c)], values[type(c)](c)) for c in space.candidates]
        return cls(space.family_names, rows, dict(space.pruned), dict(space.left_out), space.expected_us)

    def space(self) -> Space:
        families = tuple(kernels.family(name) for name in self.families)
        kinds = [(f.config_type, [t.name for t in f.config_type.tunables()]) for f in families]
        return Space(families, list(self._configs(kinds)), self.pruned, self.left_out, self.expected_us)

    def _configs(self, kinds: Sequence[tuple[Any, list[str]]]) -> Iterator[Config]:
        for place, values in self.candidates:
            kind, names = kinds[place]
            yield kind.of_choices(zip(names, values, strict=True))


def _values(kind: type[Config]) -> Any:
    """A function of a config that gives the tuple of its values."""
    names = [t.name for t in kind.tunables()]
    return attrgetter(*names) if len(names) > 1 else lambda config: (getattr(config, names[0]),)


class Lister:
    """Lists the candidates of one search; a process for it starts at once, and imports what it needs.

    Few candidates are listed in the calling process: that is sooner done than a process is started.

    Args:
        families: the families whose configs are listed.
        whole: see `Space.build`.
        stop: an event that, once set, ends the wait.

    Raises:
        MachineError: no process can be started.
    """

    def __init__(
        self, families: Sequence[AnyFamily], *, whole: bool, stop: threading.Event | None = None
    ) -> None:
        self._families, self._whole = families, whole
        is_long = sum(points(family, whole=whole) for family in families) > FEW_POINTS
        self._child = ChildProcess(f"{__name__}:serve", stop=stop) if is_long else None

    def space(
        self, workload: Workload, device: Device, first: Sequence[Config], *, deterministic: bool = False
    ) -> Space:
        """All that is valid, ``first`` first.

        Raises:
            NoVariantError: no config is valid, or none suits the matrix.
            MachineError: the process that lists was killed.
            Interrupted: ``stop`` was set.
        """
        wanted = Listed.of(
            self._families, workload, device, first, whole=self._whole, deterministic=deterministic
        )
        if self._child is None:
            return _checked(wanted.build(self._families), self._families)
        return _checked(self._asked(self._child, wanted), self._families)

    def _asked(self, child: ChildProcess, wanted: Listed) -> Space:
        try:
            child.send_in_background(wanted)
            rows = child.receive(LONGEST_SECONDS)
        except (ChildDiedError, ChildTimeoutError) as error:
            raise MachineError(
                f"the candidates could not be listed: {error}; run the command again"
            ) from error
        assert isinstance(rows, Rows)
        return rows.space()

    def close(self) -> None:
        """End the process; safe to call twice."""
        if self._child is not None:
            self._child.close()


def space_of(
    workload: Workload, device: Device, families: Sequence[AnyFamily], first: Sequence[Config]
) -> Space:
    """Lists the space of a search of normal effort in this process, ``first`` first.

    Raises:
        NoVariantError: no config is valid, or none suits the matrix.
    """
    wanted = Listed.of(families, workload, device, first, whole=False, deterministic=False)
    return _checked(wanted.build(families), families)


def _checked(space: Space, families: Sequence[AnyFamily]) -> Space:
    if space.candidates:
        return space
    unsuited = [f"{name} does not suit this matrix: {why}" for name, why in space.left_out.items()]
    broken = "; ".join(unsuited or space.pruned) or "no family computes this operator"
    raise NoVariantError(f"no config of {', '.join(f.name for f in families)} is valid here: {broken}")


def serve(connection: Connection) -> None:
    """Runs in the child: answers each `Listed` with `Rows`."""
    for wanted in requests(connection):
        families = [kernels.family(name) for name in wanted.families]
        answer(connection, lambda: Rows.of(wanted.build(families)))  # noqa: B023 - called at once
