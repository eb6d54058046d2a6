"""The padding of convolutions, which PyTorch takes as numbers and as words."""

from __future__ import annotations

from sparsegen.errors import ConfigError


def padding_in_numbers(
    padding: object, kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, int]:
    """The zeros above and below, left and right, of a convolution's padding; of ``"same"`` and ``"valid"`` too.

    Raises:
        ConfigError: ``"same"`` of a filter that needs one more zero on one side than on the other.
    """
    if padding == "valid":
        return 0, 0
    if padding != "same":
        return padding if isinstance(padding, tuple) else (padding, padding)
    both = [reach * (size - 1) for size, reach in zip(kernel, dilation, strict=True)]
    if any(zeros % 2 for zeros in both):
        raise ConfigError(
            f"padding='same' of a filter of {kernel[0]} × {kernel[1]} is wider on one side than on the other; pad with "
            "torch.nn.ZeroPad2d before a convolution of padding=0"
        )
    return both[0] // 2, both[1] // 2
