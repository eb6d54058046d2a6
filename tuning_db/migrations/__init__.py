"""Alembic migrations of the tuning database."""
