"""Arrays of JAX and CuPy by DLPack, without a copy: an operator takes what `from_dlpack` sees.

python examples/dlpack_arrays.py

On a GPU CuPy's arrays go in as they are, and JAX's through PyTorch or CuPy; the emulator takes NumPy's.
"""

import importlib.util

import numpy as np
import scipy.sparse

import sparsegen

matrix = scipy.sparse.random(96, 64, 0.2, format="csr", dtype=np.float32, rng=np.random.default_rng(0))
op = sparsegen.prepare(matrix, n=16)
b = np.random.default_rng(1).standard_normal((64, 16), dtype=np.float32)
on_gpu = op.device.backend == "cuda"

if importlib.util.find_spec("jax"):
    import jax.numpy as jnp

    x = jnp.asarray(b)
    if on_gpu:
        import torch

        c = jnp.from_dlpack(op(torch.from_dlpack(x)))
    else:
        c = jnp.from_dlpack(op(np.from_dlpack(x)))
    print(f"JAX: {type(c).__name__} {c.shape}, difference {np.abs(np.asarray(c) - matrix @ b).max():.0e}")
if on_gpu and importlib.util.find_spec("cupy"):
    import cupy

    c = op(cupy.asarray(b))
    print(f"CuPy: {type(c).__name__} {c.shape}, difference {np.abs(cupy.asnumpy(c) - matrix @ b).max():.0e}")
print(f"NumPy: difference {np.abs(op(b) - matrix @ b).max():.0e}")
