"""What a time was measured as, and by which driver; probes and checks of what is used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

WORKLOAD = ["problem_id", "matrix_id", "device_id"]
OWN_KEY = {"measurements": ["variant_id"], "baselines": ["contender", "version"]}
LAST = {"measurements": ["final", "measured_at"], "baselines": ["measured_at"]}
KINDS = "measured_as IN ('cold', 'clean', 'warm', 'graph')"


def upgrade() -> None:
    for table, own in OWN_KEY.items():
        # SQLite cannot change a constraint: there the table is copied, which needs foreign keys to be off.
        with op.batch_alter_table(table) as timed:
            timed.add_column(sa.Column("measured_as", sa.String(20), nullable=False, server_default="cold"))
            if table == "measurements":
                timed.add_column(sa.Column("driver", sa.String(40), nullable=False, server_default=""))
        cold = sa.table(table, sa.column("cold", sa.Boolean()), sa.column("measured_as"))
        op.execute(sa.update(cold).where(cold.c.cold.is_(sa.false())).values(measured_as="warm"))
        with op.batch_alter_table(table) as timed:
            timed.drop_column("cold")
            timed.drop_constraint(f"uq_{table}", type_="unique")
            timed.create_unique_constraint(f"uq_{table}", [*WORKLOAD, *own, "measured_as", *LAST[table]])
            timed.create_check_constraint(op.f(f"ck_{table}_measured_as"), KINDS)
            timed.alter_column("measured_as", existing_type=sa.String(20), server_default=None)
            if table == "measurements":
                timed.alter_column("driver", existing_type=sa.String(40), server_default=None)
    op.create_table(
        "probes",
        *observed_columns("probes"),
        sa.Column("sparse_us", sa.Double(), nullable=False),
        sa.Column("dense_us", sa.Double(), nullable=False),
        sa.Column("sample_count", sa.Integer(), nullable=False),
        sa.Column("measured_as", sa.String(20), nullable=False),
        sa.UniqueConstraint(*WORKLOAD, "variant_id", "measured_as", "measured_at", name="uq_probes"),
        sa.CheckConstraint(KINDS, name=op.f("ck_probes_measured_as")),
    )
    op.create_table(
        "checks",
        *observed_columns("checks"),
        sa.Column("outcome", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("worst_error", sa.Double()),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.UniqueConstraint(*WORKLOAD, "variant_id", "driver", "measured_at", name="uq_checks"),
        sa.CheckConstraint("outcome IN ('ok', 'wrong', 'crashed')", name=op.f("ck_checks_outcome")),
    )


def observed_columns(table: str) -> list[sa.schema.SchemaItem]:
    """A variant on a workload, where somebody used it."""
    references = {
        "device_id": "devices.id",
        "matrix_id": "matrices.id",
        "problem_id": "problems.id",
        "variant_id": "variants.id",
    }
    return [
        sa.Column("id", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in references),
        sa.Column("driver", sa.String(40), nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        *(
            sa.ForeignKeyConstraint([name], [target], name=f"fk_{table}_{name}")
            for name, target in references.items()
        ),
    ]
