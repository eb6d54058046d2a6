"""Predicted times of variants, apart from the measured ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

REFERENCES = {
    "device_id": "devices",
    "matrix_id": "matrices",
    "problem_id": "problems",
    "variant_id": "variants",
}


def upgrade() -> None:
    op.create_table(
        "predictions",
        sa.Column("id", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in REFERENCES),
        sa.Column("predicted_us", sa.Double(), nullable=False),
        sa.Column("basis", sa.String(20), nullable=False),
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("registers", sa.Integer(), nullable=True),
        sa.Column("spill_bytes", sa.Integer(), nullable=True),
        sa.Column("predicted_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_predictions"),
        *(
            sa.ForeignKeyConstraint([name], [f"{table}.id"], name=f"fk_predictions_{name}")
            for name, table in REFERENCES.items()
        ),
        sa.UniqueConstraint(
            "problem_id", "matrix_id", "device_id", "variant_id", "predicted_at", name="uq_predictions"
        ),
        sa.CheckConstraint("basis IN ('model', 'scaled')", name="basis"),
    )
    op.create_index("ix_predictions_device_id_matrix_id", "predictions", ["device_id", "matrix_id"])
