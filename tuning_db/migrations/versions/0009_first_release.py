"""The schema of the first release: fields of problems without their defaults, and probes of all that is raced."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0006"
branch_labels = None
depends_on = None

EVERY = {"dtype": "float32", "batch": 1}
FILTER = {"filter_size": "3x3", "stride": "1x1", "padding": "1x1", "dilation": "1x1", "groups": 1}
MASKED = {"block": "128x128", "density": 0.5, "factor_type": "same"}
IMAGES = {**FILTER, "mask_block": "16x16", "density": 0.5}
POINTS = {"filter_volume": "3x3x3", "density": 0.3}
DEFAULTS: dict[str, dict[str, Any]] = {  # of that time's operators, besides EVERY
    "spmm": {"layout": "row", "epilogue": "none", "item_values": "shared"},
    "dsd": {**MASKED, "w_layout": "row", "epilogue": "none"},
    "dsd_transposed": {**MASKED, "y_layout": "row"},
    "sdd": {**MASKED, "w_layout": "row", "rest": "filled"},
    "masked_conv2d": {
        **IMAGES, "mask_of": "output", "rest": "filled", "epilogue": "none", "layout": "nhwc", "given": "latest",
    },
    "masked_conv2d_weights": IMAGES,
    "sddmm": {"epilogue": "none"},
    "sparse_softmax": {},
    "sparse_softmax_backward": {},
    "sparse_attention": {},
    "sparse_network": {"activation": "relu", "readout": "neurons"},
    "submanifold_conv3d": {**POINTS, "epilogue": "none"},
    "submanifold_conv3d_weights": POINTS,
}  # fmt: skip
KEY = ["problem_id", "matrix_id", "device_id", "variant_id", "measured_as", "called", "task", "measured_at"]
# Lengths, and what old probes have.
ADDED = {"called": (20, "device"), "task": (20, "product"), "context": (64, "")}
CHECKS = {
    "called": "called IN ('host', 'device')",
    "task": "task IN ('product', 'convolution', 'dropout', 'seeded-dropout', 'attention', 'model')",
}
PROBLEMS = sa.table("problems", *map(sa.column, ("id", "operator", "fields", "digest")))


def upgrade() -> None:
    _leave_defaults_out()
    _add_races()


def _add_races() -> None:
    # SQLite cannot change a constraint: there the table is copied.
    with op.batch_alter_table("probes") as probes:
        for name, (length, old) in ADDED.items():
            probes.add_column(sa.Column(name, sa.String(length), nullable=False, server_default=old))
    with op.batch_alter_table("probes") as probes:
        probes.drop_constraint("uq_probes", type_="unique")
        probes.create_unique_constraint("uq_probes", KEY)
        for name, condition in CHECKS.items():
            probes.create_check_constraint(op.f(f"ck_probes_{name}"), condition)
        for name, (length, _) in ADDED.items():
            probes.alter_column(name, existing_type=sa.String(length), server_default=None)


def _leave_defaults_out() -> None:
    """Rewrite what sparsegen wrote; rows of other operators, and of other forms, stay as they are."""
    connection = op.get_bind()
    rows = connection.execute(sa.select(PROBLEMS)).mappings().all()
    taken = {row["digest"] for row in rows}
    for row in rows:
        operator = row["operator"]
        if operator not in DEFAULTS or row["digest"] != digest_of(operator, row["fields"]):
            continue
        try:
            written = dict(json.loads(row["fields"]))
        except (TypeError, ValueError):
            continue
        defaults = EVERY | DEFAULTS[operator]
        fields = {name: value for name, value in written.items() if value != defaults.get(name)}
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        digest = digest_of(operator, text)
        if digest not in taken:
            found = sa.update(PROBLEMS).where(PROBLEMS.c.id == row["id"])
            connection.execute(found.values(fields=text, digest=digest))
            taken.add(digest)


def digest_of(operator: str, fields: str) -> str:
    """Returns the key of a problem's row."""
    return hashlib.sha256(f"{operator} {fields}".encode()).hexdigest()
