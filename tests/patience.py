"""Time limits of tests that hold on a busy machine."""

from __future__ import annotations

import os

LONG = 300.0  # seconds for what ends by an event, and is waited for only if something is broken


def patience(seconds: float) -> float:
    """A limit that a test waits for: as many times longer as there are processes for each core."""
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return round(seconds * max(1.0, waiting), 1)
