"""Sparse neural networks as a whole: what they are made of, their files, and inference of all layers at once."""
