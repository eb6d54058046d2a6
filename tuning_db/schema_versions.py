"""The schema versions of the tuning database; `migrations` leads from each to the next."""

from __future__ import annotations

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")  # every schema version, oldest first
HEAD = REVISIONS[-1]
VERSION_TABLE = "sparsegen_version"  # not Alembic's default name, which another application's file may hold
PUBLISHED_TABLE = "published"  # of a layer that `published` wrote, beside the others
TABLES = (  # of the newest version
    "devices",
    "device_rates",
    "matrices",
    "problems",
    "variants",
    "measurements",
    "baselines",
    "probes",
    "checks",
    "predictions",
)
