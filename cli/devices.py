"""``sparsegen devices``: where variants can run."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.text import Text

from sparsegen import backends
from sparsegen.cli.parts.common import Listing, emit, json_option
from sparsegen.errors import DeviceUnavailableError


@click.command()
@json_option
def command(as_json: bool) -> None:
    """List the devices that variants can run on, as --device takes them."""
    note = None
    try:
        gpus = backends.gpu_devices()
    except DeviceUnavailableError as error:
        gpus, note = [], str(error)
    devices = [*gpus, *backends.emulator_devices()]
    data = {
        "devices": [{"device": backends.device_name(device), **asdict(device)} for device in devices],
        "no_gpu_because": note,
    }
    table = Listing("device", "name", "compute", "SMs", "shared/block", "L2", "key")
    for device in devices:
        major, minor = device.compute_capability
        table.add_row(
            backends.device_name(device),
            device.name,
            f"{major}.{minor}",
            str(device.multiprocessors),
            f"{device.shared_memory_per_block / 1024:.0f} KiB",
            f"{device.l2_bytes / 2**20:.0f} MiB",
            device.key,
        )
    emit(as_json, data, table, *([] if note is None else [Text(f"No GPU: {note}")]))
