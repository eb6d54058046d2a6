"""Networks of the accuracy studies, small enough to be trained many times."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import gelu, relu, scaled_dot_product_attention

HEAD = 16  # features of an attention head
SYMBOLS = 256


class Residual(nn.Module):
    """Two 3 × 3 convolutions with batch norm beside a shortcut; halves the image where it doubles the channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = relu(self.norms[0](self.one(x)))
        return relu(self.norms[1](self.two(inner)) + self.shortcut(x))


class ResNet(nn.Module):
    """A convolution of stride 2, four residual blocks of 1, 1, 2 and 4 times the channels, and a linear layer."""

    def __init__(self, channels: int, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, 2, 1)
        widths = [channels, channels, channels, 2 * channels, 4 * channels]
        self.blocks = nn.Sequential(*map(Residual, widths, widths[1:]))
        self.last = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.blocks(relu(self.first(images))).mean((2, 3)))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Causal attention and a hidden layer of four times the width, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norms[1](x))))  # type: ignore[no-any-return]


class ByteTransformer(nn.Module):
    """Predicts the next byte at each place."""

    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, width)
        self.places = nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, SYMBOLS))

    def forward(self, symbols: Tensor) -> Tensor:
        return self.last(self.layers(self.symbols(symbols) + self.places.weight))  # type: ignore[no-any-return]
