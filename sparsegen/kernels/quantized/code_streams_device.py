"""The packer of code streams on the device: the masks, where each lane is before each step, then every code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegen.kernels.layouts.lane_stream import LANES, ORDERS_AT_ONCE, Partition
from sparsegen.kernels.quantized.code_streams import AHEAD, ZERO_INT4, Unit, starts_of
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.system.device_memory import Buffer, PlainDevice
from sparsegen.system.integers import round_up

FILE = "code_stream.cu"


@dataclass(frozen=True, slots=True, eq=False)
class DeviceCodeStreams:
    """A packed matrix; see `sparsegen.kernels.quantized.code_streams.CodeStreams`."""

    masks: Buffer
    orders: Buffer
    starts: Buffer
    values: Buffer
    rows: Buffer

    @classmethod
    def of(
        cls,
        device: PlainDevice,
        matrix: CsrMatrix,
        partition: Partition,
        codes: Array,
        *,
        unit: Unit,
        ring_chunks: int,
        depth: int,
        rows: Array | None,
    ) -> DeviceCodeStreams:
        """Send the matrix and lay it out; see `sparsegen.kernels.quantized.code_streams.pack`.

        Args:
            codes: of each nonzero, uint8 in CSR order.

        Raises:
            MatrixError: the codes pass the 32-bit range of their numbers.
            LaunchError: the device has not enough memory.
        """
        p, of_chunk = partition, unit.of_chunk
        streams, lanes = p.used_blocks * p.warps, p.total * p.warps * LANES
        row_order = device.upload(np.zeros(0, dtype=np.int32) if rows is None else rows)
        offsets, columns = device.upload(matrix.row_offsets), device.upload(matrix.column_indices)
        pattern = (int(rows is not None), offsets, columns, row_order)
        masks = device.filled(max(unit.of_tile // 8, lanes * unit.mask_bytes()))
        sizes, warps = (p.m, p.total, p.steps, p.warps_m, p.warps_k), p.total * p.warps
        kind = _kind(unit)
        device.run(f"{FILE}:masks_of_{kind}", warps, *sizes, *pattern, masks)
        positions, orders, chunks = followed(device, masks, p, unit, ring_chunks - depth)
        starts = starts_of(device.download(chunks, streams, np.int32), unit, matrix.nnz)
        starts_there = device.upload(starts)
        nothing = ZERO_INT4 * 0x11 if unit.codes == 2 else 0
        values = device.filled(max(4, int(starts[-1]) * of_chunk * LANES * unit.bits // 8), nothing)
        places = (*sizes, p.used_blocks, *pattern, positions, of_chunk, starts_there)
        device.run(
            f"{FILE}:{kind}_of_{unit.bits // unit.codes}_bits", warps, *places, device.upload(codes), values
        )
        return cls(masks, orders, starts_there, values, row_order)


def followed(
    device: PlainDevice, masks: Buffer, partition: Partition, unit: Unit, kept_chunks: int
) -> tuple[Buffer, Buffer, Buffer]:
    """Have the device follow each stream's masks.

    Args:
        masks: as `CodeStreams` has them.
        kept_chunks: chunks of a ring that are not on their way.

    Returns:
        Where in its stream each lane is before each step, int32 [steps of all groups, warps, lanes]; the orders; and
        the chunks of each stream (int32).

    Raises:
        LaunchError: the device has not enough memory.
    """
    p, orders_of_step = partition, round_up(partition.warps, ORDERS_AT_ONCE)
    streams = p.used_blocks * p.warps
    sizes = p.total * p.warps * LANES, max(1, p.total * orders_of_step), streams
    positions, orders, chunks = (device.filled(4 * size) for size in sizes)
    rings = p.used_blocks, p.total, p.warps, orders_of_step, unit.of_chunk, kept_chunks, AHEAD
    device.run(f"{FILE}:positions_of_{_kind(unit)}", streams, *rings, masks, positions, orders, chunks)
    return positions, orders, chunks


def _kind(unit: Unit) -> str:
    return "pairs" if unit.codes == 2 else "codes"
