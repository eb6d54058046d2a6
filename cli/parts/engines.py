"""Engines that run searches, from the options ``--device``, ``--devices`` and ``--engine``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from functools import cached_property, wraps
from typing import Any, TypeVar, cast

import click

from sparsegen import backends
from sparsegen.cli.parts.common import device_option, word_option
from sparsegen.errors import PackageMissingError
from sparsegen.kernels.base import Device
from sparsegen.system.extras import install_command
from sparsegen.tuning.engines.engine import Engine, SetUp
from sparsegen.tuning.engines.local import LocalEngine
from sparsegen.tuning_db.location import Location

F = TypeVar("F", bound=Callable[..., Any])


class EngineName(StrEnum):
    """Engines that run searches."""

    LOCAL = "local"
    RAY = "ray"


class Places:
    """The devices that the options name.

    Raises:
        click.UsageError: options that do not go together.
    """

    def __init__(
        self, name: EngineName, device: str | None, devices: str | None, address: str | None
    ) -> None:
        if device is not None and devices is not None:
            raise click.UsageError("give either --device or --devices")
        if name is EngineName.RAY and device is not None:
            raise click.UsageError("--engine ray takes models of devices: --devices KEY,...; default all")
        if name is EngineName.LOCAL and address is not None:
            raise click.UsageError("--address is that of a Ray cluster: give --engine ray as well")
        self._name, self._device, self._devices, self._address = name, device, devices, address

    @property
    def named(self) -> str | None:
        """The value of ``--device``."""
        return self._device

    @property
    def are_named(self) -> bool:
        """True if an option names an engine or devices."""
        return self._name is not EngineName.LOCAL or self._device is not None or self._devices is not None

    @cached_property
    def only(self) -> Device | None:
        """The device of this host where no more than one was asked for, by ``--device`` or by default.

        Raises:
            DeviceUnavailableError: it is not there.
        """
        is_one = self._name is EngineName.LOCAL and self._devices is None
        return self.local()[0] if is_one else None

    def local(self) -> list[Device]:
        """Devices of this host.

        Raises:
            DeviceUnavailableError: one is not there.
        """
        if self._devices is not None:
            return backends.find_devices(self._devices)
        return [backends.find_device(self._device)]

    @contextmanager
    def opened(self, place: str) -> Iterator[Engine]:
        """Opens the engine of searches that write to a database, until the block ends."""
        set_up = SetUp(place if "://" in place else str(Location.parse(place)))
        if self._name is EngineName.LOCAL:
            with closing(LocalEngine(self.local(), set_up)) as engine:
                yield engine
            return
        try:
            from sparsegen.tuning.engines.ray_cluster import RayEngine
        except ModuleNotFoundError as error:
            raise PackageMissingError(
                f"--engine ray needs the package {error.name!r}: {install_command('ray')}"
            ) from None

        keys = None if self._devices in (None, "all") else self._devices.split(",")
        with closing(RayEngine(set_up, address=self._address, models=keys)) as cluster:
            yield cluster


def devices_option(function: F) -> F:
    """``devices``: str | None, for `sparsegen.backends.find_devices`."""
    return click.option(
        "--devices",
        metavar="all|N,N,...",
        help="Several devices at once, in the place of --device: all GPUs of this host, or some: 0,1.",
    )(function)


def engine_options(function: F) -> F:
    """``places``: `Places`, from --device, --devices, --engine and --address."""

    @wraps(function)
    def command(
        *args: object,
        device: str | None,
        devices: str | None,
        engine: EngineName,
        address: str | None,
        **others: object,
    ) -> Any:
        return function(*args, places=Places(engine, device, devices, address), **others)

    options = (
        device_option,
        devices_option,
        word_option(
            "--engine",
            default=EngineName.LOCAL,
            help="Where searches run: on this host, or on the GPUs of a Ray cluster (docs/many-gpus.md).",
        ),
        click.option("--address", help="Of the Ray cluster, as ray.init takes it; default RAY_ADDRESS."),
    )
    decorated: Any = command
    for option in reversed(options):
        decorated = option(decorated)
    return cast(F, decorated)
