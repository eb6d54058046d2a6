"""Write what `benchmarks.add_baselines` recorded for the peer lists as a result file.

    python -m benchmarks.vendor_baselines tuned.db

Each way of each library was timed right after its own preprocessing, in a process that ran nothing else. No GPU is
needed to read it.
"""

from __future__ import annotations

import json

import click

from benchmarks.common import peer_workloads, result_folder
from sparsegen.operators import DType
from sparsegen.tuning_db.store import Store


@click.command()
@click.argument("database", type=click.Path(exists=True))
def main(database: str) -> None:
    with Store.open(database) as store:
        # By sizes and sparsity: NumPy's generators do not draw the same pattern in every version.
        found = {
            (b.workload.problem, round(1 - b.workload.features.density, 2), b.contender): b
            for b in store.all_baselines()
        }
    rows = []
    for peer, _ in peer_workloads(["rnn", "transformer"]):
        for dtype in (DType.FLOAT32, DType.FLOAT16):
            for contender in ("cublas", "cusparse"):
                baseline = found[peer.problem(dtype), peer.sparsity, contender]
                rows.append(
                    {
                        "workload": str(peer),
                        "dtype": str(dtype),
                        "contender": contender,
                        "version": baseline.version,
                        "us": round(baseline.sample.median_us, 2),
                        "low_us": round(baseline.sample.low_us, 2),
                        "high_us": round(baseline.sample.high_us, 2),
                        "samples": baseline.sample.count,
                        "measured_at": baseline.measured_at.isoformat(timespec="seconds"),
                    }
                )
    device = next(iter(found.values())).device
    document = {"benchmark": "vendor_baselines", "device": device.name, "rows": rows}
    path = result_folder(device) / "vendor_baselines.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    click.echo(f"{len(rows)} baselines in {path.name}")


if __name__ == "__main__":
    main()
