"""Shared parts of the families: layouts of matrices, division into tasks, and limits of devices."""
