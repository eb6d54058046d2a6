"""Forty architectures of `timm` and `transformers` with random weights: whole, of few layers, and small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

Options = Mapping[str, Any]
BIASES, WEIGHTS = 0.002, 0.02  # standard deviations of random biases, and of weights that were zeros
SCALES = 0.8, 1.1  # lowest and highest of random scales: float16 holds what many layers make of it


class Size(StrEnum):
    """Sizes of a model."""

    WHOLE = "whole"  # as many layers as published
    SHALLOW = "shallow"  # layers as wide as published, a few where all are alike
    SMALL = "small"  # for a rehearsal


@dataclass(frozen=True, slots=True)
class Images:
    """A network of images of `timm`.

    Attributes:
        name: name of the architecture there.
        small: likewise of a small one of its kind.
        shallow: options that leave layers out.
        pixels: height and width of the small one's images.
        small_options: options of the small one.
    """

    name: str
    small: str
    shallow: Options = field(default_factory=dict)
    pixels: int = 64
    small_options: Options = field(default_factory=dict)

    def made(self, size: Size) -> tuple[nn.Module, dict[str, Tensor]]:
        """The model in evaluation, and inputs of one call by name."""
        import timm

        if size is Size.SMALL:
            made = timm.create_model(self.small, pretrained=False, **self.small_options).eval()
            return awake(made), {"x": torch.randn(1, 3, self.pixels, self.pixels)}
        options = self.shallow if size is Size.SHALLOW else {}
        model = timm.create_model(self.name, pretrained=False, **options).eval()
        channels, height, width = model.default_cfg["input_size"]
        return awake(model), {"x": torch.randn(8, channels, height, width)}


@dataclass(frozen=True, slots=True)
class Text:
    """A model of tokens of `transformers`.

    Attributes:
        name: name of its kind there.
        small: what makes its configuration small.
        depth: names of the numbers of layers in the configuration.
        wide: sizes where the configuration's own are those of a model of billions of weights, or of a toy.
    """

    name: str
    small: Options
    depth: tuple[str, ...] = ("num_hidden_layers",)
    wide: Options = field(default_factory=dict)

    def made(self, size: Size) -> tuple[nn.Module, dict[str, Tensor]]:
        """See `Images.made`."""
        import transformers

        options = dict(self.small if size is Size.SMALL else self.wide)
        if size is Size.SHALLOW:
            options |= dict.fromkeys(self.depth, 2 if self.wide else 4)
        config = transformers.AutoConfig.for_model(self.name, **options)
        config.use_cache = False
        model = transformers.AutoModel.from_config(config).eval()
        tokens = torch.randint(5, 100, (1, 16) if size is Size.SMALL else (4, 128))
        inputs = {"input_ids": tokens}
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = tokens
        return awake(model), inputs


def awake(model: nn.Module) -> nn.Module:
    """The model with random numbers in place of constants, which are how parameters start that training moves.

    A scale of zero or a millionth behind a layer hides from the result of a model what the layer computes.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point() or (parameter != parameter.flatten()[0]).any():
                continue
            if name.endswith("bias"):
                parameter.normal_(0, BIASES)
            elif parameter.dim() == 2 and min(parameter.shape) > 1:
                parameter.normal_(0, WEIGHTS)
            else:
                parameter.uniform_(*SCALES)
    return model


