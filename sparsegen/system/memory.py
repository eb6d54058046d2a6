"""Memory left to this process: by the kernel, and by its control group's limit."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_GROUPS = (  # limit and use of a control group, as a container sees its own
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def available_bytes() -> int | None:
    """Bytes that can be taken without swapping; None where the system does not say (it is no Linux)."""
    found = [_of_machine(), *(_of_group(*files) for files in _GROUPS)]
    known = [value for value in found if value is not None]
    return max(0, min(known)) if known else None


def _of_machine() -> int | None:
    try:
        for line in _MEMINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _of_group(limit: Path, use: Path) -> int | None:
    try:
        return int(limit.read_text(encoding="utf-8")) - int(use.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no such group, or "max"
        return None
