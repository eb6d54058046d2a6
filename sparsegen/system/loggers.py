"""Loggers of modules that a look-up imports: `logging` takes longer to import than most of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger


def logger(module: str) -> Logger:
    """The logger of a module."""
    import logging

    return logging.getLogger(module)
