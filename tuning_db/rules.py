"""Rules that restrict choices, whatever was measured: pins, and the demand for equal bits on every call."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparsegen.settings import Settings
from sparsegen.tuning_db.pins import Pins, open_pins


@dataclass(frozen=True)
class Rules:
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
        return cls(open_pins(settings), settings.deterministic)


NO_RULES = Rules()
