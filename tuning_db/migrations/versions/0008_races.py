"""Adds the way of calling and the task of a probe: layers are raced as products are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

KEY = ["problem_id", "matrix_id", "device_id", "variant_id", "measured_as", "called", "task", "measured_at"]
CALLED = "called IN ('host', 'device')"
TASKS = "task IN ('product', 'convolution', 'dropout', 'seeded-dropout')"


def upgrade() -> None:
    # SQLite cannot change a constraint: there the table is copied.
    with op.batch_alter_table("probes") as probes:
        probes.add_column(sa.Column("called", sa.String(20), nullable=False, server_default="device"))
        probes.add_column(sa.Column("task", sa.String(20), nullable=False, server_default="product"))
    with op.batch_alter_table("probes") as probes:
        probes.drop_constraint("uq_probes", type_="unique")
        probes.create_unique_constraint("uq_probes", KEY)
        probes.create_check_constraint(op.f("ck_probes_called"), CALLED)
        probes.create_check_constraint(op.f("ck_probes_task"), TASKS)
        for column in ("called", "task"):
            probes.alter_column(column, existing_type=sa.String(20), server_default=None)
