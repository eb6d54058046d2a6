"""Description of a job: workloads, each with a list of candidates, for devices of one kind, within a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from sparsegen import __version__, backends
from sparsegen.errors import BundleError, ConfigError
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.tuning.prediction.targets import named_target, targets
from sparsegen.tuning_db.config_reader import read_config
from sparsegen.tuning_db.conversion import described
from sparsegen.tuning_db.json_reader import HEX, Node, parse_json
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.record_json import read_device, read_workload, workload_dict
from sparsegen.tuning_db.records import Workload

FORMAT, VERSION = "sparsegen-job", 1
MOST_WORKLOADS, MOST_CANDIDATES = 4096, 4096
LONGEST_BUDGET = 30 * 86400.0  # seconds
LONGEST_FINGERPRINT = 1000  # characters of a toolchain's


@dataclass(frozen=True, slots=True)
class Candidate:
    """A config to be measured.

    Attributes:
        source: the digest of its source (`backends.precompiled.source_digest`), which names it in the bundle.
    """

    config: Config
    source: str


@dataclass(frozen=True, slots=True)
class Task:
    """One workload of a job.

    Attributes:
        pattern: the SHA-256 of the file with the matrix, which tasks share; empty for a problem without a pattern.
        has_values: true if that holds the matrix's own values; else they are drawn at random.
    """

    workload: Workload
    pattern: str
    has_values: bool
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """Everything to be measured.

    Attributes:
        target: the device that the candidates were chosen for; others of its backend and compute capability will do.
        compiler: the fingerprint of the toolchain that compiled the kernels; empty if the bundle has sources alone.
        seconds: time for all of it.
        version: version of the sparsegen that made it.
    """

    target: Device
    compiler: str
    seconds: float
    made_at: datetime
    tasks: tuple[Task, ...]
    version: str = field(default=__version__)

    def fits(self, device: Device) -> bool:
        """True if a device may run it."""
        return (device.backend, device.compute_capability) == (
            self.target.backend,
            self.target.compute_capability,
        )


def dump(job: Job) -> str:
    """The job as JSON; `load` is the inverse."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "sparsegen": job.version,
        "made_at": job.made_at.isoformat(),
        "target": described(job.target),
        "compiler": job.compiler,
        "seconds": job.seconds,
        "tasks": [
            {
                "workload": workload_dict(task.workload),
                "pattern": task.pattern,
                "has_values": task.has_values,
                "candidates": [
                    {"family": c.config.family_name, "config": c.config.to_dict(), "source": c.source}
                    for c in task.candidates
                ],
            }
            for task in job.tasks
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def load(text: str, source: str) -> Job:
    """The job of a document, every value checked.

    Args:
        source: its place, for complaints.

    Raises:
        BundleError: it names the place in the document.
    """
    root = parse_json(text, source, BundleError)
    head = root.members()
    if "format" not in head or head["format"].value != FORMAT:
        raise BundleError(f"{source}: this is no job of sparsegen")
    if "version" not in head or head["version"].value != VERSION:
        (head.get("version") or root).refuse(f"version {VERSION}; another needs another sparsegen")
    names = ("format", "version", "sparsegen", "made_at", "target", "compiler", "seconds", "tasks")
    f = root.fields(names)
    seconds = f["seconds"].number(above=True)
    if seconds > LONGEST_BUDGET:
        f["seconds"].refuse(f"at most {LONGEST_BUDGET:g} seconds")
    return Job(
        target=read_device(f["target"]),
        compiler=f["compiler"].text(LONGEST_FINGERPRINT),
        seconds=seconds,
        made_at=f["made_at"].moment(),
        tasks=tuple(_tasks(f["tasks"])),
        version=f["sparsegen"].text(40),
    )


def _tasks(node: Node) -> Iterable[Task]:
    nodes = _bounded(node, MOST_WORKLOADS)
    if not nodes:
        node.refuse("at least one workload")
    seen: set[object] = set()
    for one in nodes:
        f = one.fields(("workload", "pattern", "has_values", "candidates"))
        workload = read_workload(f["workload"])
        if (workload.problem, workload.fingerprint) in seen:
            one.refuse("a workload listed once")
        seen.add((workload.problem, workload.fingerprint))
        candidates = tuple(_candidate(c, workload) for c in _bounded(f["candidates"], MOST_CANDIDATES))
        if len({c.config for c in candidates}) != len(candidates) or not candidates:
            f["candidates"].refuse("candidates, each listed once")
        pattern = f["pattern"].text(64, HEX if workload.problem.has_pattern else "")
        yield Task(workload, pattern, f["has_values"].boolean(), candidates)


def _bounded(node: Node, most: int) -> list[Node]:
    nodes = list(node.items())
    if len(nodes) > most:
        node.refuse(f"at most {most} of them")
    return nodes


def _candidate(node: Node, workload: Workload) -> Candidate:
    f = node.fields(("family", "config", "source"))
    config = read_config(f["family"], f["config"], workload.problem)
    return Candidate(config, f["source"].text(64, HEX))


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
