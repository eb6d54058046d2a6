"""Devices by description: what dispatch and the cost model may know of a GPU that is not here.

One JSON file each in ``devices/``, with the sources of its numbers. ``name`` is what the driver calls the device, so
that what is predicted for it is found where one is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from sparsegen import arguments
from sparsegen.errors import ConfigError
from sparsegen.kernels.base import Device, cuda_key
from sparsegen.kernels.rates import REACHED, Rates, estimated
from sparsegen.tuning_db.json_reader import Node, parse_json, read_text

FOLDER = Path(__file__).parent / "devices"
MAKER = "nvidia-"
LARGEST_FILE = 1 << 16  # bytes
SIZES = ("multiprocessors", "shared_memory_per_block", "shared_memory_per_multiprocessor", "l2_bytes")
RATES = ("float32_flop_per_us", "tf32_flop_per_us", "float16_flop_per_us", "bfloat16_flop_per_us")
BIG = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Target:
    """A described device.

    Attributes:
        name: name for the command line, such as ``nvidia-h200``.
        device: device as its driver would list it, with its expected rates.
        sources: sources of the numbers, each a sentence.
    """

    name: str
    device: Device
    sources: tuple[str, ...]


@cache
def targets() -> dict[str, Target]:
    """The packaged descriptions by name."""
    return {path.stem: read_target(path) for path in sorted(FOLDER.glob("*.json"))}


def find_target(name: str) -> Target:
    """A packaged description, or the one in a JSON file.

    Args:
        name: name in capitals or not, with or without ``nvidia-``; a device's key; or ``sm_80``, if one description
            alone has that compute capability.

    Raises:
        ConfigError: there is none of that name; the message lists those there are. Or a file is no description.
    """
    name = arguments.text(name, "target")
    if name.endswith(".json"):
        return read_target(Path(name))
    found = named_target(name)
    if found is not None:
        return found
    alike = [t.name for t in targets().values() if capability_name(t.device) == name.lower()]
    if len(alike) == 1:
        return targets()[alike[0]]
    several = f"{name} is {' and '.join(alike)}: name one of them. T" if alike else "t"
    raise ConfigError(
        f"no description of a device {name!r}: {several}here are {', '.join(targets())}; or name a JSON file like "
        f"those in {FOLDER}"
    )


def named_target(name: str) -> Target | None:
    """The packaged description of a device's name or key; None where there is none."""
    plain = name.lower().replace("_", "-").replace(" ", "-")
    by_key = {target.device.key: target for target in targets().values()}
    return targets().get(plain) or targets().get(f"{MAKER}{plain}") or by_key.get(name)


def capability_name(device: Device) -> str:
    """Returns a device's compute capability as compilers name it, such as ``sm_90``."""
    major, minor = device.compute_capability
    return f"sm_{major}{minor}"


def described(device: Device) -> Device:
    """A device as its packaged description has it, with the rates that are expected of it; else as it is."""
    return next((t.device for t in targets().values() if t.device.key == device.key), device)


def read_target(path: Path) -> Target:
    """The description in a JSON file.

    Raises:
        ConfigError: it cannot be read, or a value is missing, unknown or impossible; the message names it.
    """
    root = parse_json(read_text(path, LARGEST_FILE, ConfigError), str(path), ConfigError)
    f = root.fields(
        ("name", "compute_capability", *SIZES, "clock_mhz", "memory_bytes_per_us", "peaks", "sources")
    )
    capability = [part.integer(0, 99) for part in f["compute_capability"].items()]
    if len(capability) != 2:
        f["compute_capability"].refuse("two integers")
    major, minor = capability
    name = f["name"].text(200, ".+")
    clock, memory = f["clock_mhz"].number(above=True), f["memory_bytes_per_us"].number(above=True)
    described = {size: f[size].integer(1, BIG) for size in SIZES}
    device = Device(
        key=cuda_key(name, (major, minor)),
        name=name,
        backend="cuda",
        compute_capability=(major, minor),
        multiprocessors=described["multiprocessors"],
        shared_memory_per_block=described["shared_memory_per_block"],
        shared_memory_per_multiprocessor=described["shared_memory_per_multiprocessor"],
        l2_bytes=described["l2_bytes"],
        clock_mhz=clock,
        memory_bytes_per_us=memory,
        rates=_rates(f["peaks"], (major, minor), described["multiprocessors"], clock, memory),
    )
    sources = tuple(node.text(1000, ".+") for node in f["sources"].items())
    return Target(path.stem, device, sources)


def _rates(
    peaks: Node, capability: tuple[int, int], multiprocessors: int, clock: float, memory: float
) -> Rates:
    """The usual share of the described peaks, in place of the estimate of the architecture."""
    f = peaks.fields(RATES)
    usual = estimated(capability, multiprocessors, clock, memory)
    return replace(usual, **{name: REACHED * f[name].number(above=True) for name in RATES})
