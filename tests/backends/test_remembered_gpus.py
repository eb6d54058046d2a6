"""Remembered descriptions of GPUs serve look-ups of later processes, as long as they are sure to hold."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from gpu_host import UUIDS, GpuHost
from patience import LONG
from tuning_samples import H100
from unprivileged import unprivileged

from sparsegen import backends
from sparsegen.backends.cuda import early_init, remembered_gpus, runtime
from sparsegen.backends.cuda import identity as identities
from sparsegen.cli import doctor
from sparsegen.errors import DeviceUnavailableError
from sparsegen.kernels.base import Device

GPUS = [
    replace(H100, index=index, uuid=UUIDS[index], clock_mhz=1980.0, memory_bytes_per_us=3352320.0)
    for index in range(2)
]


class Host(GpuHost):
    """A host whose driver says what tests tell it.

    Attributes:
        asked: how often the driver was.
        says: the driver's answer; an error is raised.
        is_loaded: whether this process has the driver's library.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "host")
        self.asked, self.is_loaded = 0, False
        self.says: list[Device] | DeviceUnavailableError = GPUS
        self.files = folder / "cache" / "devices"

    def devices(self) -> list[Device]:
        """In the place of `runtime.devices`."""
        early_init.identity_at_start()
        self.is_loaded, self.asked = True, self.asked + 1
        if isinstance(self.says, DeviceUnavailableError):
            raise self.says
        return self.says

    def another_process(self) -> None:
        """Forget what belongs to a process."""
        self.is_loaded = False
        early_init.identity_at_start.cache_clear()
        remembered_gpus._keep_once.cache_clear()

    @property
    def file(self) -> Path:
        """The only one that is kept."""
        (file,) = self.files.iterdir()
        return file


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    made = Host(tmp_path)
    for name, place in (("PROC", made.proc), ("DEV", made.dev), ("MPS", made.mps)):
        monkeypatch.setattr(identities, name, place)
    monkeypatch.setattr(runtime, "devices", made.devices)
    monkeypatch.setattr(early_init, "is_loaded", lambda: made.is_loaded)
    monkeypatch.setattr(early_init, "_begun", [])
    monkeypatch.setenv("SPARSEGEN_DRIVER", "direct")
    monkeypatch.setenv("SPARSEGEN_CACHE", str(tmp_path / "cache"))
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SPARSEGEN_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    made.another_process()
    yield made
    made.another_process()


def is_recalled(name: str = "cuda:1", wanted: Device = GPUS[1]) -> bool:
    """True if a whole description is recalled, False if none is; asserts that it is no other one."""
    found = backends.remembered_device(name)
    assert found is None or backends.is_same(found, wanted)
    return found is not None


def test_what_the_driver_said_is_recalled_by_the_next_process(host: Host) -> None:
    assert not is_recalled()
    assert backends.find_device("cuda") == GPUS[0]
    host.another_process()
    assert is_recalled() and is_recalled("cuda", GPUS[0])
    assert backends.is_same(backends.remembered_device() or GPUS[1], GPUS[0])
    assert host.asked == 1 and host.files.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["emulator", "cuda:2", "cudaX", "tpu", 7, GPUS[0]], ids=str)
def test_other_names_are_left_to_whoever_finds_devices(name: object, host: Host) -> None:
    backends.gpu_devices()
    host.another_process()
    assert backends.remembered_device(name) is None


