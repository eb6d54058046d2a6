"""The measuring process on a GPU: driver and context come up in a thread, beside all that `worker` imports."""

from __future__ import annotations

from multiprocessing.connection import Connection

from sparsegen.backends.cuda import early_init


def serve(connection: Connection, index: int) -> None:
    """See `worker.serve`.

    Args:
        index: number of the GPU, as the driver counts them.
    """
    early_init.begin(index)
    from sparsegen.measure import worker

    worker.serve(connection)
