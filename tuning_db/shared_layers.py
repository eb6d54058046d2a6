"""The open databases of this process: opened once, and again when one of their files has changed."""

from __future__ import annotations

import threading
from pathlib import Path

from sparsegen import arguments
from sparsegen.kernels.base import Device
from sparsegen.settings import Settings, absolute
from sparsegen.tuning_db.layer import with_rates
from sparsegen.tuning_db.layers import Layers, files_state, open_layers

_layers: dict[str, tuple[object, Layers]] = {}
_lock = threading.Lock()


def place_of(db: str | Path | None) -> str | Path | None:
    """Returns a caller's location of the database; raises ConfigError for an invalid one."""
    return None if db is None else arguments.location(db, "db")


def described(device: Device, db: str | Path | None = None) -> Device:
    """The device with the rates that a tuning database has of it; as it is where none has."""
    return with_rates(device, shared_layers(db))


def shared_layers(db: str | Path | None) -> Layers:
    """The open databases, opened again when one of their files has changed."""
    settings, db = Settings.from_environment(), place_of(db)
    key = f"{db or settings.db} {absolute(Path())}"
    with _lock:
        state = files_state(settings, db)
        kept = _layers.get(key)
        if kept is not None and kept[0] == state:
            return kept[1]
        layers = open_layers(settings, db)
        if kept is not None:
            kept[1].close()  # a look-up under way keeps its connection until it is done
        _layers[key] = (state, layers)
        return layers
