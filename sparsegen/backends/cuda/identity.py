"""Identity of the GPUs that the driver will number, read from Linux: no driver is called, and none is loaded.

Everything that could change the answer is part of it. There is none if something is missing, unreadable or assigned by
others than the driver.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from sparsegen import __version__
from sparsegen.settings import Settings, driver_environment

PROC, DEV, MPS = Path("/proc/driver/nvidia"), Path("/dev"), Path("/tmp/nvidia-mps")
COMMON_NODES = {"nvidiactl", "nvidia-uvm"}  # device nodes shared by all GPUs
COMMON_CAPABILITIES = {"nvidia-cap0", "nvidia-cap1", "nvidia-cap2"}  # of every driver; MIG adds others
_GPU_NODE = re.compile(r"nvidia\d+")
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\s*$", re.MULTILINE)


class Identity(NamedTuple):
    """GPUs, driver, and what decides which of them a process sees in which order.

    Attributes:
        digest: equal where all of it is; SHA-256 in hexadecimal digits.
        uuids: UUIDs of this host's GPUs, as in `sparsegen.kernels.base.Device`.
    """

    digest: str
    uuids: frozenset[str]


def identity() -> Identity | None:
    """Returns the identity of the present environment; None if it does not tell which GPUs the driver will number.

    This is the case without a driver, before the GPUs were first used after a boot, with MIG (parts of GPUs have names
    of their own), and with MPS (whose daemon chooses the GPUs, and how many of their multiprocessors a process has).
    """
    try:
        version = (PROC / "version").read_text(encoding="utf-8", errors="replace")
        gpus = {
            gpu.name: (gpu / "information").read_text(encoding="utf-8", errors="replace")
            for gpu in (PROC / "gpus").iterdir()
        }
        nodes = _open_nodes()
    except (OSError, UnicodeDecodeError):
        return None
    asked, environment = _asked_through(), driver_environment()
    if asked is None or _is_shared_out(environment):
        return None
    uuids = [match[1] for match in map(_UUID.search, gpus.values()) if match]
    is_whole = bool(gpus) and len(set(uuids)) == len(gpus)
    if not is_whole or "nvidiactl" not in nodes or nodes.keys() <= COMMON_NODES:
        return None
    facts = [__version__, asked, version, gpus, nodes, environment]
    text = json.dumps(facts, sort_keys=True)
    return Identity(hashlib.sha256(text.encode()).hexdigest(), frozenset(uuids))


def _asked_through() -> list[Any] | None:
    """Returns the interface to the driver that `runtime.driver` would use; None if it has none."""
    setting = Settings.from_environment().driver
    if setting != "pycuda":
        return [setting] if setting == "direct" else None
    try:
        found = find_spec(setting)
    except (ImportError, ValueError):
        return None
    return None if found is None else [setting, found.origin]


def _is_shared_out(environment: dict[str, str]) -> bool:
    """True if MPS or MIG may be in use."""
    if MPS.exists() or any(name.startswith("CUDA_MPS_") for name in environment):
        return True
    if "MIG" in environment.get("CUDA_VISIBLE_DEVICES", "").upper():
        return True
    if any((PROC / "capabilities").glob("gpu*/mig/gi*")):
        return True
    return any(node.name not in COMMON_CAPABILITIES for node in (DEV / "nvidia-caps").glob("nvidia-cap*"))


def _open_nodes() -> dict[str, int]:
    """Names and numbers of the driver's device nodes that this process may open; `access` obeys control groups too."""
    found = {}
    for node in os.scandir(DEV):
        is_one = node.name in COMMON_NODES or _GPU_NODE.fullmatch(node.name)
        if is_one and os.access(node.path, os.R_OK | os.W_OK, effective_ids=True):
            found[node.name] = node.stat().st_rdev
    return found
