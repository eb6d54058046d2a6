"""Devices by name: one, several, and as many emulators as the environment says; a GPU's UUID."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import pytest

from sparsegen import backends
from sparsegen.backends.cuda import driver
from sparsegen.errors import ConfigError, DeviceUnavailableError
from sparsegen.kernels.base import Device

GPUS = [replace(backends.emulator_device(), key="gpu", backend="cuda", index=index) for index in range(3)]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[Device]:
    monkeypatch.setattr(backends, "gpu_devices", lambda: GPUS)
    return GPUS


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise DeviceUnavailableError("no driver")

    monkeypatch.setattr(backends, "gpu_devices", none)


def names(devices: list[Device]) -> list[str]:
    return [backends.device_name(device) for device in devices]


@pytest.mark.usefixtures("gpus")
def test_all_are_the_gpus() -> None:
    assert names(backends.find_devices("all")) == ["cuda:0", "cuda:1", "cuda:2"]
    assert names(backends.find_devices("2, 0")) == ["cuda:2", "cuda:0"]
    assert names(backends.find_devices("cuda:1,emulator")) == ["cuda:1", "emulator"]


@pytest.mark.usefixtures("no_gpus")
def test_without_gpus_all_are_emulators(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(backends.find_devices("all")) == ["emulator"]
    monkeypatch.setenv("SPARSEGEN_EMULATORS", "3")
    assert names(backends.devices()) == ["emulator", "emulator:1", "emulator:2"]
    assert names(backends.find_devices("all")) == names(backends.devices())
    found = backends.find_device("emulator:2")
    assert found.index == 2 and found == backends.emulator_device()  # one model
    assert backends.open_executor(found).device.index == 2


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("text", ["", "0,", "0,cuda:0", "1,1", "emulator,emulator:0"])
def test_each_device_is_named_once(text: str) -> None:
    with pytest.raises((ConfigError, DeviceUnavailableError)):
        backends.find_devices(text)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("text", "complaint"),
    [("3", "cuda:3 is not there"), ("emulator:1", "SPARSEGEN_EMULATORS"), ("tpu", "no device 'tpu'")],
)
def test_what_is_not_there_is_said(text: str, complaint: str) -> None:
    with pytest.raises(DeviceUnavailableError, match=complaint):
        backends.find_devices(text)


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "1025", "1000000000", "9" * 5000, "٣"])
def test_a_number_of_emulators_is_one(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEGEN_EMULATORS", text)
    with pytest.raises(ConfigError, match="SPARSEGEN_EMULATORS"):
        backends.devices()


def test_a_gpus_uuid_is_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bytes(range(15)) + b"\x00"

    class Library:
        @staticmethod
        def cuDeviceGet(device: Any, index: int) -> int:  # noqa: N802
            device._obj.value = index + 40
            return 0

        @staticmethod
        def cuDeviceGetUuid_v2(found: Any, device: Any) -> int:  # noqa: N802
            assert device.value == 41
            ctypes.memmove(found, raw, len(raw))
            return 0

    monkeypatch.setattr(driver, "libcuda", Library)
    assert driver.device_uuid(1) == "GPU-00010203-0405-0607-0809-0a0b0c0d0e00"
