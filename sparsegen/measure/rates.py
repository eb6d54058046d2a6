"""Measured rates of a CUDA device: copying, dense products, and the time of a kernel that does nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sparsegen.backends.cuda.runtime import CudaExecutor
from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.measure.baselines import cublas
from sparsegen.measure.baselines.libraries import LibraryUnavailableError, VendorError
from sparsegen.measure.clock import Call, Clock, Timing
from sparsegen.measure.l2 import L2
from sparsegen.measure.timing_kernels import Copier, Spinner

logger = logging.getLogger(__name__)

COPY_BYTES = 1 << 30  # twenty times the largest L2
PRODUCT_SIZE = 8192
SAMPLES = 15
LEAD_US = 20.0  # lead for one launch


class Arithmetic(StrEnum):
    """Arithmetic of products: the row's dtype, or TF32 on float32 data."""

    FLOAT32 = "float32"
    TF32 = "tf32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """Measured rates, perhaps not all of `Rates`.

    Attributes:
        copy_bytes_per_us: bytes read + bytes written of a device-to-device copy.
        flop_per_us: rate of a large dense product, for each arithmetic that there is a library for.
        launch_us: time of a kernel that does nothing.
        clock_mhz: clock during the copies; None if NVML does not tell.
    """

    copy_bytes_per_us: float
    flop_per_us: Mapping[Arithmetic, float]
    launch_us: float
    clock_mhz: float | None

    def complete(self, device: Device) -> Rates | None:
        """All of them, with the expected clock where none was read; None where a product is missing."""
        if set(self.flop_per_us) != set(Arithmetic):
            return None
        return Rates(
            copy_bytes_per_us=self.copy_bytes_per_us,
            float32_flop_per_us=self.flop_per_us[Arithmetic.FLOAT32],
            tf32_flop_per_us=self.flop_per_us[Arithmetic.TF32],
            float16_flop_per_us=self.flop_per_us[Arithmetic.FLOAT16],
            bfloat16_flop_per_us=self.flop_per_us[Arithmetic.BFLOAT16],
            launch_us=self.launch_us,
            clock_mhz=self.clock_mhz or device.expected_rates.clock_mhz,
        )


def measure_rates(executor: CudaExecutor) -> MeasuredRates:
    """Measures the device's rates: at most half a minute's work of the host, and half a second of the device.

    Raises:
        LaunchError: the device has not the memory for it, 2 GiB.
    """
    clock, spinner = Clock(executor), Spinner(executor)
    lead, nothing = spinner.spin(LEAD_US), spinner.spin(0.0)

    def timed(call: Call, l2: L2) -> Timing:
        return clock.time(call, samples=SAMPLES, l2=l2, lead=lead)

    copy = timed(Copier(executor, COPY_BYTES), L2.WARM)
    products = {}
    try:
        for arithmetic, product in cublas.square_products(executor, PRODUCT_SIZE):
            products[Arithmetic(arithmetic)] = 2 * PRODUCT_SIZE**3 / timed(product, L2.WARM).median_us
    except (LibraryUnavailableError, VendorError) as error:
        logger.warning("the rate of dense products is not known: %s", error)
    return MeasuredRates(
        copy_bytes_per_us=2 * COPY_BYTES / copy.median_us,
        flop_per_us=products,
        launch_us=timed(nothing, L2.COLD).median_us,
        clock_mhz=copy.clock_mhz,
    )
