"""Tuning spaces: the tunables of a family, and its configs, which are the points of that space."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, ClassVar, NamedTuple, Self, cast

from sparsegen.errors import ConfigError
from sparsegen.system.compared import Compared

Value = int | bool | str
Key = tuple[str, tuple[tuple[str, Value], ...]]


class Tunable(NamedTuple):
    """A dimension of a tuning space.

    Attributes:
        choices: every value that renders.
        searched: the values that the tuner tries at normal effort; the rest exist for ablations and
            ``--effort max``.
        packs: true if `Family.pack` depends on it.
    """

    name: str
    doc: str
    default: Value
    choices: tuple[Value, ...]
    searched: tuple[Value, ...]
    packs: bool


def tunable(
    default: Value,
    choices: tuple[Value, ...],
    doc: str,
    *,
    searched: tuple[Value, ...] | None = None,
    packs: bool = False,
) -> Any:
    """Declare a field of a config; see `Tunable`."""
    metadata = {"choices": choices, "searched": searched or choices, "doc": doc, "packs": packs}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, eq=False, repr=False)
class Config(Compared):
    """One point of a family's tuning space; a subclass declares the tunables as its fields.

    There is no config with a value outside its choices, so that nothing that a database or a file holds reaches a
    template unchecked. Text from outside becomes a config by `parse`, once; all else passes the object on.

    Attributes:
        declared_by: name of the family whose space this is; each has a class of configs of its own, and says so here.

    Raises:
        ConfigError: a value is none of its tunable's choices.
    """

    declared_by: ClassVar[str]

    def __post_init__(self) -> None:
        for name, allowed in _allowed(cast(Any, type(self))):
            value = getattr(self, name)
            if (value.__class__, value) not in allowed:
                raise self._none_of(name, value)

    @classmethod
    def tunables(cls) -> tuple[Tunable, ...]:
        """The dimensions of the space, in declaration order."""
        return _tunables(cast(Any, cls))

    @classmethod
    def parse(cls, values: Mapping[str, object]) -> Self:
        """A config from names and values, which may be words as a command line or a file has them.

        A tunable that is not named has its default.

        Raises:
            ConfigError: an unknown name, or a value that is none of the choices.
        """
        known, allowed = {t.name: t for t in cls.tunables()}, dict(_allowed(cast(Any, cls)))
        chosen: dict[str, Value] = {}
        for name, value in values.items():
            if name not in known:
                raise ConfigError(f"{cls.declared_by} has no tunable {name!r}; it has {', '.join(known)}")
            choices = known[name].choices
            if isinstance(value, int | str) and (value.__class__, value) in allowed[name]:
                chosen[name] = value
                continue
            match = [c for c in choices if str(c).lower() == str(value).lower()]
            if not match:
                raise cls._none_of(name, value)
            chosen[name] = match[0]
        return cls(**chosen)

    @classmethod
    def of_choices(cls, values: Iterable[tuple[str, Value]]) -> Self:
        """Makes a config from a value for each tunable. The values must come from the tunables' choices: they are not
        checked.

        A search makes hundreds of thousands, most of which break a constraint.
        """
        config = object.__new__(cls)
        config.__dict__.update(values)
        return config

    @classmethod
    def _none_of(cls, name: str, value: object) -> ConfigError:
        choices = next(t.choices for t in cls.tunables() if t.name == name)
        listed = ", ".join(str(c).lower() for c in choices)
        return ConfigError(f"{cls.declared_by}: {name} = {value!r} is none of {listed}")

    @cached_property
    def key(self) -> Key:
        """The family's name and the values in declaration order: equal for equal configs, in any process."""
        return self.declared_by, tuple((t.name, getattr(self, t.name)) for t in self.tunables())

    @property
    def family_name(self) -> str:
        """The family's name."""
        return self.key[0]

    @property
    def is_known(self) -> bool:
        """True if an installed family declares it, so that it can run."""
        return True

    @property
    def simplicity(self) -> int:
        """Number of tunables that differ from their defaults; of equally fast configs the one with the smaller number
        wins.
        """
        return sum(getattr(self, t.name) != t.default for t in self.tunables())

    @property
    def settings(self) -> str:
        """The values in words, for a person: ``rows_per_block=4 tile_n=64``."""
        return " ".join(f"{name}={str(value).lower()}" for name, value in self.key[1])

    def to_dict(self) -> dict[str, Value]:
        """The values by name, in declaration order; `parse` is the inverse."""
        return dict(self.key[1])

    def __str__(self) -> str:
        return f"{self.family_name} {self.settings}"


@dataclass(frozen=True, eq=False, repr=False)
class UnknownConfig(Config):
    """A config of another version, from a database or a file, that no installed family declares: it can be shown, not
    run.

    Attributes:
        name: the family's.
        values: stored values, by name; values that no tunable could have, as their text in JSON.
    """

    name: str
    values: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, name: str, values: Mapping[str, object]) -> UnknownConfig:
        """Take whatever JSON has by names; lists and objects become text, as they have no hash."""
        plain = {n: v if isinstance(v, int | bool | str) else json.dumps(v) for n, v in values.items()}
        return cls(name, tuple(sorted(plain.items())))

    @cached_property
    def key(self) -> Key:
        return self.name, self.values

    @property
    def is_known(self) -> bool:
        return False

    @property
    def simplicity(self) -> int:
        return len(self.values)


@cache
def _tunables(config_type: type[Config]) -> tuple[Tunable, ...]:
    declared = (f for f in dataclasses.fields(config_type) if f.metadata)
    return tuple(Tunable(name=f.name, default=cast(Value, f.default), **f.metadata) for f in declared)


@cache
def _allowed(config_type: type[Config]) -> tuple[tuple[str, frozenset[tuple[type, Value]]], ...]:
    """Returns each tunable's name and its choices with their types, since True is not 1."""
    return tuple((t.name, frozenset((c.__class__, c) for c in t.choices)) for t in config_type.tunables())
