"""What the device reaches in this very run: copying, dense products, and a kernel that does nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sparsegen.backends.cuda.runtime import CudaExecutor
from sparsegen.measure.baselines import cublas
from sparsegen.measure.baselines.libraries import LibraryUnavailableError, VendorError
from sparsegen.measure.clock import Call, Clock
from sparsegen.measure.l2 import L2
from sparsegen.measure.timing_kernels import Copier, Spinner

logger = logging.getLogger(__name__)

COPY_BYTES = 1 << 30  # twenty times the largest L2
PRODUCT_SIZE = 8192
SAMPLES = 15
LEAD_US = 20.0  # for one launch


class Arithmetic(StrEnum):
    """How products are formed: the row's dtype, or TF32 on float32 data."""

    FLOAT32 = "float32"
    TF32 = "tf32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device reaches.

    Attributes:
        copy_bytes_per_s: bytes read + bytes written of a device-to-device copy.
        flop_per_s: of a large dense product, for each arithmetic that was measured.
        empty_kernel_us: time of a kernel that does nothing.
    """

    copy_bytes_per_s: float
    flop_per_s: Mapping[Arithmetic, float]
    empty_kernel_us: float


def measure_rates(executor: CudaExecutor) -> Rates:
    """Half a minute's work of the host at the most, half a second of the device."""
    clock, spinner = Clock(executor), Spinner(executor)
    lead, nothing = spinner.spin(LEAD_US), spinner.spin(0.0)

    def median(call: Call, l2: L2) -> float:
        return clock.time(call, samples=SAMPLES, l2=l2, lead=lead).median_us

    copy_us = median(Copier(executor, COPY_BYTES), L2.WARM)
    rates = {}
    try:
        for arithmetic, product in cublas.square_products(executor, PRODUCT_SIZE):
            rates[Arithmetic(arithmetic)] = 2 * PRODUCT_SIZE**3 / median(product, L2.WARM) * 1e6
    except (LibraryUnavailableError, VendorError) as error:
        logger.warning("the rate of dense products is not known: %s", error)
    return Rates(
        copy_bytes_per_s=2 * COPY_BYTES / copy_us * 1e6,
        flop_per_s=rates,
        empty_kernel_us=median(nothing, L2.COLD),
    )
