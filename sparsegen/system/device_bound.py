"""Objects that hold a device's memory: copies are refused in words, before Python fails at a pointer within."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from sparsegen.errors import OperandError


class DeviceBound:
    """Base class of objects that are prepared for one device in one process, and are neither pickled nor copied.

    Attributes:
        instead: advice what to do in place of a copy.
    """

    instead: ClassVar[str] = "prepare it again where it is needed"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """
        Raises:
            OperandError: always; the message says what to do.
        """
        raise OperandError(
            f"{type(self).__name__} holds memory of its device, and is neither pickled nor copied: {self.instead}"
        )
