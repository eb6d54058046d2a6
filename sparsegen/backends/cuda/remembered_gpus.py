"""Descriptions of the GPUs by the driver, kept in the cache: look-ups need them, and not the driver.

The driver takes longer to come up than all else that a look-up does. What is kept belongs to one `Identity`; another
driver, other GPUs or another environment have a file of their own. If the driver is already initialised, it is asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path

from sparsegen.backends.cuda import early_init
from sparsegen.backends.cuda.identity import Identity, identity
from sparsegen.errors import CacheError
from sparsegen.kernels.base import Device
from sparsegen.settings import Settings
from sparsegen.system.loggers import logger
from sparsegen.system.private import private_folder

FOLDER, SUFFIX = "devices", ".gpus"  # in the cache
MOST_FILES = 64  # hosts that share a home folder, and environments, each have one


def recall() -> list[Device]:
    """The GPUs in the driver's order, where they are known without it; else none."""
    is_loaded = early_init.is_loaded()
    if is_loaded and not early_init.is_starting():
        return []  # it answers at once, and what it saw when it started may be another environment
    known = identity()
    if known is None or (is_loaded and known != early_init.identity_at_start()):
        return []
    return _read(known)


def keep(devices: Sequence[Device]) -> None:
    """Remember what the driver has just said; where it said otherwise before, that is forgotten.

    Nothing is kept where the environment may have been another one when the driver of this process started, nor of
    parts of GPUs, whose UUIDs Linux does not tell. A cache that cannot be written keeps nothing.
    """
    known = early_init.identity_at_start()
    if known is not None:
        told = all(device.uuid in known.uuids for device in devices)
        _keep_once(known, _text(known, devices) if devices and told else None)


@cache
def _keep_once(known: Identity, text: str | None) -> None:
    if known != identity():
        return
    file = _file(known)
    try:
        before = file.read_text(encoding="utf-8", errors="replace") if file.exists() else None
        if text == before:
            return
        if before is not None and _body(known, before) is not None:
            logger(__name__).warning(
                "%s does not describe this host's GPUs as their driver does; it is replaced", file
            )
        if text is None:
            file.unlink()
            return
        from sparsegen.system.publish import publish_text

        private_folder(file.parent.parent)
        private_folder(file.parent)
        publish_text(file, text)
        _forget_oldest(file.parent)
    except (CacheError, OSError) as error:
        logger(__name__).info(
            "look-ups of other processes have to ask the driver, as nothing can be kept: %s", error
        )


def _forget_oldest(folder: Path) -> None:
    ages = {}
    for file in folder.glob(f"*{SUFFIX}"):
        with suppress(FileNotFoundError):
            ages[file] = file.stat().st_mtime
    for file in sorted(ages, key=ages.__getitem__)[:-MOST_FILES]:
        file.unlink(missing_ok=True)


def _read(known: Identity) -> list[Device]:
    """Returns the devices kept under an identity; empty if the file is damaged, or others could have written it."""
    file = _file(known)
    try:
        if not file.is_file():
            return []
        private_folder(file.parent.parent)
        private_folder(file.parent)
        body = _body(known, file.read_text(encoding="utf-8", errors="replace"))
    except (CacheError, OSError) as error:
        logger(__name__).info("the driver is asked, as %s cannot be used: %s", file, error)
        return []
    if body is None:
        logger(__name__).info("the driver is asked, as %s is damaged", file)
        return []
    listed = [dict(entry) for entry in json.loads(body)]
    return [Device(**{**entry, "compute_capability": tuple(entry["compute_capability"])}) for entry in listed]


def _file(known: Identity) -> Path:
    return Settings.from_environment().cache / FOLDER / f"{known.digest}{SUFFIX}"


def _text(known: Identity, devices: Sequence[Device]) -> str:
    """The devices as one line of JSON, behind a line that says whether it is whole."""
    body = json.dumps([asdict(device) for device in devices])
    return f"{_seal(known, body)}\n{body}\n"


def _body(known: Identity, text: str) -> str | None:
    """The JSON of a file's text; None where it is not as `_text` made it."""
    seal, _, rest = text.partition("\n")
    body = rest.removesuffix("\n")
    return body if seal == _seal(known, body) else None


def _seal(known: Identity, body: str) -> str:
    """A digest over what is kept, for whom, and in which fields."""
    names = [field.name for field in fields(Device)]
    return hashlib.sha256("\n".join((known.digest, *names, body)).encode()).hexdigest()
