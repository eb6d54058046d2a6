"""What devices were measured to do in a microsecond."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

RATES = (
    "copy_bytes_per_us",
    "float32_flop_per_us",
    "tf32_flop_per_us",
    "float16_flop_per_us",
    "bfloat16_flop_per_us",
    "launch_us",
    "clock_mhz",
)


def upgrade() -> None:
    op.create_table(
        "device_rates",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(name, sa.Double(), nullable=False) for name in RATES),
        sa.PrimaryKeyConstraint("id", name="pk_device_rates"),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name="fk_device_rates_device_id"),
        sa.UniqueConstraint("device_id", "measured_at", name="uq_device_rates"),
    )