_ENCODER: Options = {
    **{"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128},
    **{"num_hidden_layers": 2, "num_attention_heads": 4},
}
_DECODER: Options = {**_ENCODER, "num_key_value_heads": 2, "head_dim": 16}
_OF_A_BILLION: Options = {
    **{"vocab_size": 8192, "hidden_size": 2048, "intermediate_size": 5632},
    **{"num_hidden_layers": 22, "num_attention_heads": 32},
}
_GROUPED: Options = {**_OF_A_BILLION, "num_key_value_heads": 4, "head_dim": 64}
_FOUR_DEEP: Options = {"depth": 4}
_SMALL_SWIN: Options = {"img_size": 56, "embed_dim": 24, "depths": (1, 1, 1, 1)}
_OF_ONE_SIZE: Options = {"img_size": 64}

# The most common kinds first: what a short run has then stands for most of what is used.
ZOO: tuple[Images | Text, ...] = (
    Text("bert", _ENCODER),
    Images("resnet50", "resnet14t"),
    Images("vit_base_patch16_224", "vit_tiny_patch16_224", _FOUR_DEEP, 64, {**_OF_ONE_SIZE, "depth": 2}),
    Text("llama", _DECODER, wide=_GROUPED),
    Images("mobilenetv3_large_100", "mobilenetv3_small_050"),
    Text(
        "t5",
        {"vocab_size": 128, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
        depth=("num_layers", "num_decoder_layers"),
    ),
    Images("convnext_tiny", "convnext_atto"),
    Images("swin_tiny_patch4_window7_224", "swin_tiny_patch4_window7_224", {}, 56, _SMALL_SWIN),
    Text("gpt_neox", _ENCODER, wide={**_OF_A_BILLION, "intermediate_size": 8192}),
    Images("efficientnet_b0", "efficientnet_lite0"),
    Text("qwen2", _DECODER, wide=_GROUPED),
    Images("mixer_b16_224", "mixer_s32_224", {}, 64, _OF_ONE_SIZE),
    Text(
        "distilbert",
        {"vocab_size": 128, "dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4},
        ("n_layers",),
    ),
    Images("regnety_032", "regnety_002"),
    Text("mistral", _DECODER, wide=_GROUPED),
    Images("deit3_base_patch16_224", "deit_tiny_patch16_224", _FOUR_DEEP, 64, {**_OF_ONE_SIZE, "depth": 2}),
    Text("roberta", {**_ENCODER, "max_position_embeddings": 64}),
    Images("convnextv2_tiny", "convnextv2_atto"),
    Text(
        "opt",
        {
            **{"vocab_size": 128, "hidden_size": 64, "ffn_dim": 128, "word_embed_proj_dim": 64},
            **{"num_hidden_layers": 2, "num_attention_heads": 4},
        },
    ),
    Images("densenet121", "densenet121"),
    Text("gemma", _DECODER, wide=_GROUPED),
    Images("levit_256", "levit_128s", {}, 64, _OF_ONE_SIZE),
    Text("albert", {**_ENCODER, "embedding_size": 64}),
    Images("resnext50_32x4d", "resnext26ts"),
    Text(
        "bart",
        {
            **{"vocab_size": 128, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2},
            **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
            **{"encoder_ffn_dim": 128, "decoder_ffn_dim": 128},
        },
        ("encoder_layers", "decoder_layers"),
    ),
    Images("maxvit_tiny_rw_224", "maxvit_nano_rw_256", {}, 64, _OF_ONE_SIZE),
    Text("phi", {**_ENCODER, "num_key_value_heads": 4}, wide={**_OF_A_BILLION, "intermediate_size": 8192}),
    Images("beit_base_patch16_224", "beit_base_patch16_224", _FOUR_DEEP, 64, {**_OF_ONE_SIZE, "depth": 2}),
    Text("qwen3", _DECODER, wide=_GROUPED),
    Images("ghostnet_100", "ghostnet_050"),
    Text("electra", {**_ENCODER, "embedding_size": 64}),
    Images("gmlp_s16_224", "gmlp_ti16_224", {}, 64, _OF_ONE_SIZE),
    Text("deberta-v2", _ENCODER),
    Images("poolformer_s24", "poolformer_s12"),
    Text(
        "gptj",
        {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8},
        ("n_layer",),
        {"vocab_size": 8192, "n_embd": 2048, "n_layer": 22, "n_head": 16, "rotary_dim": 64},
    ),
    Images("cait_s24_224", "cait_xxs24_224", _FOUR_DEEP, 64, {**_OF_ONE_SIZE, "depth": 2}),
    Text("gemma2", _DECODER, wide=_GROUPED),
    Images("xcit_small_12_p16_224", "xcit_nano_12_p16_224", _FOUR_DEEP, 64, {"depth": 2}),
    Text("mpnet", _ENCODER),
    Text(
        "bloom",
        {"vocab_size": 128, "hidden_size": 64, "n_layer": 2, "n_head": 4},
        ("n_layer",),
        {"vocab_size": 8192, "hidden_size": 1024, "n_layer": 24, "n_head": 16},
    ),
)
