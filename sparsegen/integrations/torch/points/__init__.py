"""Submanifold convolutions over points."""
