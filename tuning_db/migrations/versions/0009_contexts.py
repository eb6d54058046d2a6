"""Adds the context of a probe: attention's steps and whole models are raced, too."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

NAME = "ck_probes_task"
TASKS = "task IN ('product', 'convolution', 'dropout', 'seeded-dropout', 'attention', 'model')"


def upgrade() -> None:
    # SQLite cannot change a constraint: there the table is copied.
    with op.batch_alter_table("probes") as probes:
        probes.add_column(sa.Column("context", sa.String(64), nullable=False, server_default=""))
    with op.batch_alter_table("probes") as probes:
        probes.drop_constraint(op.f(NAME), type_="check")
        probes.create_check_constraint(op.f(NAME), TASKS)
        probes.alter_column("context", existing_type=sa.String(64), server_default=None)
