"""The tuning database, installed as ``sparsegen.tuning_db``."""
