"""The operand ``scale``, which an operator keeps for every call."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sparsegen import arguments


def kept_scale(given: Mapping[str, object], default: float) -> dict[str, object]:
    """The operand ``scale`` for every call, of what `Problem.kept` takes: one float32.

    Raises:
        ConfigError: it is no finite number.
    """
    return {"scale": np.array([arguments.factor(given.get("scale", default), "scale")], dtype=np.float32)}
