"""What a CUDA device reaches: copying, dense products, and the time of a kernel that does nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegen.backends.cuda.runtime import CudaExecutor
from sparsegen.backends.executor import Timing
from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.measure.baselines import cublas
from sparsegen.measure.baselines.libraries import LibraryUnavailableError, VendorError
from sparsegen.measure.device_work import Copier, Spinner

logger = logging.getLogger(__name__)

COPY_BYTES = 1 << 30  # twenty times the largest L2
PRODUCT_SIZE = 8192
SAMPLES = 15
LEAD_US = 20.0  # for one launch


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """What was measured, which may be not all of `Rates`.

    Attributes:
        flop_per_us: of a large dense product, for each arithmetic that there is a library for: ``"float32"``,
            ``"tf32"``, ``"float16"``, ``"bfloat16"``.
        clock_mhz: while it copied; None where NVML does not say.
    """

    copy_bytes_per_us: float
    flop_per_us: Mapping[str, float]
    launch_us: float
    clock_mhz: float | None

    def complete(self, device: Device) -> Rates | None:
        """All of them, with the expected clock where none was read; None where a product is missing."""
        try:
            return Rates(
                copy_bytes_per_us=self.copy_bytes_per_us,
                float32_flop_per_us=self.flop_per_us["float32"],
                tf32_flop_per_us=self.flop_per_us["tf32"],
                float16_flop_per_us=self.flop_per_us["float16"],
                bfloat16_flop_per_us=self.flop_per_us["bfloat16"],
                launch_us=self.launch_us,
                clock_mhz=self.clock_mhz or device.expected_rates.clock_mhz,
            )
        except KeyError:
            return None


def measure_rates(executor: CudaExecutor) -> MeasuredRates:
    """Half a minute's work of the host at the most, half a second of the device.

    Raises:
        LaunchError: the device has not the memory for it, 2 GiB.
    """
    spinner = Spinner(executor)
    lead, empty = spinner.lead(LEAD_US), spinner.lead(0.0)

    def timed(call: Callable[[], Any], *, cold: bool) -> Timing:
        return executor.measure(call, samples=SAMPLES, cold=cold, lead=lead)

    def median(timing: Timing) -> float:
        return float(np.median(timing.samples_us))

    copy = timed(Copier(executor, COPY_BYTES), cold=False)
    products = {}
    try:
        for arithmetic, product in cublas.square_products(executor, PRODUCT_SIZE):
            products[arithmetic] = 2 * PRODUCT_SIZE**3 / median(timed(product, cold=False))
    except (LibraryUnavailableError, VendorError) as error:
        logger.warning("the rate of dense products is not known: %s", error)
    return MeasuredRates(
        copy_bytes_per_us=2 * COPY_BYTES / median(copy),
        flop_per_us=products,
        launch_us=median(timed(empty, cold=True)),
        clock_mhz=copy.clock_mhz,
    )
