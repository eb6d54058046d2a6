"""Declarations of a kernel family: tuning space, constraints, launch geometry and packing.

Pure Python and NumPy: no GPU, no database, no template engine, so that every declaration is tested on a CPU.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar, get_args

from sparsegen.errors import ConfigError
from sparsegen.kernels.config import Config, Value
from sparsegen.kernels.launch import Argument, ArgumentKind, Launch
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.rates import L2_BYTES_PER_CYCLE, Rates, estimated
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.system.compared import Compared
from sparsegen.system.device_memory import Buffer, PlainDevice
from sparsegen.system.loggers import logger
from sparsegen.system.numpy_types import Array


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Device(Compared):
    """A device as families and dispatch see it; ``key`` identifies it in the database.

    ``index`` is the ordinal in this process; ``uuid`` names a GPU to all users and containers of its machine, and is
    None for the emulator. They take no part in comparisons, and neither does what is known of the device's speed:
    ``clock_mhz`` and ``memory_bytes_per_us``, the peaks that its driver names, and the ``rates`` that were measured;
    None where it is not known.
    """

    key: str
    name: str
    backend: str  # "cuda" or "emulator"
    compute_capability: tuple[int, int]
    multiprocessors: int
    shared_memory_per_block: int  # bytes, with the opt-in limit
    shared_memory_per_multiprocessor: int  # bytes
    l2_bytes: int
    index: int = field(default=0, compare=False)
    uuid: str | None = field(default=None, compare=False)
    clock_mhz: float | None = field(default=None, compare=False)
    memory_bytes_per_us: float | None = field(default=None, compare=False)
    rates: Rates | None = field(default=None, compare=False)

    @property
    def typical(self) -> Device:
        """The device without what is known of its speed: what heuristics depend on, so that measuring changes none."""
        return replace(self, clock_mhz=None, memory_bytes_per_us=None, rates=None)

    @property
    def typical_rated(self) -> Device:
        """The typical device with its rates, estimated once: for heuristics that ask for the times of many configs."""
        return replace(self.typical, rates=self.typical.expected_rates)

    @property
    def expected_rates(self) -> Rates:
        """The measured rates, else an estimate from the description."""
        return self.rates or estimated(
            self.compute_capability, self.multiprocessors, self.clock_mhz, self.memory_bytes_per_us
        )

    @property
    def cycles_per_us(self) -> float:
        """Cycles of all multiprocessors together in a microsecond."""
        return self.multiprocessors * self.expected_rates.clock_mhz

    @property
    def l2_bytes_per_us(self) -> float:
        """Bytes that the multiprocessors get from L2 in a microsecond."""
        return L2_BYTES_PER_CYCLE * self.cycles_per_us


def cuda_key(name: str, compute_capability: tuple[int, int]) -> str:
    """Returns the key of a CUDA device, made of its driver's name for it and its compute capability."""
    major, minor = compute_capability
    return f"{name.lower().replace(' ', '-')}-sm{major}{minor}"


def cuda_architecture(compute_capability: tuple[int, int]) -> str:
    """The target for nvcc's ``-arch``; from Hopper on, the architecture's own instructions need the "a" target."""
    major, minor = compute_capability
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


class Constraint(NamedTuple):
    """A sentence that says what must hold, and whether it does."""

    holds: bool
    sentence: str


_holds = attrgetter("holds")  # without a frame for each constraint, of which a look-up meets thousands
P = TypeVar("P", bound=Problem)
C = TypeVar("C", bound=Config)


