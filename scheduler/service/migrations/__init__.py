"""Brings a record's tables to this version, one step after the other (alembic)."""
