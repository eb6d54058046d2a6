"""Problems have batches, and say whose values their items have."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BEFORE = ["operator", "dtype", "layout", "epilogue", "m", "k", "n"]


def upgrade() -> None:
    # SQLite cannot change a constraint: there the table is copied, which needs foreign keys to be off.
    with op.batch_alter_table("problems") as problems:
        problems.add_column(sa.Column("batch", sa.Integer(), nullable=False, server_default="1"))
        problems.add_column(sa.Column("item_values", sa.String(20), nullable=False, server_default=""))
        problems.drop_constraint("uq_problems", type_="unique")
        problems.create_unique_constraint("uq_problems", [*BEFORE, "batch", "item_values"])
    op.execute("UPDATE problems SET item_values = 'shared' WHERE operator = 'spmm'")
