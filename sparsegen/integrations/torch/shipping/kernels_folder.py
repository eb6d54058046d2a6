"""`ship_operators`: operator objects as a folder that Hugging Face's package ``kernels`` loads, without sparsegen."""

from __future__ import annotations

import base64
import hashlib
import json
import keyword
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from sparsegen import arguments
from sparsegen.errors import ConfigError, OperandError, OutputExistsError
from sparsegen.integrations.torch.shipping.libraries import (
    OLDEST,
    require_stable_interface,
    write_library,
)
from sparsegen.kernels.base import Device
from sparsegen.operators import Operator
from sparsegen.plan.shipping.launches import ShippedLaunch, architecture_of, shipped_launch
from sparsegen.plan.shipping.library import namespace_of
from sparsegen.plan.variant_launcher import variant_launcher
from sparsegen.render.sources import environment
from sparsegen.system.publish import publish_folder, reported
from sparsegen.tuning.prediction.targets import find_target

KERNEL_NAME = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]")
CUDA_RELEASES = "cu120", "cu130"  # of each major release the first: ``kernels`` takes it for all later ones
LICENSE = "Apache-2.0"


def ship_operators(
    operators: Mapping[str, Operator], output: str | Path, *, name: str, archs: Sequence[str] = ()
) -> tuple[ShippedLaunch, ...]:
    """Write operator objects into a folder in the layout of Hugging Face's ``kernels``, as functions of tensors.

    ``kernels.get_local_kernel(Path("folder"))`` loads it, and ``get_kernel`` once it is on the Hub. PyTorch 2.10 or
    later runs it, by the same variants and packed matrices, so that results have equal bits. There is a build for
    PyTorch's stable interface and CUDA 12 and 13, or for the CPU where the operators run in the emulator.

    Args:
        operators: of `sparsegen.prepare`, by the names of their functions. They take operands by position, in the
            order of the operator's own, without those that were given to `prepare`.
        output: a folder that is not there yet.
        name: of the kernel: small letters, digits and dashes.
        archs: further GPUs that there shall be kernels for, such as ``"sm_80"`` or ``"h100"``.

    Returns:
        The launches.

    Raises:
        OperandError: no operator, names that are none, operators of several devices, or one that runs a dense product.
        ConfigError: a name that ``kernels`` does not take, or an architecture that a variant cannot run on.
        CompileError, DeviceUnavailableError: the library did not compile, or there is no C++ compiler.
        PackageMissingError: a PyTorch older than 2.10.
        OutputError: the folder is there already, or cannot be written.
    """
    require_stable_interface()
    folder = Path(arguments.location(output, "output"))
    if not KERNEL_NAME.fullmatch(arguments.text(name, "name", ConfigError)):
        raise ConfigError(f"name: expected small letters, digits and dashes, got {name!r}")
    devices = _devices(operators, arguments.texts(archs, "archs", ConfigError))
    launches = {key: shipped_launch(variant_launcher(one), devices) for key, one in operators.items()}
    with reported(folder):
        if folder.exists():
            raise OutputExistsError("it is there already; choose another name, or remove it", path=folder)
    with reported(folder), publish_folder(folder) as work:
        for backend in ("cpu",) if devices[0].backend == "emulator" else CUDA_RELEASES:
            release = "".join(map(str, OLDEST))
            variant = f"torch-stable-abi{release}-{backend}-{platform.machine()}-linux"
            _write_build(work / "build" / variant, name, launches, devices, backend)
    return tuple(launches.values())


def _devices(operators: Mapping[str, Operator], archs: Sequence[str]) -> list[Device]:
    """One device of each architecture, the operators' own first."""
    wrong = [key for key in operators if not str(key).isidentifier() or keyword.iskeyword(key)]
    if not operators or wrong:
        raise OperandError(f"operators: expected some, by names of functions, got {wrong or 'none'}")
    own = {cast(Device, one.device) for one in operators.values()}
    if len(own) > 1:
        raise OperandError("operators: expected those of one device, got " + ", ".join(d.name for d in own))
    found = {architecture_of(device): device for device in own}
    for arch in archs:
        device = find_target(arch).device
        found.setdefault(architecture_of(device), device)
    return list(found.values())


def _write_build(
    folder: Path, name: str, launches: Mapping[str, ShippedLaunch], devices: Sequence[Device], backend: str
) -> None:
    """Write the build for one backend: library, packed arrays, functions, metadata."""
    folder.mkdir(parents=True)
    listed = list(launches.values())
    write_library(listed, folder)
    torch.save([torch.from_numpy(launch.packed) for launch in listed], folder / "packed.pt")
    values = {
        "title": name,
        "architectures": [architecture_of(device) for device in devices],
        "namespace": namespace_of(listed),
        "launches": launches,
    }
    source = environment().get_template("shipping/kernels.py.j2").render(values)
    (folder / "__init__.py").write_text(source, encoding="utf-8")
    about: dict[str, Any] = {"type": "cpu" if backend == "cpu" else "cuda"}
    if backend != "cpu":
        about["archs"] = [".".join(map(str, device.compute_capability)) for device in devices]
    files = {one.name: _digest(one) for one in sorted(folder.iterdir())}
    metadata = {
        "name": name,
        "id": namespace_of(listed),
        "version": 1,
        "license": LICENSE,
        "python-depends": [],
        "backend": about,
        "digest": {"algorithm": "sha256", "files": files},
    }
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")


def _digest(file: Path) -> str:
    return base64.b64encode(hashlib.sha256(file.read_bytes()).digest()).decode("ascii")
