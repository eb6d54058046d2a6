"""Attention: over nonzeros or live blocks of masks, and over chosen pages of a cache; its gradients."""

OPERATORS = ("block_attention", "block_attention_backward", "paged_attention", "sparse_attention")
