"""Block masks that change with every call: their tensors, products, and structured dropout."""
