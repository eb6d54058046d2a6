"""Forty architectures of `timm` and `transformers` with random weights, in full and small enough to rehearse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Images:
    """A network of images of `timm`, by the names of a full model and of a small one of its kind."""

    full: str
    small: str

    @property
    def name(self) -> str:
        return self.full

    def made(self, *, small: bool) -> tuple[nn.Module, dict[str, Tensor]]:
        """The model in evaluation, and inputs of one call by name."""
        import timm

        model = timm.create_model(self.small if small else self.full, pretrained=False).eval()
        channels, height, width = model.default_cfg["input_size"]
        return model, {"x": torch.randn(1 if small else 8, channels, height, width)}


@dataclass(frozen=True, slots=True)
class Text:
    """A model of tokens of `transformers`, by the name of its kind there.

    Attributes:
        small: of the configuration, what makes it small.
    """

    kind: str
    small: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.kind

    def made(self, *, small: bool) -> tuple[nn.Module, dict[str, Tensor]]:
        """See `Images.made`."""
        import transformers

        config = transformers.AutoConfig.for_model(self.kind, **(self.small if small else {}))
        config.use_cache = False
        model = transformers.AutoModel.from_config(config).eval()
        tokens = torch.randint(5, config.vocab_size, (1, 16) if small else (4, 128))
        inputs = {"input_ids": tokens}
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = tokens
        return model, inputs


_ENCODER: Mapping[str, Any] = {
    **{"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128},
    **{"num_hidden_layers": 2, "num_attention_heads": 4},
}
_DECODER: Mapping[str, Any] = {**_ENCODER, "num_key_value_heads": 2, "head_dim": 16}

ZOO: tuple[Images | Text, ...] = (
    Images("resnet50", "resnet14t"),
    Images("resnext50_32x4d", "resnext26ts"),
    Images("regnety_032", "regnety_002"),
    Images("mobilenetv3_large_100", "mobilenetv3_small_050"),
    Images("efficientnet_b0", "efficientnet_lite0"),
    Images("convnext_tiny", "convnext_atto"),
    Images("convnextv2_tiny", "convnextv2_atto"),
    Images("densenet121", "densenet121"),
    Images("ghostnet_100", "ghostnet_050"),
    Images("vit_base_patch16_224", "vit_tiny_patch16_224"),
    Images("deit3_base_patch16_224", "deit_tiny_patch16_224"),
    Images("swin_tiny_patch4_window7_224", "swin_tiny_patch4_window7_224"),
    Images("mixer_b16_224", "mixer_s32_224"),
    Images("gmlp_s16_224", "gmlp_ti16_224"),
    Images("poolformer_s24", "poolformer_s12"),
    Images("maxvit_tiny_rw_224", "maxvit_nano_rw_256"),
    Images("levit_256", "levit_128s"),
    Images("beit_base_patch16_224", "beit_base_patch16_224"),
    Images("cait_s24_224", "cait_xxs24_224"),
    Images("xcit_small_12_p16_224", "xcit_nano_12_p16_224"),
    Text("bert", _ENCODER),
    Text("roberta", {**_ENCODER, "max_position_embeddings": 64}),
    Text("electra", {**_ENCODER, "embedding_size": 64}),
    Text("albert", {**_ENCODER, "embedding_size": 64}),
    Text("distilbert", {"vocab_size": 128, "dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4}),
    Text("mpnet", _ENCODER),
    Text("deberta-v2", _ENCODER),
    Text("gptj", {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}),
    Text("gpt_neox", _ENCODER),
    Text(
        "opt",
        {
            **{"vocab_size": 128, "hidden_size": 64, "ffn_dim": 128, "word_embed_proj_dim": 64},
            **{"num_hidden_layers": 2, "num_attention_heads": 4},
        },
    ),
    Text("llama", _DECODER),
    Text("mistral", _DECODER),
    Text("qwen2", _DECODER),
    Text("qwen3", _DECODER),
    Text("gemma", _DECODER),
    Text("gemma2", _DECODER),
    Text("phi", {**_ENCODER, "num_key_value_heads": 4}),
    Text("bloom", {"vocab_size": 128, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    Text("t5", {"vocab_size": 128, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}),
    Text(
        "bart",
        {
            **{"vocab_size": 128, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2},
            **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
            **{"encoder_ffn_dim": 128, "decoder_ffn_dim": 128},
        },
    ),
)
