"""Errors of a recommender at its known ratings: a product of factors, computed where there is a rating (SDDMM).

python examples/sampled_product.py
"""

import numpy as np
import scipy.sparse

import sparsegen

USERS, FILMS, FACTORS = 300, 200, 16
rng = np.random.default_rng(0)
ratings = scipy.sparse.random(USERS, FILMS, 0.05, format="csr", dtype=np.float32, rng=rng)
p = 0.1 * rng.standard_normal((USERS, FACTORS), dtype=np.float32)
q = 0.1 * rng.standard_normal((FILMS, FACTORS), dtype=np.float32)

predict = sparsegen.prepare(ratings, operator="sddmm", k=FACTORS)
of_users = sparsegen.prepare(ratings, n=FACTORS)
of_films = sparsegen.prepare(ratings, n=FACTORS, transpose=True)

for step in range(4):  # gradient descent on the factors; no dense users × films matrix anywhere
    error = ratings.data - predict(p, q)
    print(f"step {step}: mean squared error {np.square(error).mean():.4f}")
    for product in (of_users, of_films):
        product.update_values(error)
    p, q = p + 0.3 * of_users(q), q + 0.3 * of_films(p)
