"""A toy family, and a device that computes it with NumPy, takes made-up times, and fails on request.

Run as a program (``python tuning_fakes.py DATABASE TRIALS``) it tunes the toy family; fault tests kill it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from patience import LONG

from sparsegen import kernels
from sparsegen.backends.executor import CompiledKernel
from sparsegen.errors import CompileError, LaunchError
from sparsegen.kernels.base import AnyFamily, Array, Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Argument, ArgumentKind, Launch
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.rates import Rates
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.measure.baselines import Result
from sparsegen.measure.clock import Timing
from sparsegen.operators import SpmmProblem
from sparsegen.plan import variants
from sparsegen.tuning_db.records import Measurement, Outcome, Sample, Variant, Workload

if TYPE_CHECKING:  # the device's processes import this module at every start, and tune nothing
    import pytest

    from sparsegen.tuning.report import Progress
    from sparsegen.tuning.tuner import Backend, TuneResult
    from sparsegen.tuning_db.store import Store

DEVICE = Device("fake", "fake device", "fake", (9, 0), 1, 1 << 17, 1 << 18, 1 << 20)
RATES = Rates(1e6, 1e7, 2e7, 3e7, 4e7, 5.0, 1000.0)
MATRIX = random_uniform(24, 16, 0.25, seed=1)
PROBLEM = SpmmProblem(24, 16, 8)

BEHAVIOURS = (
    "right",
    "wrong",
    "wrong_at_first",
    "slightly_wrong",
    "unstable",
    "crash",
    "hang",
    "fault",
    "poison",
    "fading",
    "does_not_compile",
    "trespass",
    "remembers",
)


@dataclass(frozen=True)
class ToyConfig(Config):
    size: int = tunable(4, (1, 2, 4, 8, 16), "made-up", packs=True)
    width: int = tunable(2, (1, 2, 4), "made-up")
    behaviour: str = tunable("right", BEHAVIOURS, "what the fake device does", searched=("right",))


class Toy(Family[SpmmProblem, ToyConfig]):
    name, summary, source = "toy", "for tests", "nowhere"
    template, entry = "none", "toy"
    problem_type, config_type = SpmmProblem, ToyConfig

    def arguments(self, problem: SpmmProblem) -> tuple[Argument, ...]:
        packed = [Argument(ArgumentKind.PACKED, name) for name in ("offsets", "indices", "values")]
        sizes = [Argument(ArgumentKind.SIZE, name) for name in ("m", "k", "n")]
        b, c = Argument(ArgumentKind.OPERAND, "b"), Argument(ArgumentKind.RESULT, "c")
        return (*sizes, *packed, b, c)

    def constraints(self, problem: SpmmProblem, config: ToyConfig, device: Device) -> Iterator[Constraint]:
        yield Constraint(
            config.size >= config.width, f"width ({config.width}) is at most size ({config.size})"
        )

    def constants(self, problem: SpmmProblem, config: ToyConfig) -> Mapping[str, Value]:
        return {}

    def pack(self, problem: SpmmProblem, config: ToyConfig, matrix: CsrMatrix) -> Packed[Array]:
        arrays = {"offsets": matrix.row_offsets, "indices": matrix.column_indices, "values": matrix.values}
        arrays["values"] = problem.dtype.to_storage(arrays["values"])
        return Packed(arrays, {}, matrix.nnz, "values", lambda: np.arange(matrix.nnz, dtype=np.int32))

    def launch(
        self, problem: SpmmProblem, config: ToyConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        return Launch((problem.m, 1, 1), (32, 1, 1))

    def heuristic(self, problem: SpmmProblem, features: Features, device: Device) -> ToyConfig:
        return ToyConfig()

    def analytic_us(
        self, problem: SpmmProblem, features: Features, config: ToyConfig, device: Device
    ) -> float:
        return 1.0


TOY = Toy()


def render_toy(family: AnyFamily, problem: SpmmProblem, config: Any) -> str:
    """In the place of the real `render`: the config as JSON, which the fake device reads."""
    return json.dumps({"family": family.name, "n": problem.n, **config.to_dict()})


def install(patch: Callable[[Any, str, Any], None]) -> None:
    """Make the toy family known, and rendered; ``patch`` is like `setattr`."""
    kernels._loaded[TOY.name] = TOY
    patch(variants, "render", render_toy)


def uninstall() -> None:
    kernels._loaded.pop(TOY.name, None)


def toy_installed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """For fixtures: the toy family is installed while they run, with a cache of its own in the folder."""
    monkeypatch.setenv("SPARSEGEN_CACHE", str(folder / "cache"))
    install(monkeypatch.setattr)
    yield
    uninstall()


class FakeToolchain:
    """Writes the source into a folder; nothing else is needed to run it."""

    fingerprint = "fake 1"

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        self.folder, self.seconds = folder, seconds
        self.compiled: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)

    def warm_up(self, jobs: int) -> None: ...

    def make_ready(self) -> None:
        pass

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        time.sleep(self.seconds)
        if behaviour_of(json.loads(source)) == "does_not_compile":
            raise CompileError("toy does not compile", log="line 1: not today")
        self.compiled.append(source)
        path = self.folder / f"{hashlib.sha256(source.encode()).hexdigest()}.json"
        path.write_text(source)
        return CompiledKernel(entry, path, path, hashlib.sha256(source.encode()).hexdigest(), 32, 0)


def behaviour_of(config: Mapping[str, Any]) -> str:
    """Returns the fake device's behaviour: the config's own, but on a bad day another one with the best."""
    is_best = (config["size"], config["width"]) == (8, 4)
    return os.environ.get("TOY_BAD_DAY") or config["behaviour"] if is_best else config["behaviour"]


def time_of(config: Mapping[str, Any]) -> float:
    """The made-up time in µs: size 8 and width 4 are the best."""
    return 10.0 + abs(config["size"] - 8) + 2.0 * abs(config["width"] - 4)


LIVE: WeakValueDictionary[int, FakeBuffer] = WeakValueDictionary()


class FakeBuffer:
    def __init__(self, data: bytes) -> None:
        self.array = np.frombuffer(data, dtype=np.uint8).copy()
        self.address, self.nbytes = int(self.array.ctypes.data), self.array.nbytes
        LIVE[self.address] = self

    @classmethod
    def at(cls, address: int) -> Any:
        """The buffer that begins there, or the rest of the one that it lies in."""
        if address in LIVE:
            return LIVE[address]
        [around] = [b for b in LIVE.values() if b.address < address < b.address + b.nbytes]
        return SimpleNamespace(array=around.array[address - around.address :], keeps=around)


class FakeEvent:
    """A moment of the fake device's own time."""

    def __init__(self, executor: FakeExecutor) -> None:
        self._executor, self._us = executor, 0.0

    def record(self) -> None:
        self._us = self._executor.us

    def has_passed(self) -> bool:
        return False

    def us_since(self, start: Any) -> float:
        return float(self._us - start._us)