def test_a_process_that_wants_the_emulator_gets_no_gpu(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    backends.gpu_devices()
    host.another_process()
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    assert backends.remembered_device() is None
    monkeypatch.setenv("SPARSEGEN_DEVICE", "cuda:1")
    assert backends.remembered_device() == GPUS[1]


CHANGES: dict[str, Callable[[Host], None]] = {
    "another driver": lambda host: host.set_version("590.10"),
    "a GPU swapped": lambda host: host.set_gpu(1, UUIDS[2]),
    "MIG": lambda host: (host.proc / "capabilities/gpu0/mig/gi1").mkdir(parents=True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_host_recalls_nothing(change: Callable[[Host], None], host: Host) -> None:
    backends.gpu_devices()
    host.another_process()
    change(host)
    assert not is_recalled()


def test_each_order_of_the_gpus_is_kept_for_itself(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    backends.gpu_devices()
    host.another_process()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert backends.remembered_device("cuda:0") is None
    alone = replace(GPUS[1], index=0)
    host.says = [alone]
    assert backends.find_device("cuda:0") is alone
    host.another_process()
    assert is_recalled("cuda:0", alone) and backends.remembered_device("cuda:1") is None
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert is_recalled()


def test_doctor_and_whoever_runs_kernels_ask_the_driver(host: Host) -> None:
    backends.gpu_devices()
    host.another_process()
    assert H100.name in doctor._gpus() and host.asked == 2
    host.another_process()
    assert backends.find_device("cuda:1") == GPUS[1] and host.asked == 3


def test_parts_of_gpus_are_never_kept(host: Host) -> None:
    """The driver names a part by a UUID that Linux does not tell, whatever else there is to see."""
    host.says = [replace(GPUS[0], uuid=UUIDS[7])]
    backends.gpu_devices()
    assert not host.files.exists()


def test_where_the_driver_is_up_it_is_asked(host: Host) -> None:
    backends.gpu_devices()
    assert not is_recalled(), "this process has it, and it may have seen another environment"
    early_init._begun.append(SimpleNamespace(is_alive=lambda: True))  # type: ignore[arg-type]
    assert is_recalled(), "it is still coming up"


@pytest.mark.parametrize("moment", ["while it comes up", "before it is asked"])
def test_an_environment_that_changed_since_the_start_counts_for_nothing(
    moment: str, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver reads it once: another one names other GPUs by the same numbers."""
    backends.gpu_devices()
    host.another_process()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    early_init.identity_at_start()
    host.is_loaded = True
    early_init._begun.append(SimpleNamespace(is_alive=lambda: moment.startswith("while")))  # type: ignore[arg-type]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert not is_recalled()
    host.says = [replace(GPUS[1], index=0)]
    backends.gpu_devices()
    host.another_process()
    assert is_recalled(), "what the driver said of another environment was not kept for this one"


def test_a_driver_that_others_started_is_asked_and_nothing_kept(host: Host) -> None:
    host.is_loaded = True
    assert backends.gpu_devices() == GPUS and not host.files.exists()


def test_what_turns_out_to_be_otherwise_is_replaced(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    backends.gpu_devices()
    host.another_process()
    host.says = [replace(gpu, clock_mhz=1755.0) for gpu in GPUS]
    with caplog.at_level(logging.WARNING):
        backends.gpu_devices()
    assert "does not describe this host's GPUs as their driver does" in caplog.text
    host.another_process()
    assert is_recalled(wanted=host.says[1])


def test_gpus_that_cannot_be_used_any_more_are_forgotten(host: Host) -> None:
    backends.gpu_devices()
    host.another_process()
    host.says = DeviceUnavailableError("no CUDA device can be used")
    with pytest.raises(DeviceUnavailableError):
        backends.gpu_devices()
    assert not list(host.files.iterdir())
    host.another_process()
    assert not is_recalled()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "truncated": lambda whole: whole[:-20],
    "a digit": lambda whole: whole.replace(b"132", b"133"),
    "no text": lambda whole: b"\xff\xfe",
    "no digest": lambda whole: whole.partition(b"\n")[2],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_none_and_is_mended(
    damage: Callable[[bytes], bytes], host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    backends.gpu_devices()
    whole = host.file.read_bytes()
    host.file.write_bytes(damage(whole))
    host.another_process()
    assert not is_recalled()
    with caplog.at_level(logging.WARNING):
        backends.gpu_devices()
    assert host.file.read_bytes() == whole and not caplog.records
    host.another_process()
    assert is_recalled()


def test_a_file_that_others_could_have_written_is_not_read(host: Host) -> None:
    backends.gpu_devices()
    host.files.chmod(0o777)
    host.another_process()
    assert not is_recalled()


def test_a_cache_that_cannot_be_written_keeps_nothing(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    host.files.parent.mkdir(mode=0o500)
    with unprivileged(), caplog.at_level(logging.WARNING):
        assert backends.gpu_devices() == GPUS
    assert not list(host.files.parent.iterdir()) and not caplog.records


def test_a_cache_that_was_filled_beforehand_is_read(host: Host) -> None:
    backends.gpu_devices()
    host.another_process()
    host.files.chmod(0o500)
    with unprivileged():
        assert is_recalled()


def test_old_files_make_room(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(remembered_gpus.MOST_FILES + 3):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"0,{number}")
        backends.gpu_devices()
        host.another_process()
    assert len(list(host.files.iterdir())) == remembered_gpus.MOST_FILES
    assert is_recalled()


def test_two_processes_write_at_once(host: Host) -> None:
    writers = [multiprocessing.get_context("fork").Process(target=_write_often, args=(n,)) for n in (1, 2)]
    for writer in writers:
        writer.start()
    whole = {clocks: [replace(gpu, clock_mhz=clocks) for gpu in GPUS] for clocks in (1.0, 2.0)}
    while any(writer.is_alive() for writer in writers):
        found = remembered_gpus.recall()
        assert not found or all(map(backends.is_same, found, whole[found[0].clock_mhz or 0]))
    for writer in writers:
        writer.join(LONG)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert remembered_gpus.recall() and len(list(host.files.iterdir())) == 1


def _write_often(clock_mhz: float) -> None:
    for _ in range(30):
        remembered_gpus._keep_once.cache_clear()
        remembered_gpus.keep([replace(gpu, clock_mhz=float(clock_mhz)) for gpu in GPUS])
