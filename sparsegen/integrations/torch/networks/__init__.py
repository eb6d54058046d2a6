"""Sparse networks on several devices of a process group."""
