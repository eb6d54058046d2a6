"""The schema versions of the tuning database; `migrations` leads from each to the next."""

from __future__ import annotations

REVISIONS = (
    "0006",
    "0007",
    "0008",
    "0009",
)  # those that are read, oldest first; no release had an earlier one
HEAD = REVISIONS[-1]
VERSION_TABLE = "sparsegen_version"  # not Alembic's default name, which another application's file may hold
PUBLISHED_TABLE = "published"  # table of a layer that `published` wrote, besides the others
TABLES = (  # tables of the newest version
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
