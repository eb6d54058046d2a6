"""Networks laid out for kernels, within a budget of memory."""
