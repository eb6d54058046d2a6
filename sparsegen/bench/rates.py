"""What the device reaches in this very run: copying, dense products, and a kernel that does nothing."""

from __future__ import annotations

import logging

import numpy as np

from sparsegen.backends.cuda.runtime import CudaExecutor
from sparsegen.bench.device_code import Copier, Spinner
from sparsegen.bench.results import Arithmetic, Floor, Rates
from sparsegen.bench.task import Task
from sparsegen.measure.baselines import cublas
from sparsegen.measure.baselines.libraries import LibraryUnavailableError, VendorError
from sparsegen.operators import DType

logger = logging.getLogger(__name__)

COPY_BYTES = 1 << 30  # twenty times the largest L2
PRODUCT_SIZE = 8192
SAMPLES = 15
LEAD_US = 20.0  # for one launch


def measure_rates(executor: CudaExecutor) -> Rates:
    """Half a minute's work of the host at the most, half a second of the device."""
    spinner = Spinner(executor)
    lead = spinner.lead(LEAD_US)
    empty = spinner.lead(0.0)

    def median(call: object, *, cold: bool) -> float:
        assert callable(call)
        return float(np.median(executor.measure(call, samples=SAMPLES, cold=cold, lead=lead).samples_us))

    copy_us = median(Copier(executor, COPY_BYTES), cold=False)
    rates = {}
    try:
        for arithmetic, product in cublas.square_products(executor, PRODUCT_SIZE):
            rates[Arithmetic(arithmetic)] = 2 * PRODUCT_SIZE**3 / median(product, cold=False) * 1e6
    except (LibraryUnavailableError, VendorError) as error:
        logger.warning("the rate of dense products is not known: %s", error)
    return Rates(
        copy_bytes_per_s=2 * COPY_BYTES / copy_us * 1e6,
        flop_per_s=rates,
        empty_kernel_us=median(empty, cold=True),
    )


def floor_of(task: Task, nnz: int, rates: Rates | None) -> Floor:
    """The least time of a task: its fewest bytes and useful FLOP over the measured rates."""
    cost = task.cost(nnz)
    if rates is None:
        return Floor(cost.bytes, cost.flop)
    flop_rate = rates.flop_per_s.get(_arithmetic(task.dtype))
    return Floor(
        cost.bytes,
        cost.flop,
        memory_us=cost.bytes / rates.copy_bytes_per_s * 1e6,
        compute_us=None if flop_rate is None else cost.flop / flop_rate * 1e6,
    )


def _arithmetic(dtype: DType) -> Arithmetic:
    return Arithmetic(dtype.value)
