"""Which devices there are, and the toolchain and executor of each: CUDA GPUs and the emulator.

Compile servers import a module of this package, a dozen of them at once: so NumPy and all else is imported when it is
asked for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sparsegen.errors import DeviceUnavailableError

if TYPE_CHECKING:
    from sparsegen.backends.executor import Executor, Toolchain
    from sparsegen.kernels.base import Device


def gpu_devices() -> list[Device]:
    """The CUDA GPUs.

    Raises:
        DeviceUnavailableError: PyCUDA or the driver is missing.
    """
    from sparsegen.backends.cuda import runtime

    return runtime.devices()


def emulator_device() -> Device:
    from sparsegen.backends import emulator

    return emulator.device()


def devices() -> list[Device]:
    """GPUs first, then the emulator, which is always there."""
    try:
        gpus = gpu_devices()
    except DeviceUnavailableError:
        gpus = []
    return [*gpus, emulator_device()]


def find_device(name: str | None = None) -> Device:
    """A device by name: ``cuda``, ``cuda:1``, ``emulator``; None takes SPARSEGEN_DEVICE, else the first of `devices`.

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
    if name == "emulator":
        return emulator_device()
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise DeviceUnavailableError(f"no device {name!r}: use cuda, cuda:N or emulator")
    gpus = gpu_devices()
    index = int(match[1] or 0)
    if index >= len(gpus):
        raise DeviceUnavailableError(
            f"{name} is not there: {len(gpus)} GPU(s) found; see `sparsegen devices`"
        )
    return gpus[index]


def driver_version(device: Device) -> str:
    """The version of the device's driver; empty for the emulator, and where NVML does not tell."""
    if device.backend == "emulator":
        return ""
    from sparsegen.backends.cuda import runtime

    return runtime.driver_version()


def toolchain(device: Device) -> Toolchain:
    """What compiles for a device; where `Settings.kernels` names a folder, what was compiled beforehand."""
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
    """What runs on a device; close it when done."""
    if device.backend == "emulator":
        from sparsegen.backends.emulator.executor import EmulatorExecutor

        return EmulatorExecutor()
    from sparsegen.backends.cuda.runtime import CudaExecutor

    return CudaExecutor(device)
