"""CUDA devices and times as PyCUDA's driver tells them, in the units of sparsegen: a driver of our own stands in."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patience import LONG
from tuning_samples import H100

from sparsegen import backends
from sparsegen.backends.cuda import runtime
from sparsegen.backends.cuda.runtime import CudaExecutor
from sparsegen.errors import LaunchError
from sparsegen.measure import clock as clocks
from sparsegen.measure.clock import Clock
from sparsegen.measure.l2 import L2

ROOT = Path(__file__).parents[2]
UUID = "GPU-11111111-1111-1111-1111-111111111111"
CALL_MS, MEMSET_MS, READ_MS = 0.25, 3.0, 7.0


class FakeError(Exception):
    """In the place of ``pycuda.driver.Error``."""


class FakeMemoryError(FakeError):
    """In the place of ``pycuda.driver.MemoryError``."""


class FakeDriver:
    """The part of ``pycuda.driver`` that `runtime` uses, on a device whose time passes only while it works.

    Attributes:
        asked: queued work, in order.
        memory: the bytes of each allocation, by its address.
        now_ms: the device's time, in PyCUDA's unit.
    """

    Error, MemoryError = FakeError, FakeMemoryError

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.memory: dict[int, int] = {}
        self.now_ms = 1000.0
        self._depths = Counter[int]()  # by thread
        self.Event = lambda: FakeEvent(self)
        self.Context = SimpleNamespace(synchronize=lambda: None)
        self.device_attribute = SimpleNamespace(
            MULTIPROCESSOR_COUNT=132,
            MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=232448,
            MAX_SHARED_MEMORY_PER_MULTIPROCESSOR=233472,
            L2_CACHE_SIZE=50 << 20,
            CLOCK_RATE=1_980_000,  # kHz
            MEMORY_CLOCK_RATE=2_619_000,  # kHz
            GLOBAL_MEMORY_BUS_WIDTH=5120,  # bits
        )

    def Device(self, index: int) -> Any:  # noqa: N802 - PyCUDA's name
        context = SimpleNamespace(push=self._push, pop=self._pop)
        return SimpleNamespace(
            retain_primary_context=lambda: context,
            pci_bus_id=lambda: "0000:00:00.0",
            name=lambda: "NVIDIA H100 80GB HBM3",
            compute_capability=lambda: (9, 0),
            get_attribute=lambda value: value,  # an attribute is its own value here
        )

    def _push(self) -> None:
        self._depths[threading.get_ident()] += 1

    def _pop(self) -> None:
        assert self.depth, "no context to leave"
        self._depths[threading.get_ident()] -= 1

    @property
    def depth(self) -> int:
        """Number of times that the calling thread has entered the context and not left it."""
        return self._depths[threading.get_ident()]

    @property
    def is_left(self) -> bool:
        """True if every thread has left the context as often as it entered it."""
        return not any(self._depths.values())

    def mem_alloc(self, nbytes: int) -> FakeAllocation:
        address = 4096 * (len(self.memory) + 1)
        self.memory[address] = nbytes
        return FakeAllocation(self, address)

    def memset_d8_async(self, address: int, byte: int, nbytes: int, stream: Any) -> None:
        assert stream is None, "events are recorded in the default stream"
        assert nbytes <= self.memory[address]
        self.work(f"{nbytes >> 20} MiB overwritten", MEMSET_MS)

    def work(self, what: str, ms: float) -> None:
        self.asked.append(what)
        self.now_ms += ms


class FakeAllocation:
    """In the place of ``pycuda.driver.DeviceAllocation``: freed in threads that are in its context, else kept."""

    def __init__(self, driver: FakeDriver, address: int) -> None:
        self._driver, self._address = driver, address

    def __int__(self) -> int:
        return self._address

    def __del__(self) -> None:
        if self._driver.depth:
            del self._driver.memory[self._address]


class FakeEvent:
    """In the place of ``pycuda.driver.Event``."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver, self._ms = driver, 0.0

    def record(self) -> None:
        self._ms = self._driver.now_ms

    def query(self) -> bool:
        return False

    def time_since(self, start: FakeEvent) -> float:
        """Milliseconds, as PyCUDA says."""
        return self._ms - start._ms


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(runtime, "driver", lambda: fake)
    monkeypatch.setattr(runtime, "libcuda", lambda: SimpleNamespace(cuCtxGetCurrent=lambda current: 0))
    monkeypatch.setattr(runtime, "beside_captures", nullcontext)
    monkeypatch.setattr(runtime, "device_uuid", lambda index: UUID)
    monkeypatch.setattr(runtime, "_nvml_handle", lambda bus: None)
    return fake


@pytest.fixture
def executor(driver: FakeDriver) -> Iterator[CudaExecutor]:
    opened = CudaExecutor(H100)
    yield opened
    opened.close()


def timed(driver: FakeDriver, executor: CudaExecutor, l2: L2) -> tuple[float, ...]:
    """Two samples of a call that takes a quarter of a millisecond, after one to warm up."""
    clock = Clock(executor)
    return clock.time(lambda: driver.work("call", CALL_MS), samples=2, l2=l2, warmup=1).samples_us


def test_times_are_microseconds(driver: FakeDriver, executor: CudaExecutor) -> None:
    start, stop = executor.event(), executor.event()
    start.record()
    driver.work("call", CALL_MS)
    stop.record()
    assert stop.us_since(start) == 250.0
    assert timed(driver, executor, L2.WARM) == (250.0, 250.0)


def test_the_l2_is_overwritten_four_times_before_each_cold_sample(
    driver: FakeDriver, executor: CudaExecutor
) -> None:
    """Outside of the time that is taken, in the same stream, in memory that is allocated once."""
    assert timed(driver, executor, L2.COLD) == (250.0, 250.0)
    assert driver.asked == ["call", "200 MiB overwritten", "call", "200 MiB overwritten", "call"]
    assert list(driver.memory.values()) == [200 << 20]


