"""Sparse networks: layers, the challenge's topologies and images."""
