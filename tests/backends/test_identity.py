"""Identity of the GPUs that a process sees: told apart by files and variables alone; none if anything is unclear."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from gpu_host import UUIDS, GpuHost
from unprivileged import unprivileged

from sparsegen.backends.cuda import identity as module
from sparsegen.backends.cuda.identity import identity


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuHost:
    made = GpuHost(tmp_path)
    for name, place in (("PROC", made.proc), ("DEV", made.dev), ("MPS", made.mps)):
        monkeypatch.setattr(module, name, place)
    monkeypatch.setenv("SPARSEGEN_DRIVER", "direct")
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    return made


@pytest.mark.usefixtures("host")
def test_a_host_is_itself_and_tells_its_gpus() -> None:
    first, second = identity(), identity()
    assert first is not None and first == second
    assert first.uuids == set(UUIDS[:2])


def swapped(host: GpuHost) -> None:
    host.set_gpu(0, UUIDS[1])
    host.set_gpu(1, UUIDS[0])


def locked(host: GpuHost) -> None:
    (host.dev / "nvidia1").chmod(0)


CHANGES: dict[str, Callable[[GpuHost], None]] = {
    "another driver": lambda host: host.set_version("590.10"),
    "another GPU": lambda host: host.set_gpu(1, UUIDS[2]),
    "the same GPUs in other places": swapped,
    "a GPU less": lambda host: host.remove_gpu(1),
    "no node of a GPU": lambda host: (host.dev / "nvidia1").unlink(),
    "a node that others may open": locked,
    "no unified memory": lambda host: (host.dev / "nvidia-uvm").unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_host_is_told_apart(change: Callable[[GpuHost], None], host: GpuHost) -> None:
    before = identity()
    change(host)
    with unprivileged():
        after = identity()
    assert before is not None and after is not None and before != after


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUDA_VISIBLE_DEVICES", "1"),
        ("CUDA_VISIBLE_DEVICES", ""),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("NVIDIA_VISIBLE_DEVICES", "1"),
        ("LD_LIBRARY_PATH", "/usr/local/cuda/compat"),
        ("LD_PRELOAD", "libvgpu.so"),
    ],
)
def test_another_environment_is_told_apart(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    before = identity()
    monkeypatch.setenv(name, value)
    after = identity()
    assert before is not None and after is not None and before != after


@pytest.mark.usefixtures("host")
def test_who_calls_the_driver_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them may not be able to."""
    found = [identity()]
    monkeypatch.delenv("SPARSEGEN_DRIVER")
    for origin in ("one", "another"):
        spec = ModuleSpec("pycuda", None, origin=origin)
        monkeypatch.setattr(module, "find_spec", lambda name, spec=spec: spec)
        found.append(identity())
    assert None not in found and len(set(found)) == 3
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert identity() is None, "PyCUDA is missing, so that there is no GPU"
    monkeypatch.setenv("SPARSEGEN_DRIVER", "another word")
    assert identity() is None


def instance(host: GpuHost) -> None:
    (host.proc / "capabilities" / "gpu0" / "mig" / "gi1").mkdir(parents=True)


def instance_of_container(host: GpuHost) -> None:
    (host.dev / "nvidia-caps").mkdir()
    (host.dev / "nvidia-caps" / "nvidia-cap12").touch()


def without_gpus(host: GpuHost) -> None:
    for number in range(2):
        host.remove_gpu(number)


def without_nodes(host: GpuHost) -> None:
    for number in range(2):
        (host.dev / f"nvidia{number}").unlink()


UNCLEAR: dict[str, Callable[[GpuHost], None]] = {
    "no driver": lambda host: shutil.rmtree(host.proc),
    "no version": lambda host: (host.proc / "version").unlink(),
    "a GPU that was not used since the boot": lambda host: host.set_gpu(
        1, "GPU-????????-????-????-????-????????????"
    ),
    "two GPUs of one name": lambda host: host.set_gpu(1, UUIDS[0]),
    "no GPU": without_gpus,
    "no node at all": without_nodes,
    "no node to ask": lambda host: (host.dev / "nvidiactl").unlink(),
    "MIG": instance,
    "MIG in a container": instance_of_container,
    "MPS": lambda host: host.mps.mkdir(),
}


@pytest.mark.parametrize("change", UNCLEAR.values(), ids=UNCLEAR)
def test_what_is_unclear_is_not_told(change: Callable[[GpuHost], None], host: GpuHost) -> None:
    assert identity() is not None
    change(host)
    assert identity() is None


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("name", "value"),
    [("CUDA_VISIBLE_DEVICES", "MIG-11111111"), ("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")],
)
def test_parts_of_gpus_are_not_told(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert identity() is None


def test_capabilities_that_every_driver_has_are_no_instances(host: GpuHost) -> None:
    (host.proc / "capabilities" / "mig").mkdir(parents=True)
    (host.dev / "nvidia-caps").mkdir()
    for number in (1, 2):
        (host.dev / "nvidia-caps" / f"nvidia-cap{number}").touch()
    assert identity() is not None
