"""Rules that restrict choices, whatever was measured: pins, and the demand for equal bits on every call."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparsegen.settings import Settings
from sparsegen.system.compared import Compared
from sparsegen.tuning_db.pins import Pins, pins_path
from sparsegen.tuning_db.project import is_there, is_trusted


@dataclass(frozen=True, eq=False, repr=False)
class Rules(Compared):
    """Rules that apply to all layers.

    Attributes:
        deterministic: admit only variants that give equal bits for equal inputs on every call
            (`Family.is_deterministic`).
    """

    pins: Pins = field(default_factory=Pins)
    deterministic: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        """Raises PinsError where the pins cannot be read."""
        return cls(_pins(settings), settings.deterministic)


def _pins(settings: Settings) -> Pins:
    """The pins that hold here. The project's are passed over, with a warning, where others could have written them."""
    path = pins_path(settings)
    if settings.pins is None and not is_trusted(path):
        return Pins()
    if not is_there(path):
        return Pins(place=path)
    from sparsegen.tuning_db.pins_file import read_pins

    return read_pins(path)


NO_RULES = Rules()
