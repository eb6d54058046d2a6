"""The treatment of the part of a result that a mask leaves out."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from sparsegen.errors import OperandError


class Rest(StrEnum):
    """The treatment of outputs that the mask leaves out: they are written, or left as they were."""

    FILLED = "filled"
    KEPT = "kept"

    @property
    def left(self) -> float:
        """The reference's value there: zero, or NaN, with which outputs are filled before they are verified."""
        return np.nan if self is Rest.KEPT else 0.0

    def require_out(self, out: object) -> None:
        """A call must bring the result's array if some of it is left as it was.

        Raises:
            OperandError: it brings none.
        """
        if out is None and self is Rest.KEPT:
            raise OperandError(
                "rest = kept leaves outputs as they were: pass the array that has them as out="
            )
