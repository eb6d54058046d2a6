"""The packer of lane streams on the device: the masks, where each lane is before each tile, then every nonzero."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparsegen.kernels.layouts.lane_stream import (
    LANES,
    ORDERS_AT_ONCE,
    PAIR,
    TILES_PER_STEP,
    Partition,
    pairs_of,
    starts_of,
)
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import DType
from sparsegen.system.device_memory import Buffer, PlainDevice
from sparsegen.system.integers import round_up

FILE = "lane_stream.cu"


class DeviceStreams(NamedTuple):
    """A packed pattern, and what its streams are filled from.

    Attributes:
        pattern: parts of partition and matrix that the kernels take.
        masks, orders, starts: see `LaneStreams`.
        positions: int32 [steps of all groups, warps, lanes, 2], where in its stream a lane is before each tile.
        rows: the order of rows, or a single zero.
        head_pairs: see `sparsegen.kernels.layouts.lane_stream.pack`.
        stored: elements of all streams.
    """

    device: PlainDevice
    partition: Partition
    pattern: tuple[Buffer | int, ...]
    masks: Buffer
    orders: Buffer
    positions: Buffer
    starts: Buffer
    rows: Buffer
    head_pairs: int
    stored: int

    @classmethod
    def of(
        cls,
        device: PlainDevice,
        matrix: CsrMatrix,
        partition: Partition,
        *,
        refill_tiles: int,
        ring_rows: int,
        head_pairs: int,
        rows: Array | None,
    ) -> DeviceStreams:
        """Send the pattern and find out how long each stream is; see `sparsegen.kernels.layouts.lane_stream.pack`.

        Raises:
            MatrixError: the values pass the 32-bit range of their numbers.
            LaunchError: the device has not enough memory.
        """
        p, words = partition, partition.total * partition.warps * LANES * TILES_PER_STEP
        blocks, streams = p.used_blocks, p.used_blocks * p.warps
        row_order = device.upload(np.zeros(0, dtype=np.int32) if rows is None else rows)
        pattern = (
            int(rows is not None),
            device.upload(matrix.row_offsets),
            device.upload(matrix.column_indices),
            row_order,
        )
        masks, positions = device.filled(4 * max(1, words)), device.filled(4 * words)
        orders_of_step = round_up(p.warps, ORDERS_AT_ONCE)
        orders, farthest = device.filled(4 * max(1, p.total * orders_of_step)), device.filled(4 * streams)
        sizes = (p.m, p.total, p.steps, p.warps_m, p.warps_k)
        device.run(f"{FILE}:lane_stream_masks", p.total * p.warps, *sizes, *pattern, masks)
        rings = (blocks, p.total, p.warps, orders_of_step, refill_tiles, ring_rows)
        device.run(f"{FILE}:lane_stream_positions", streams, *rings, masks, positions, orders, farthest)
        reached = device.download(farthest, streams, np.int32)
        starts = starts_of(pairs_of(reached), head_pairs, matrix.nnz)
        return cls(
            device,
            partition,
            (*sizes, blocks, *pattern),
            masks,
            orders,
            positions,
            device.upload(starts),
            row_order,
            head_pairs,
            int(starts[-1]) * PAIR * LANES,
        )

    def values(self, values: Array, dtype: DType) -> Buffer:
        """The streams of values, float16 or bfloat16; ``values`` are float32 or float64, in CSR order."""
        if values.dtype != np.float32:
            values = dtype.from_storage(dtype.to_storage(values)).astype(np.float32)
        packed = self.device.filled(2 * max(1, self.stored))
        self._scatter(f"lane_stream_{dtype}", self.device.upload(values), packed)
        return packed

    def source(self) -> Buffer:
        """int32: of each stored element the nonzero's number in CSR order, or -1."""
        source = self.device.filled(4 * max(1, self.stored), 0xFF)
        self._scatter("lane_stream_source", source)
        return source

    def _scatter(self, entry: str, *buffers: Buffer) -> None:
        p = self.partition
        arguments = (*self.pattern, self.positions, self.head_pairs, self.starts, *buffers)
        self.device.run(f"{FILE}:{entry}", p.total * p.warps, *arguments)
