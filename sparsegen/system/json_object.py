"""JSON as it is written and read: an object, whose members whoever reads it checks."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
