"""Attention: over the nonzeros of a mask, and over live blocks of masks that every call passes; its gradients."""

OPERATORS = ("block_attention", "block_attention_backward", "sparse_attention")
