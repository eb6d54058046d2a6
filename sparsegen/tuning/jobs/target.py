"""The device that a job is for: one that is known by its key, or any of a compute capability."""

from __future__ import annotations

import re

from sparsegen import backends
from sparsegen.errors import ConfigError
from sparsegen.kernels.base import Device
from sparsegen.tuning.prediction.targets import named_target, targets
from sparsegen.tuning_db.layer import Layer

# Shared memory of a block (with the opt-in limit) and of a multiprocessor, and a usual number of multiprocessors and
# size of the L2, by compute capability: CUDA C++ Programming Guide, "Compute Capabilities", and NVIDIA's white papers.
USUAL = {
    (8, 0): (166912, 167936, 108, 40 << 20),
    (8, 6): (101376, 102400, 84, 6 << 20),
    (8, 9): (101376, 102400, 142, 96 << 20),
    (9, 0): (232448, 233472, 132, 50 << 20),
    (10, 0): (232448, 233472, 148, 126 << 20),
    (12, 0): (101376, 102400, 170, 96 << 20),
}
CAPABILITY = re.compile(r"sm_(\d{1,2})(\d)")


def find_target(name: str, known: Layer) -> Device:
    """Finds a device by its key in a database, by the name of a description (``h100``, as for `sparsegen tune --for`),
    ``emulator``, or ``sm_90`` for what is usual with that compute capability.

    Raises:
        ConfigError: the name is unknown; the message lists the known ones.
    """
    if name == "emulator":
        return backends.emulator_device()
    devices = {tuned.device.key: tuned.device for tuned in known.list_workloads()}
    if name in devices:
        return devices[name].typical
    described = named_target(name)
    if described is not None:
        return described.device.typical
    name = name.lower()
    found = CAPABILITY.fullmatch(name)
    capability = (int(found[1]), int(found[2])) if found else None
    if capability not in USUAL:
        usual = ", ".join(f"sm_{major}{minor}" for major, minor in USUAL)
        keys = ", ".join(sorted(devices)) or "none"
        raise ConfigError(
            f"no device {name!r} to make a job for: there are {usual}, emulator, by name {', '.join(targets())}, and "
            f"by key {keys}"
        )
    per_block, per_multiprocessor, multiprocessors, l2_bytes = USUAL[capability]
    return Device(
        key=f"any-{name.replace('_', '')}",
        name=f"any device of compute capability {capability[0]}.{capability[1]}",
        backend="cuda",
        compute_capability=capability,
        multiprocessors=multiprocessors,
        shared_memory_per_block=per_block,
        shared_memory_per_multiprocessor=per_multiprocessor,
        l2_bytes=l2_bytes,
    )
