"""The command line, installed as ``sparsegen.cli``."""
