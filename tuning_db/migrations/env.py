"""Alembic's entry point: migrates within the transaction that `upgrade` hands over."""

from __future__ import annotations

from alembic import context

from sparsegen.tuning_db.models import Base
from sparsegen.tuning_db.schema_versions import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
context.run_migrations()
