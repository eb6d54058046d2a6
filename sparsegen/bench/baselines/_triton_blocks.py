"""Products with masks in Triton, as PyTorch's users write them: each program walks its tile's list of live blocks.

Loads by pointers, tiles as high as the mask's blocks, programs in groups of rows as in Triton's tutorial on matrix
products. Triton is imported here, so that only a baseline's process imports this.
"""

# mypy: ignore-errors
# ruff: noqa: N803, N806
import triton
import triton.language as tl


@triton.jit
def _place(rows, columns, GROUP: tl.constexpr):
    """Returns row and column of this program's tile among rows × columns: groups of rows, column by column."""
    program = tl.program_id(0)
    first = program // (GROUP * columns) * GROUP
    size = min(rows - first, GROUP)
    within = program % (GROUP * columns)
    return first + within % size, within // size


@triton.jit
def product(
    a, b, c, counts, indices, scale, rows, columns, longest, a_row, a_inner, b_inner, b_column, c_row, c_column,
    HEIGHT: tl.constexpr, INNER: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """C = scale · A · B of the live blocks of A; ``rows`` and ``columns`` count tiles."""
    row, column = _place(rows, columns, GROUP)
    m, n, k = row * HEIGHT + tl.arange(0, HEIGHT), column * TILE + tl.arange(0, TILE), tl.arange(0, STEP)
    of_a, of_b = a + m[:, None] * a_row, b + n[None, :] * b_column
    sums = tl.zeros((HEIGHT, TILE), dtype=tl.float32)
    PARTS: tl.constexpr = INNER // STEP
    for step in range(tl.load(counts + row) * PARTS):
        block = tl.load(indices + row * longest + step // PARTS)
        inner = block * INNER + step % PARTS * STEP + k
        sums = tl.dot(
            tl.load(of_a + inner[None, :] * a_inner), tl.load(of_b + inner[:, None] * b_inner), sums
        )
    tl.store(c + m[:, None] * c_row + n[None, :] * c_column, (scale * sums).to(c.dtype.element_ty))


@triton.jit
def sampled(
    a, b, c, block_rows, block_columns, scale, inner, a_row, a_inner, b_inner, b_column, c_row, c_column,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """A live block of C = scale · A · B for each program."""
    program = tl.program_id(0)
    m = tl.load(block_rows + program) * HEIGHT + tl.arange(0, HEIGHT)
    n = tl.load(block_columns + program) * WIDTH + tl.arange(0, WIDTH)
    k = tl.arange(0, STEP)
    of_a = a + m[:, None] * a_row + k[None, :] * a_inner
    of_b = b + n[None, :] * b_column + k[:, None] * b_inner
    sums = tl.zeros((HEIGHT, WIDTH), dtype=tl.float32)
    for _ in range(inner // STEP):
        sums = tl.dot(tl.load(of_a), tl.load(of_b), sums)
        of_a += STEP * a_inner
        of_b += STEP * b_inner
    tl.store(c + m[:, None] * c_row + n[None, :] * c_column, (scale * sums).to(c.dtype.element_ty))