def test_a_warm_l2_is_left_as_it_is(driver: FakeDriver, executor: CudaExecutor) -> None:
    timed(driver, executor, L2.WARM)
    assert driver.asked == ["call"] * 3 and not driver.memory


def test_a_clean_l2_is_overwritten_and_then_read(
    driver: FakeDriver, executor: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "Reader", lambda on: lambda: driver.work("read", READ_MS))
    assert timed(driver, executor, L2.CLEAN) == (250.0, 250.0)
    assert driver.asked == ["call", *["200 MiB overwritten", "read", "call"] * 2]


def test_a_device_is_described_in_our_units(driver: FakeDriver) -> None:
    found = runtime.describe(driver.Device(3), 3)
    assert (found.key, found.index) == ("nvidia-h100-80gb-hbm3-sm90", 3)
    assert found.clock_mhz == 1980.0
    assert found.memory_bytes_per_us == pytest.approx(3.352e6, rel=1e-3)  # 3.35 TB/s
    assert (found.multiprocessors, found.l2_bytes) == (132, 50 << 20)


@pytest.mark.parametrize("name", ["CLOCK_RATE", "MEMORY_CLOCK_RATE"])
def test_clocks_that_the_driver_does_not_tell_are_unknown(driver: FakeDriver, name: str) -> None:
    setattr(driver.device_attribute, name, 0)
    found = runtime.describe(driver.Device(0), 0)
    assert (found.clock_mhz is None) == (name == "CLOCK_RATE")
    assert (found.memory_bytes_per_us is None) == (name == "MEMORY_CLOCK_RATE")


def test_what_the_driver_refuses_is_a_launch_error(
    driver: FakeDriver, executor: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise FakeMemoryError("out of memory")

    monkeypatch.setattr(driver, "mem_alloc", refuse)
    with pytest.raises(LaunchError, match="cannot allocate 64 bytes on NVIDIA H100: out of memory"):
        executor.allocate(64)
    for name in ("record", "query", "time_since"):
        monkeypatch.setattr(FakeEvent, name, refuse)
    event = executor.event()
    for ask in (event.record, event.has_passed, lambda: event.us_since(event)):
        with pytest.raises(LaunchError, match="out of memory"):
            ask()


def test_a_thread_that_opened_an_executor_ends_in_no_context(driver: FakeDriver) -> None:
    """PyCUDA aborts the process otherwise; whoever enters the executor goes on using it."""
    opened: list[CudaExecutor] = []
    thread = threading.Thread(target=lambda: opened.append(CudaExecutor(H100)))
    thread.start()
    thread.join()
    assert driver.is_left
    with opened[0].entered():
        opened[0].allocate(4)
    opened[0].close()
    assert driver.is_left


FIRST_USE = """
import sys, threading
import numpy as np, scipy.sparse
import sparsegen

pattern = scipy.sparse.random(96, 128, 0.2, format="csr", random_state=0, dtype=np.float32)
b, made = np.ones((128, 32), np.float32), []

def use():
    made.append(sparsegen.prepare(pattern, n=32, device=sys.argv[1], dense="never"))
    made[0](b)

thread = threading.Thread(target=use)
thread.start()
thread.join()
assert np.allclose(made[0](b), pattern @ b, atol=1e-4)
print("right")
"""


@pytest.mark.gpu
@pytest.mark.parametrize("name", [runtime.PYCUDA, runtime.DIRECT])
def test_the_thread_that_used_a_gpu_first_may_end_before_the_process(name: str, tmp_path: Path) -> None:
    """PyCUDA would abort the process: at the thread's end, or when the process exits."""
    environment = os.environ | {"SPARSEGEN_DB": str(tmp_path / "tuning.db"), "SPARSEGEN_DRIVER": name}
    command = [sys.executable, "-c", FIRST_USE, "cuda"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_an_executor_is_closed_by_a_thread_that_did_not_open_it(driver: FakeDriver) -> None:
    opened = CudaExecutor(H100)
    thread = threading.Thread(target=opened.close)
    thread.start()
    thread.join()
    assert driver.depth == 1  # this thread's, until it ends


def test_memory_is_freed_by_threads_that_are_in_no_context(
    driver: FakeDriver, executor: CudaExecutor
) -> None:
    held = [executor.allocate(100), executor.allocate(200)]
    thread = threading.Thread(target=held.pop)
    thread.start()
    thread.join()
    assert list(driver.memory.values()) == [100]
    executor.close()
    held.clear()  # this thread has left the context for good
    assert not driver.memory and driver.depth == 0


@pytest.mark.gpu
def test_memory_of_a_gpu_is_freed_by_threads_that_are_in_no_context() -> None:
    executor = CudaExecutor(backends.find_device("cuda"))
    held = [executor.allocate(1 << 30)]
    before = executor.free_bytes()
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert executor.free_bytes() - before > 1 << 29
    executor.close()


def test_memory_that_outlives_the_driver_is_left_to_it(
    driver: FakeDriver, executor: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer, before = executor.allocate(100), driver.depth

    def ended() -> None:
        raise FakeError("the driver is shutting down")

    monkeypatch.setattr(executor._context, "push", ended)
    del buffer
    assert driver.depth == before


def test_an_executor_of_a_larger_l2_overwrites_more(driver: FakeDriver) -> None:
    executor = CudaExecutor(replace(H100, l2_bytes=60 << 20))
    executor.overwrite_l2()
    executor.close()
    assert driver.asked == ["240 MiB overwritten"]