class FakeExecutor:
    """One device, on which a launch takes the made-up time.

    ``poison`` leaves it broken for whoever comes next; a ``fault`` breaks it at once.
    """

    device = DEVICE

    def __init__(self) -> None:
        self.is_lost = self.is_poisoned = False
        self.launched = SimpleNamespace()
        self.us = 0.0

    def _check(self) -> None:
        if self.is_lost:
            raise LaunchError("an illegal memory access was encountered")

    def load(self, compiled: CompiledKernel) -> SimpleNamespace:
        return SimpleNamespace(config=json.loads(compiled.read()), launches=0, timings=0)

    def upload(self, array: Array) -> FakeBuffer:
        self._check()
        return FakeBuffer(np.ascontiguousarray(array).tobytes())

    def allocate(self, nbytes: int) -> FakeBuffer:
        return FakeBuffer(bytes(nbytes))

    def entered(self) -> AbstractContextManager[None]:
        return nullcontext()

    def fill(self, buffer: FakeBuffer, byte: int) -> None:
        """Fills a buffer, the first step of every variant."""
        self.is_lost |= self.is_poisoned
        self._check()
        FakeBuffer.at(buffer.address).array[: buffer.nbytes] = byte

    def download(self, buffer: FakeBuffer, array: Array) -> None:
        self._check()
        array.view(np.uint8).reshape(-1)[:] = FakeBuffer.at(buffer.address).array[: array.nbytes]

    def activate(self) -> None:
        """No-op: there is nothing to prepare."""

    def bind(self, kernel: Any, launch: Launch, arguments: Sequence[Any]) -> Callable[..., None]:
        def call(stream: int, *addresses: int) -> None:
            given = iter(addresses)
            self.launch(kernel, launch, [FakeBuffer.at(next(given)) if a is None else a for a in arguments])

        return call

    def launch(self, kernel: Any, launch: Launch, arguments: Sequence[Any], stream: int = 0) -> None:
        self._check()
        self.launched = kernel
        behaviour = behaviour_of(kernel.config)
        if behaviour.startswith("SIG"):
            if behaviour != "SIGKILL":  # under nohup, and in a shell's background, some are ignored
                signal.signal(signal.Signals[behaviour], signal.SIG_DFL)
            os.kill(os.getpid(), signal.Signals[behaviour])
        if behaviour == "crash":
            sys.stderr.write("toy fell over\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGSEGV)
        if behaviour == "hang":
            time.sleep(3600)
        if behaviour == "lost for good":
            lost_mark().touch()
        if behaviour in ("fault", "lost for good"):
            self.is_lost = True
            self._check()
        m, k, n, offsets, indices, values, b, c = arguments
        ints = [x.array.view(np.int32) for x in (offsets, indices)]
        floats = [x.array.view(np.float32) for x in (values, b)]
        nnz = int(ints[0][-1])
        dense = np.zeros((m, k), np.float32)
        dense[np.repeat(np.arange(m), np.diff(ints[0])), ints[1][:nnz]] = floats[0][:nnz]
        exact = dense @ floats[1].reshape(k, n)
        if behaviour == "remembers":  # what it once computed
            exact = self.remembered = getattr(self, "remembered", exact)
        if behaviour == "wrong":
            exact[3, 5] += 1.0
        if behaviour == "wrong_at_first" and not kernel.launches:
            exact[3, 5] += 1.0
        if (
            behaviour == "slightly_wrong"
        ):  # by twice the bound of a sum in float32 (`sparsegen.verify.bounds`)
            terms, magnitude = ints[0][4] - ints[0][3], (abs(dense) @ abs(floats[1].reshape(k, n)))[3, 5]
            roundings = 4 * (np.sqrt(terms + 2.0) + 2 / np.sqrt(terms + 2.0))
            exact[3, 5] += 2 * 2.0**-24 * (roundings * magnitude + 2 * abs(exact[3, 5]))
        if behaviour == "unstable" and kernel.launches:
            exact *= 1.0 + kernel.launches
        if behaviour == "fading" and kernel.timings >= 2:  # right until its trial has ended
            exact[0, 0] += 1.0
        kernel.launches += 1
        self.us += time_of(kernel.config)
        c.array[: 4 * exact.size].view(np.float32)[:] = exact.astype(np.float32).reshape(-1)
        if behaviour == "trespass":
            c.array[4 * exact.size + 8] = 0

    def synchronize(self) -> None:
        self._check()

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def overwrite_l2(self) -> None:
        self._check()

    def clocks(self) -> tuple[int, int]:
        """The end of a timing."""
        kernel = self.launched
        kernel.timings += 1
        time.sleep(float(os.environ.get("TOY_SECONDS", "0")))
        self.is_poisoned = kernel.config["behaviour"] == "poison"
        return 1000, 0

    def close(self) -> None: ...


def lost_mark() -> Path:
    """A file that is there once the device has left the bus."""
    return Path(os.environ.get("TOY_FOLDER", "")) / "lost"


def open_executor(device: Device) -> FakeExecutor:
    assert device == DEVICE
    if os.environ.get("TOY_FOLDER") and lost_mark().exists():
        raise LaunchError("there is no such device any more")
    return FakeExecutor()


def open_nothing(device: Device) -> FakeExecutor:
    raise LaunchError("there is no such device")


class FakeBaselines:
    """In the place of `sparsegen.measure.baselines.Session`."""

    def __init__(self, matrix: CsrMatrix, problem: SpmmProblem, device: Device) -> None:
        assert matrix.shape == (problem.m, problem.k)

    def load(self) -> None: ...

    def measure(self) -> list[Result]:
        return [
            Result("cublas", "1.2", "default", Timing((5.0, 6.0, 7.0))),
            Result("cusparse", "3.4", "", Timing((30.0,))),
        ]

    def rates(self) -> Rates | None:
        return RATES


class BrokenBaselines(FakeBaselines):
    def measure(self) -> list[Result]:
        raise LaunchError("out of memory")


class UncompiledBaselines(FakeBaselines):
    def measure(self) -> list[Result]:
        raise CompileError("the kernel that spins did not compile in time")


class BaselinesWithoutRates(FakeBaselines):
    def rates(self) -> Rates | None:
        raise LaunchError("out of memory")


class BaselinesWithUncompiledRates(FakeBaselines):
    def rates(self) -> Rates | None:
        raise CompileError("the kernel that copies did not compile in time")


def backend(folder: Path, **values: Any) -> Backend:
    """A backend of fakes; ``values`` replace its fields."""
    from sparsegen.tuning.tuner import Backend

    fields: dict[str, Any] = {
        "toolchain": FakeToolchain(folder),
        "open_executor": "tuning_fakes:open_executor",
        "baseline_session": None,
        "baselines_skipped": "no baselines here",
        "variant_seconds": LONG,
        "jobs": 2,
    }
    return Backend(**(fields | values))


def tune_toy(
    store: Store,
    folder: Path,
    trials: int = 8,
    *,
    progress: Progress | None = None,
    again: bool = False,
    deterministic: bool = False,
    **values: Any,
) -> TuneResult:
    from sparsegen.tuning.report import silent
    from sparsegen.tuning.tuner import Budget, tune

    return tune(
        MATRIX,
        PROBLEM,
        device=DEVICE,
        store=store,
        families=["toy"],
        budget=Budget(trials=trials),
        progress=progress or silent,
        again=again,
        deterministic=deterministic,
        backend=backend(folder, **values),
    )


def told(config: Config, time_us: float | None) -> Measurement:
    """Makes a config's measurement with a time, or a failure, if nothing else counts."""
    workload = Workload(PROBLEM, MATRIX.fingerprint(), Features.of(MATRIX))
    sample = None if time_us is None else Sample(time_us, time_us, time_us, 30)
    outcome = Outcome.WRONG if time_us is None else Outcome.OK
    return Measurement(
        workload, DEVICE, Variant(config, "ab" * 32), outcome, sample, registers=32, spill_bytes=0
    )


def main() -> None:
    from sparsegen.tuning_db.store import Store

    install(setattr)
    database = Path(sys.argv[1])
    with Store.open(database) as opened:
        tune_toy(opened, database.parent / "toolchain", int(sys.argv[2]))


if __name__ == "__main__":
    import tuning_fakes

    tuning_fakes.main()  # not this module's own: the worker can import nothing from a `__main__`
