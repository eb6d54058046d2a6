"""Devices, with the toolchain and executor of each: CUDA GPUs and the emulator.

Compile servers import a module of this package, a dozen of them at once: so NumPy and all else is imported when it is
asked for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sparsegen.errors import ConfigError, DeviceUnavailableError

if TYPE_CHECKING:
    from sparsegen.backends.executor import Executor, Toolchain
    from sparsegen.kernels.base import Device


_NAME = re.compile(r"(cuda|emulator)(?::(\d{1,6}))?", re.ASCII)


def gpu_devices() -> list[Device]:
    """The CUDA GPUs, as the driver describes them; what it says is remembered for `remembered_device`.

    Raises:
        DeviceUnavailableError: PyCUDA or the driver is missing.
    """
    from sparsegen.backends.cuda import remembered_gpus, runtime

    found: list[Device] = []
    try:
        found = runtime.devices()
    finally:
        remembered_gpus.keep(found)
    return found


def emulator_device(index: int = 0) -> Device:
    """The emulator, as one of the devices that it passes for."""
    from sparsegen.backends import emulator

    return emulator.device(index)


def emulator_devices() -> list[Device]:
    """The devices that the emulator passes for: one, or as many as SPARSEGEN_EMULATORS says."""
    from sparsegen.settings import Settings

    return [emulator_device(index) for index in range(Settings.from_environment().emulators)]


def devices() -> list[Device]:
    """GPUs first, then the emulator, which is always there."""
    try:
        gpus = gpu_devices()
    except DeviceUnavailableError:
        gpus = []
    return [*gpus, *emulator_devices()]


def device_name(device: Device) -> str:
    """Returns the name by which `find_device` finds it."""
    if device.backend == "emulator" and device.index == 0:
        return "emulator"
    return f"{device.backend}:{device.index}"


def find_devices(names: str) -> list[Device]:
    """Several devices: ``all`` (the GPUs; without one, what the emulator passes for), or names or numbers of GPUs with
    commas between: ``0,1``, ``cuda:0,emulator:1``.

    Raises:
        DeviceUnavailableError: one is not there.
        ConfigError: one is named twice, or none is named.
    """
    from sparsegen import arguments

    arguments.text(names, "devices")
    if names == "all":
        try:
            return gpu_devices() or emulator_devices()
        except DeviceUnavailableError:
            return emulator_devices()
    words = [word.strip() for word in names.split(",")]
    found = [find_device(f"cuda:{word}" if word.isascii() and word.isdecimal() else word) for word in words]
    if not all(words) or len({(d.backend, d.index) for d in found}) < len(found):
        raise ConfigError(
            f"devices {names!r}: write all, or each device once, like 0,1 or emulator:0,emulator:1"
        )
    return found


def find_device(name: str | None = None) -> Device:
    """A device by name: ``cuda``, ``cuda:1``, ``emulator``, ``emulator:1``; None takes SPARSEGEN_DEVICE, else the
    first of `devices`.

    Raises:
        DeviceUnavailableError: there is no such device; the message says why and lists those there are.
        ConfigError: the name is no text.
    """
    from sparsegen import arguments
    from sparsegen.settings import Settings

    if name is not None:
        arguments.text(name, "device")
    name = name or Settings.from_environment().device
    if name is None:
        return devices()[0]
    match = _NAME.fullmatch(name)
    if match is None:
        raise DeviceUnavailableError(f"no device {name!r}: use cuda, cuda:N, emulator or emulator:N")
    index = int(match[2] or 0)
    if match[1] == "emulator":
        emulators = emulator_devices()
        if index >= len(emulators):
            raise DeviceUnavailableError(
                f"{name} is not there: the emulator passes for {len(emulators)} device(s); set SPARSEGEN_EMULATORS to "
                "the number of devices that it is to pass for"
            )
        return emulators[index]
    gpus = gpu_devices()
    if index >= len(gpus):
        raise DeviceUnavailableError(
            f"{name} is not there: {len(gpus)} GPU(s) found; see `sparsegen devices`"
        )
    return gpus[index]


def may_be_gpu(device: object) -> bool:
    """True if `find_device`, given this device, asks the CUDA driver."""
    from sparsegen.settings import Settings

    if device is not None and not isinstance(device, str):
        return False
    name = device or Settings.from_environment().device
    return name is None or name.startswith("cuda")


def remembered_device(name: object = None) -> Device | None:
    """The GPU that `find_device` is to find, as its driver described it to an earlier process; for look-ups alone.

    Whoever runs something asks `find_device`, and decides again where it finds another description (`is_same`). None
    where nothing is remembered that is sure to hold, and where no GPU is named.
    """
    from sparsegen.settings import Settings

    if not may_be_gpu(name):
        return None
    match = _NAME.fullmatch(str(name or Settings.from_environment().device or "cuda"))
    if match is None:
        return None
    from sparsegen.backends.cuda import remembered_gpus

    gpus, index = remembered_gpus.recall(), int(match[2] or 0)
    return gpus[index] if index < len(gpus) else None


def is_same(device: Device, other: Device) -> bool:
    """True if two descriptions agree in all, including what `==` ignores: number, UUID and speed."""
    from dataclasses import astuple

    return astuple(device) == astuple(other)


def begin_opening(device: Device) -> None:
    """Let a thread make what `open_executor` would wait for longest: a GPU's context, which then stays."""
    if device.backend == "cuda":
        from sparsegen.backends.cuda import early_init

        early_init.begin(device.index)


def driver_version(device: Device) -> str:
    """The version of the device's driver; empty for the emulator, and where NVML does not tell."""
    if device.backend == "emulator":
        return ""
    from sparsegen.backends.cuda import runtime

    return runtime.driver_version()


def toolchain(device: Device) -> Toolchain:
    """Returns the toolchain of a device; if `Settings.kernels` names a folder, the one of binaries compiled
    beforehand.
    """
    from sparsegen.settings import Settings

    settings = Settings.from_environment()
    if settings.kernels is not None:
        from sparsegen.backends.precompiled import PrecompiledToolchain

        return PrecompiledToolchain(settings.kernels)
    if device.backend == "emulator":
        from sparsegen.backends.emulator.toolchain import EmulatorToolchain

        return EmulatorToolchain()
    from sparsegen.backends.cuda.compiler import CudaToolchain

    return CudaToolchain(device.compute_capability)


def open_executor(device: Device) -> Executor:
    """Opens the executor of a device; close it when done."""
    if device.backend == "emulator":
        from sparsegen.backends.emulator.executor import EmulatorExecutor

        return EmulatorExecutor(device=device)
    from sparsegen.backends.cuda.runtime import CudaExecutor

    return CudaExecutor(device)
