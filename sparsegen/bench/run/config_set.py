"""Configs of one family as a baseline: ``--configs``, as a text or as a file of named sets.

A text is ``FAMILY[@BASE][:KEY=VALUE,VALUE;KEY+KEY=VALUE+VALUE,...]``: every combination of the values changes the base;
keys that are joined by ``+`` change together. Without any the base itself is the one config.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from sparsegen import backends, kernels
from sparsegen.bench.baseline.baseline import Explorer, Implementation, MissingError, UnsupportedError
from sparsegen.bench.baseline.inputs import Inputs
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._ours import implementation_of
from sparsegen.bench.results.results import Kind
from sparsegen.errors import CompileError, ConfigError
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem
from sparsegen.plan.variants import compile_variant
from sparsegen.settings import Settings
from sparsegen.tuning_db.json_reader import Node, parse_json, read_text
from sparsegen.tuning_db.layers import open_layers
from sparsegen.tuning_db.ranking import ranked

FORM = "FAMILY[@heuristic|@tuned|@published][:KEY=VALUE,VALUE;KEY+KEY=VALUE+VALUE,...]"
LARGEST_FILE = 1 << 20  # bytes
WORD = "[A-Za-z0-9_.-]+"

Changes = tuple[tuple[str, str], ...]  # names of tunables, values as words


class Base(StrEnum):
    """Config that the settings change: the family's heuristic one for the row, its recorded winner of exactly this
    workload, or every one that a publication fixes (`Family.published`).
    """

    HEURISTIC = "heuristic"
    TUNED = "tuned"
    PUBLISHED = "published"


@dataclass(frozen=True)
class ConfigSet(Explorer):
    """Every combination of some settings of one family.

    Attributes:
        axes: each has alternatives; a config has one of each.
    """

    name: str
    family: str
    base: Base = Base.HEURISTIC
    axes: tuple[tuple[Changes, ...], ...] = ()
    kind: Kind = field(default=Kind.OURS, init=False)

    @classmethod
    def parse(cls, text: str) -> ConfigSet:
        """The set that a text of ``--configs`` names.

        Raises:
            ConfigError: another form, an unknown family, tunable or value.
        """
        found = re.fullmatch(rf"({WORD})(?:@([a-z]+))?(?::(.+))?", text)
        if found is None:
            raise ConfigError(f"--configs {text}: expected {FORM}")
        name, base, settings = found.groups()
        axes: dict[str, list[str]] = {}
        for setting in settings.split(";") if settings else ():
            keys, separator, values = setting.strip().partition("=")
            if not separator:
                raise ConfigError(f"--configs {text}: {setting!r} is not like KEY=VALUE,VALUE")
            axes[keys] = values.split(",")
        return cls.of(name, name, base or Base.HEURISTIC, axes, f"--configs {text}")

    @classmethod
    def of(cls, name: str, family: str, base: str, axes: dict[str, list[str]], where: str) -> ConfigSet:
        """The set of all combinations of the axes' values, as words.

        Raises:
            ConfigError: see `parse`; it begins with ``where``.
        """
        known = kernels.families()
        if family not in known:
            raise ConfigError(f"{where}: no family is called {family!r}; there are {', '.join(known)}")
        if base not in list(Base):
            raise ConfigError(f"{where}: expected one of {', '.join(Base)} behind @, got {base!r}")
        made = []
        for keys, values in axes.items():
            names = keys.split("+")
            alternatives = [tuple(zip(names, value.split("+"), strict=False)) for value in values]
            if any(len(value.split("+")) != len(names) for value in values):
                raise ConfigError(f"{where}: each of {','.join(values)} needs a value for each of {keys}")
            for changes in alternatives:
                try:
                    known[family].config(**dict(changes))
                except ConfigError as error:
                    raise ConfigError(f"{where}: {error}") from None
            made.append(tuple(alternatives))
        return cls(name, family, Base(base), tuple(made))

    def why_not(self, problem: Problem, features: Features) -> str | None:
        family = self._family
        if problem.operator != family.problem_type.operator:
            return f"{self.family} computes {family.problem_type.operator}"
        broken = [scope.sentence for scope in family.scope(problem) if not scope.holds]
        return f"{self.family}: it must hold: {'; '.join(broken)}" if broken else None

    def foresee(self, inputs: Inputs, device: Device, db: str | None) -> None:
        """Compile them all side by side; what does not compile is told when its turn comes."""
        toolchain = backends.toolchain(device)

        def compiled(config: Config) -> None:
            with suppress(CompileError):
                compile_variant(config, inputs.problem, toolchain)

        with ThreadPoolExecutor() as pool:
            list(pool.map(compiled, self.configs(inputs, device, db)))

    def configs(self, inputs: Inputs, device: Device, db: str | None) -> Sequence[Config]:
        family, problem = self._family, inputs.problem
        combined = list(dict.fromkeys(self._combined(inputs, device, db)))
        valid = [config for config in combined if family.suits(problem, inputs.features, config, device)]
        if not valid:
            broken = family.broken_constraints(problem, combined[0], device)
            broken += family.broken_requirements(problem, inputs.features, combined[0])
            raise UnsupportedError(f"none of {len(combined)} configs is valid here: {'; '.join(broken)}")
        return valid

    def implementation(self, bench: Workbench, config: Config) -> Implementation:
        return implementation_of(config, bench.problem, bench, config.settings)

    @property
    def _family(self) -> AnyFamily:
        return kernels.family(self.family)

    def _combined(self, inputs: Inputs, device: Device, db: str | None) -> Iterator[Config]:
        for base in self._bases(inputs, device, db):
            for combination in itertools.product(*self.axes):
                changes = dict(itertools.chain(*combination))
                yield self._family.config(**{**base.to_dict(), **changes})

    def _bases(self, inputs: Inputs, device: Device, db: str | None) -> Sequence[Config]:
        family = self._family
        if self.base is Base.HEURISTIC:
            return [family.heuristic(inputs.problem, inputs.features, device)]
        if self.base is Base.PUBLISHED:
            published: Sequence[Config] = family.published(inputs.problem)
            if not published:
                raise UnsupportedError(f"no publication fixes configs of {self.family} here")
            return published
        with open_layers(Settings.from_environment(), db) as layers:
            best = ranked(layers.measurements(inputs.workload, device))
        winner = next((r.variant.config for r in best if r.variant.family == self.family), None)
        if winner is None:
            raise MissingError(f"no config of {self.family} is recorded for this workload; --tune makes some")
        return [winner]


def config_sets(texts: Sequence[str]) -> list[ConfigSet]:
    """Parses ``--configs``: texts, and files of sets (``*.json``); names of texts that come again are numbered.

    Raises:
        ConfigError: see `ConfigSet.parse`; a file that cannot be read or is malformed; a name taken twice.
    """
    found: list[ConfigSet] = []
    for text in texts:
        found += _of_file(Path(text)) if text.endswith(".json") else [ConfigSet.parse(text)]
    named: dict[str, ConfigSet] = {}
    for one in found:
        names = (one.name, *(f"{one.name}-{number}" for number in range(2, len(found) + 1)))
        name = next(name for name in names if name not in named)
        named[name] = replace(one, name=name)
    return list(named.values())


def _of_file(path: Path) -> Iterator[ConfigSet]:
    """Reads ``{"sets": [{"name": ..., "family": ..., "base": ..., "set": {"KEY": [VALUE, ...]}}]}``."""
    root = parse_json(read_text(path, LARGEST_FILE, ConfigError), str(path), ConfigError)
    for node in root.fields(("description", "sets"))["sets"].items():
        f = node.fields(("name", "family"), ("base", "set"))
        members = f["set"].members() if "set" in f else {}
        axes = {keys: [_word(value) for value in values.items()] for keys, values in members.items()}
        base = f["base"].text(40) if "base" in f else Base.HEURISTIC
        yield ConfigSet.of(f["name"].text(80, WORD), f["family"].text(80), base, axes, f"{path}: {node.path}")


def _word(node: Node) -> str:
    """A value as the command line has it."""
    value = node.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | str):
        return str(value)
    node.refuse("an integer, true, false or a word")
