"""Options of dispatch, as words: what to do on a miss, whether dense may run, which times to go by."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from sparsegen import arguments
from sparsegen.kernels.base import Device
from sparsegen.tuning_db.records import MeasuredAs


class OnMiss(StrEnum):
    """The action if neither this workload nor its bucket was measured."""

    NEAREST = "nearest"  # ask the nearest measured workloads, else the family's heuristic config
    DEFAULT = "default"  # the family's heuristic config
    TUNE = "tune"  # `sparsegen.prepare` tunes; `choose` itself answers as for NEAREST
    ERROR = "error"  # NoVariantError

    @classmethod
    def parse(cls, value: OnMiss | str) -> OnMiss:
        """The member that a word names; raises ConfigError for another word."""
        is_dense = isinstance(value, str) and value == "dense"
        advice = "; dense products are chosen by dense=" if is_dense else ""
        return arguments.word(cls, value, "on_miss", advice=advice)


class Dense(StrEnum):
    """Permission of a dense product to run in a variant's place."""

    AUTO = "auto"  # if it takes less time
    NEVER = "never"
    ALWAYS = "always"

    @classmethod
    def parse(cls, value: Dense | str, name: str = "dense") -> Dense:
        """The member that a word names; raises ConfigError for another word, under the argument's name."""
        return arguments.word(cls, value, name)


class Verify(StrEnum):
    """The time at which a variant's result is held against the reference."""

    FIRST_USE = "first-use"  # first use of its source digest on a device with a driver
    NEVER = "never"

    @classmethod
    def parse(cls, value: Verify | str) -> Verify:
        """The member that a word names; raises ConfigError for another word."""
        return arguments.word(cls, value, "verify")


class DispatchOptions(NamedTuple):
    """A caller's options of dispatch, parsed.

    Attributes:
        dense: permission of a dense product; a batch has none.
        l2: the kind of times that counts, if there are such; None for the usual order.
        deterministic: admit only variants that give equal bits for equal inputs on every call; None leaves it to the
            database's rules.
    """

    on_miss: OnMiss = OnMiss.NEAREST
    dense: Dense = Dense.AUTO
    l2: MeasuredAs | None = None
    deterministic: bool | None = None

    @classmethod
    def of(
        cls,
        on_miss: OnMiss | str = OnMiss.NEAREST,
        dense: Dense | str = Dense.AUTO,
        l2: MeasuredAs | str | None = None,
        deterministic: bool | None = None,
    ) -> DispatchOptions:
        """The options that a caller's words name; raises ConfigError for a word that is none."""
        return cls(
            OnMiss.parse(on_miss), Dense.parse(dense), parse_kind(l2), parse_deterministic(deterministic)
        )


DEFAULTS = DispatchOptions()


class ChoiceOptions(TypedDict, total=False):
    """The options of a choice, as every form of `sparsegen.prepare` takes them and says what they mean."""

    transpose: bool
    on_miss: OnMiss | str
    dense: Dense | str
    probe: bool
    verify: Verify | str | None
    l2: MeasuredAs | str | None
    device: Device | str | None
    db: str | Path | None
    deterministic: bool | None
    family: str | None
    config: Mapping[str, object] | None
    allow_overflow: bool


class KeepingOptions(ChoiceOptions, total=False):
    """The options of a choice for a problem, and the operands that its operator may keep (`Problem.keeps`)."""

    bias: Any
    scale: float
    clip: float


def parse_kind(value: MeasuredAs | str | None) -> MeasuredAs | None:
    """The kind of times to go by; None for the usual order.

    Raises:
        ConfigError: a word that is none.
    """
    return None if value is None else arguments.word(MeasuredAs, value, "l2")


def parse_deterministic(value: bool | None) -> bool | None:
    """True or False; None for what the database's rules say. Raises ConfigError for anything else."""
    return None if value is None else arguments.flag(value, "deterministic")