class Family(ABC, Generic[P, C]):
    """One way to compute an operator. Subclasses live in `sparsegen.kernels`, one file each; others `register`."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one sentence
    source: ClassVar[str]  # paper and section
    template: ClassVar[str]  # path below templates/; by default that of the family's package and name
    template_folder: ClassVar[Path | None] = None  # of a family outside of sparsegen: the path is below this
    entry: ClassVar[str]  # name of the __global__ function; by default the family's
    mapped_names: ClassVar[tuple[str, ...]] = ()  # arrays of its TENSOR_MAP parameters; see `tensor_map`
    size_names: ClassVar[tuple[str, ...]]  # its SIZE parameters
    packed_names: ClassVar[tuple[str, ...]]  # its PACKED parameters
    scratch_names: ClassVar[tuple[str, ...]] = ()  # its SCRATCH parameters
    deterministic: ClassVar[bool] = True  # equal inputs give equal bits on every call, with every config
    multiplies_zeros: ClassVar[bool] = False  # those of whole tiles, as a dense product does
    packing_version: ClassVar[int] = 1  # raised whenever `pack` lays out the same matrix otherwise
    problem_type: type[P]  # these two are what the class is declared with: Family[SpmmProblem, CsrSpmmConfig]
    config_type: type[C]  # config type of this family alone

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        for declared in (a for base in vars(cls).get("__orig_bases__", ()) for a in get_args(base)):
            for name, kind in (("problem_type", Problem), ("config_type", Config)):
                if isinstance(declared, type) and issubclass(declared, kind):
                    setattr(cls, name, declared)
        config_type = getattr(cls, "config_type", None)
        if config_type is None:  # a base class of several families
            return
        owner = vars(config_type).get("declared_by", cls.name)
        if owner != cls.name:
            raise TypeError(
                f"{config_type.__name__} is the config of {owner}; {cls.name} needs a class of its own"
            )
        config_type.declared_by = cls.name
        if not hasattr(cls, "entry"):
            cls.entry = cls.name
        if not hasattr(cls, "template"):
            cls.template = "/".join((*cls.__module__.split(".")[-2:-1], f"{cls.name}.cu.j2"))

    def arguments(self, problem: P) -> tuple[Argument, ...]:
        """The kernel's parameters in the CUDA signature's order.

        Tensor maps, sizes, packed arrays, scratch, operands, result.
        """
        return (
            *(Argument(ArgumentKind.TENSOR_MAP, name) for name in self.mapped_names),
            *(
                Argument(ArgumentKind.SIZE, name)
                for name in (*self.size_names, *self.batch_size_names(problem))
            ),
            *(Argument(ArgumentKind.PACKED, name) for name in self.packed_names),
            *(Argument(ArgumentKind.SCRATCH, name) for name in self.scratch_names),
            *(
                Argument(ArgumentKind.OPERAND, spec.name) for spec in problem.operands(0)
            ),  # names know no nonzeros
            Argument(ArgumentKind.RESULT, problem.result(0).name),
        )

    def batch_size_names(self, problem: P) -> tuple[str, ...]:
        """SIZE parameters after `size_names` that only a batch needs, to find its elements' arrays; empty by
        default.
        """
        return ()

    def tensor_map(self, problem: P, config: C, name: str) -> TensorMap:
        """Returns the tensor map of an array of `mapped_names`, which is an operand or the result.

        Asked only for valid configs of problems whose arrays have elements.
        """
        raise NotImplementedError(f"{self.name} declares mapped_names and no tensor_map")

    def scope(self, problem: P) -> Iterator[Constraint]:
        """Yields what a problem must satisfy for this family to compute it with any config at all; nothing by default.

        `constraints` begins with these, and no config is valid for a problem outside; `heuristic` need not be.
        """
        return iter(())

    def computes(self, problem: P) -> bool:
        """True if a problem is in the family's `scope`."""
        return all(c.holds for c in self.scope(problem))

    @abstractmethod
    def constraints(self, problem: P, config: C, device: Device) -> Iterator[Constraint]:
        """Everything that must hold for this config; also read out as pruning reasons and error texts."""

    @abstractmethod
    def constants(self, problem: P, config: C) -> Mapping[str, Value]:
        """All that the source is specialised on beside the config; the rendered source depends on nothing else."""

    @abstractmethod
    def pack(self, problem: P, config: C, matrix: CsrMatrix) -> Packed[Array]:
        """Lay the matrix out for this config; may read only the tunables declared with ``packs=True``."""

    @abstractmethod
    def launch(self, problem: P, config: C, sizes: Mapping[str, int], device: Device) -> Launch:
        """Launch geometry; ``sizes`` are those of the packed matrix."""

    @abstractmethod
    def heuristic(self, problem: P, features: Features, device: Device) -> C:
        """The config for these features by rule, without any measurement; valid for every problem in `scope`."""

    @abstractmethod
    def analytic_us(self, problem: P, features: Features, config: C, device: Device) -> float:
        """Microseconds that a config should take on this device with a cold L2; infinite where it cannot run.

        The launch, and what the kernel does over what the device does in a microsecond (`Device.expected_rates`),
        with constants fitted to measurements of heuristic configs (docs/notes/predicted-times.md). What configs of a
        family differ in beside that, `sparsegen.tuning.prediction` knows.
        """

    def pack_on(self, problem: P, config: C, matrix: CsrMatrix, device: PlainDevice) -> Packed[Buffer] | None:
        """Packs on the device and returns what `pack` returns, bit for bit; None if the family packs on the host
        alone.
        """
        return None

    def expected_sizes(self, problem: P, features: Features, config: C) -> Mapping[str, int]:
        """Returns the sizes of the packed matrix that `launch` needs, estimated from features; empty by default."""
        return {}

    def alternatives(self, problem: P, features: Features, device: Device) -> tuple[C, ...]:
        """Other configs, for what features do not tell; the tuner tries them soon after the heuristic config."""
        return ()

    def published(self, problem: P) -> tuple[C, ...]:
        """Configs that a publication fixes for a problem, by constants or by a rule; none where it says nothing of it.

        The tuner tries them early, so that its gain over them is on record. What the text leaves open is as in the
        authors' code where that is public, else as by default; the method's docstring says which is which.
        """
        return ()

    def is_deterministic(self, problem: P, config: C) -> bool:
        """True if equal inputs give equal bits on every call with this config; by default the family's
        ``deterministic``.
        """
        return self.deterministic

    def skips_zeros(self, problem: P, config: C) -> bool:
        """True if a row of a dense operand reaches only those results in which a nonzero multiplies it, even if it
        holds infinities or NaN; by default unless the family multiplies zeros.
        """
        return not self.multiplies_zeros

    def requirements(self, problem: P, features: Features, config: C) -> Iterator[Constraint]:
        """Yields what a matrix must satisfy for this config to represent it sensibly (padding, row lengths); nothing by
        default.

        The results are right either way: this keeps a format away from matrices that it would blow up.
        """
        return iter(())

    # --- what every family gets ---

    def proposals(self, problem: P, features: Features, device: Device) -> tuple[C, ...]:
        """The heuristic config and its alternatives; none, with a warning, where the rule fails.

        A rule that fails is a fault of the family's, which should keep no other family from the problem.
        """
        try:
            heuristic = self.heuristic(problem, features, device)
            return (heuristic, *self.alternatives(problem, features, device))
        except ConfigError as error:
            logger(__name__).warning(
                "%s is left out of %s: its heuristic fails: %s", self.name, problem, error
            )
            return ()

    def predicted_us(self, problem: P, features: Features, device: Device) -> float:
        """`analytic_us` of the heuristic config: it says which one to trust where nothing was measured.

        Infinite where the rule fails.
        """
        try:
            heuristic = self.heuristic(problem, features, device)
        except ConfigError:  # `proposals` says so
            return math.inf
        return self.analytic_us(problem, features, heuristic, device)

    def by_time(self, problem: P, features: Features, configs: Iterable[C], device: Device) -> list[C]:
        """Configs by the time that they should take on such a device, the fastest first; equals stay in order."""
        typical = device.typical_rated
        return sorted(configs, key=lambda c: self.analytic_us(problem, features, c, typical))

    def fastest(self, problem: P, features: Features, configs: Iterable[C], device: Device) -> C:
        """The config that should take the least time on such a device; of equals the first one."""
        return self.by_time(problem, features, configs, device)[0]

    def fastest_valid(
        self,
        problem: P,
        features: Features,
        configs: Iterable[C],
        device: Device,
        *,
        otherwise: C | None = None,
    ) -> C:
        """The same of the valid ones; ``otherwise`` if none is valid, by default the `fastest` of all."""
        ordered = self.by_time(problem, features, configs, device)
        valid = (c for c in ordered if self.is_valid(problem, c, device))
        return next(valid, otherwise or ordered[0])

    def config(self, /, **values: object) -> C:
        """A config from names and values; see `Config.parse`."""
        return self.config_type.parse(values)

    def config_dict(self, config: C) -> dict[str, Value]:
        """The values by name, as the templates' header asks for them: to change it would rename every variant."""
        return config.to_dict()

    def broken_constraints(self, problem: P, config: C, device: Device) -> list[str]:
        return [c.sentence for c in self.constraints(problem, config, device) if not c.holds]

    def is_valid(self, problem: P, config: C, device: Device) -> bool:
        """True if all constraints hold; evaluates them up to the first that does not."""
        return all(map(_holds, self.constraints(problem, config, device)))

    def require_valid(self, problem: P, config: C, device: Device) -> None:
        """Raises ConfigError with the broken constraints in words."""
        broken = self.broken_constraints(problem, config, device)
        if broken:
            raise ConfigError(
                f"{self.name} cannot run with {config.settings}; it must hold: {'; '.join(broken)}"
            )

    def broken_requirements(self, problem: P, features: Features, config: C) -> list[str]:
        return [c.sentence for c in self.requirements(problem, features, config) if not c.holds]

    def takes_matrix(self, problem: P, features: Features, config: C) -> bool:
        """True if the matrix meets all `requirements` of a config."""
        return all(map(_holds, self.requirements(problem, features, config)))

    def suits(self, problem: P, features: Features, config: C, device: Device) -> bool:
        """True if a config is valid and the matrix meets its requirements."""
        return self.is_valid(problem, config, device) and self.takes_matrix(problem, features, config)

    def require_suited(self, problem: P, features: Features, config: C, device: Device) -> None:
        """Raises ConfigError with the broken constraints, or what the matrix should be like, in words."""
        self.require_valid(problem, config, device)
        broken = self.broken_requirements(problem, features, config)
        if broken:
            raise ConfigError(
                f"{self.name} with {config.settings} does not suit this matrix; it must hold: {'; '.join(broken)}; "
                "name another family or none"
            )

    def space(self, problem: P, device: Device, *, whole: bool = False) -> list[C]:
        """All valid configs over the searched values (``whole``: over every choice), defaults first."""
        axes = []
        for t in self.config_type.tunables():
            values = t.choices if whole else t.searched
            axes.append(sorted(values, key=lambda v, t=t: v != t.default))  # type: ignore[misc]
        names = [t.name for t in self.config_type.tunables()]
        configs = (
            self.config_type(**dict(zip(names, point, strict=True))) for point in itertools.product(*axes)
        )
        return [
            c
            for c in configs
            if (whole or self.is_worth_trying(problem, c, device)) and self.is_valid(problem, c, device)
        ]

    def is_worth_trying(self, problem: P, config: C, device: Device) -> bool:
        """True if the tuner should spend time on a valid config at normal effort; overrides say what they rest on."""
        return True

    def packing_key(self, problem: P, config: C) -> tuple[Value, ...]:
        """Configs with equal keys share one packed matrix of a problem."""
        return tuple(getattr(config, t.name) for t in self.config_type.tunables() if t.packs)


AnyFamily: TypeAlias = Family[Any, Any]  # whatever it computes
