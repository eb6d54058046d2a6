"""Memory order of dense operands and results."""

from __future__ import annotations

from enum import StrEnum


class Layout(StrEnum):
    """Memory order of the dense operands B and C.

    ``ROW``: B is k × n and C is m × n, both row-major. ``COLUMN``: the same matrices column-major, which
    is n × k and n × m row-major: activations as tokens × features, so a linear layer needs no transpose.
    """

    ROW = "row"
    COLUMN = "column"
