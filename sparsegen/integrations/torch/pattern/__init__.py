"""Layers and products on one pattern of nonzeros."""
