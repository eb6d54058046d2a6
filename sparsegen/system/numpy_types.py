"""NumPy's arrays and types of elements, as annotations name them where any type of element may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
NumpyType = np.dtype[Any]
