"""Fixtures and options that all tests share."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import expectations
import gpu_ring
import pytest
from patience import LONG
from recorder import Observer, Recorder, Unrecorded, Watch, import_everything
from rings import BESIDE_TORCH, FAST, LEFT_OUT, sort_into_rings
from sharing import DISTRIBUTION, IS_WORKER, heaviest_first, scheduler, share_out_cores, share_out_devices

from sparsegen import backends
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import CompiledKernel
from sparsegen.errors import DeviceUnavailableError
from sparsegen.settings import Settings

STARTED = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden instead of comparing")
    parser.addoption(
        "--record-costs", action="store_true", help="write to tests/costs.json what tests take and start"
    )
    parser.addoption(
        "--every-lane-arrives",
        action="store_true",
        help="GPU contract tests: barriers that racecheck follows (docs/notes/masked-products.md)",
    )
    parser.addoption(
        "--gpu-budget",
        type=float,
        default=0.0,
        help="pytest -m gpu: seconds after which no test begins; the others are counted as not run",
    )
    parser.addoption(
        "--gpu-device",
        choices=("cuda", "emulator"),
        default="cuda",
        help="what GPU tests of contracts and networks run on",
    )
    parser.addoption(
        "--kernels",
        type=Path,
        help="a folder with what earlier runs compiled; default one for this run alone",
    )
    parser.addoption("--fuzz-seconds", type=float, default=0.0, help="how long tests/fuzz goes on, all of it")
    parser.addoption(
        "--fuzz-turns", type=int, default=1, help="turns of 100 attempts each, the same every time"
    )


def pytest_configure(config: pytest.Config) -> None:
    share_out_devices()
    if not IS_WORKER and config.getoption("numprocesses", None):
        share_out_cores(os.environ)
    if find_spec("hypothesis") is not None:  # GPU machines may lack it
        from hypothesis import HealthCheck, settings

        settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("busy")
    if config.option.markexpr == gpu_ring.RING:
        gpu_ring.register(config, config.option.gpu_budget)
    elif config.option.gpu_budget:
        raise pytest.UsageError("--gpu-budget goes with -m gpu")
    is_fast, records = config.option.markexpr == FAST, config.getoption("--record-costs")
    if is_fast or records:
        watch = Watch(refuses=is_fast)
        watch.install()
        config.pluginmanager.register(Observer(watch))
    if is_fast and not IS_WORKER:
        config.pluginmanager.register(Unrecorded())
    if records:
        import_everything()
        if not IS_WORKER:
            chosen = config.option.markexpr or config.option.keyword
            from_arguments = config.args_source is pytest.Config.ArgsSource.ARGS
            config.pluginmanager.register(Recorder(whole=not chosen and not from_arguments))


@cache
def why_no_gpu() -> str:
    """Empty if there is one."""
    try:
        return "" if backends.gpu_devices() else "no GPU was found"
    except DeviceUnavailableError as error:
        return str(error)


@pytest.hookimpl(tryfirst=True)  # before the rings are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort them into rings; skip those marked ``gpu`` where there is none, and say why."""
    sort_into_rings(items)
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if config.option.gpu_device == "emulator":
        needing = [item for item in needing if item.path.name not in gpu_ring.ON_EMULATOR]
    if needing and why_no_gpu():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason=why_no_gpu()))
    if IS_WORKER and config.option.markexpr != gpu_ring.RING:
        heaviest_first(items, config.rootpath, has_gpu=not why_no_gpu())


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # thousands of tests, which live to the end: the collector need not look at them again
    if not IS_WORKER and not session.config.option.collectonly:
        announce(session.config, len(session.items))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    if node.gateway.id == "gw0":
        announce(node.config, len(ids))


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Generator[None, int, int]:
    """One more than cores for the long ring, whose tests wait a quarter of the time: for limits, locks, processes."""
    found = yield
    return found + (config.option.markexpr in (LEFT_OUT, BESIDE_TORCH))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    has_gpu = config.option.gpu_device == "emulator" or not why_no_gpu()
    if config.option.dist != DISTRIBUTION:
        return None
    config.option.loadscopereorder = (
        config.option.markexpr == gpu_ring.RING
    )  # others are sorted: heaviest_first
    return scheduler(config, log, has_gpu=has_gpu)


def announce(config: pytest.Config, tests: int) -> None:
    """Say what to expect of a run of many tests."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if tests >= expectations.MANY and reporter is not None:
        reporter.ensure_newline()
        for line in expectations.beforehand(config, tests, why_no_gpu()):
            reporter.write_line(line)


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Say why tests were skipped, and keep how long all of them took."""
    for line in expectations.skipped(terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(line)
    ran = sum(len(terminalreporter.stats.get(outcome, ())) for outcome in ("passed", "failed", "skipped"))
    if exitstatus == 0:
        expectations.remember(config, ran, time.monotonic() - STARTED)


class PatientToolchain(EmulatorToolchain):
    """Waits for a compile as long as it takes: on a busy machine the largest kernels take a minute."""

    def compile(self, family: str, entry: str, source: str, *, timeout: float = LONG) -> CompiledKernel:
        return super().compile(family, entry, source, timeout=timeout)

    def compile_sanitized(
        self, family: str, entry: str, source: str, *, timeout: float = LONG
    ) -> CompiledKernel:
        return super().compile_sanitized(family, entry, source, timeout=timeout)


@pytest.fixture(scope="session", autouse=True)
def emulator_settings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    """The environment's settings, with a cache that all processes of this run share, and no others but for
    ``--kernels``.
    """
    folder = tmp_path_factory.getbasetemp()
    cache = request.config.option.kernels or (folder.parent if IS_WORKER else folder) / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARSEGEN_CACHE", str(cache))
        yield replace(Settings.from_environment(), cache=cache)


@pytest.fixture(scope="session")
def emulator_toolchain(emulator_settings: Settings) -> EmulatorToolchain:
    return PatientToolchain(emulator_settings)


@pytest.fixture
def ctrl_c_is_heard() -> Iterator[None]:
    """A shell's background jobs, and Python with them, ignore Ctrl-C from their start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def own_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty database of the test's own, and a working folder without another one."""
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "tuning.db"


@pytest.fixture
def on_emulator(own_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The emulator as the device, and `own_database`."""
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    return own_database
