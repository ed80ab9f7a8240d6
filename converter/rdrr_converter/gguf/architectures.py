"""The architectures of llama.cpp that can be read and written, by `general.architecture`.

A row says how llama.cpp writes an architecture: names of tensors, order of rows, offsets of norms,
and the settings in the metadata. Rows of families with settings or names of their own are in
`families`. The architecture modules do not know about them: what is read through a row has the
names, order and values of Hugging Face.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rdrr_format.errors import ConversionError

from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.families import (
    apertus,
    deepseek,
    encoders,
    gemma,
    gemma4,
    layer_norms,
    lfm2,
    llama,
    mixtures,
    phi,
    post_norms,
    qwen,
    state_spaces,
)

ROPE_FREQS = "rope_freqs.weight"
"""Divisors of the rope frequencies, which is how a GGUF states llama3 scaling."""

ROPE_SHORT, ROPE_LONG = "rope_factors_short.weight", "rope_factors_long.weight"
"""Divisors of the rope frequencies of longrope scaling, for short and long contexts."""

MMPROJ = "clip"
"""The architecture of files that hold a vision tower only, which `gguf.mmproj` reads."""

UNKNOWN_TO_LLAMA_CPP = ("flex_olmo", "helium", "opt", "vaultgemma", "wedlm")
"""Architectures of rdrr for whose models llama.cpp has none."""

WITH_EXPERTS = (
    "llama",
    "qwen2moe",
    "qwen3moe",
    "gpt-oss",
    "granitemoe",
    "granitehybrid",
    "olmoe",
    "gemma4",
    "nomic-bert-moe",
    "qwen35moe",
    "qwen3next",
    "lfm2moe",
    "hunyuan-moe",
    "llama4",
    "nemotron_h_moe",
    "phimoe",
    "deepseek2",
    "dots1",
    "ernie4_5-moe",
    "exaone-moe",
    "glm4moe",
    "minimax-m2",
)
"""Architectures whose mixtures of experts can be read."""

GGUF_ARCHITECTURES: Mapping[str, GgufArchitecture] = MappingProxyType(
    {
        row.name: row
        for row in (
            llama.LLAMA,
            GgufArchitecture("qwen2", "Qwen2ForCausalLM"),
            qwen.QWEN2_MOE,
            qwen.QWEN3,
            qwen.QWEN3_MOE,
            gemma.GEMMA2,
            gemma.GEMMA3,
            gemma.GEMMA_EMBEDDING,
            gemma4.GEMMA3N,
            gemma4.GEMMA4,
            gemma.GEMMA,
            qwen.QWEN2_VL,
            qwen.QWEN3_VL,
            apertus.APERTUS,
            mixtures.HUNYUAN_MOE,
            llama.LLAMA4,
            llama.GRANITE,
            llama.GRANITE_MOE,
            state_spaces.GRANITE_HYBRID,
            state_spaces.MAMBA2,
            state_spaces.NEMOTRON_H,
            state_spaces.NEMOTRON_H_MOE,
            state_spaces.FALCON_H1,
            GgufArchitecture("olmoe", "OlmoeForCausalLM", layer_names.EXPERTS),
            mixtures.GPT_OSS,
            phi.PHI3,
            phi.PHIMOE,
            mixtures.MINIMAX_M2,
            GgufArchitecture("seed_oss", "SeedOssForCausalLM", layer_names.SEED_OSS),
            post_norms.CHATGLM,
            post_norms.GLM4,
            post_norms.OLMO2,
            llama.MISTRAL3,
            layer_norms.OLMO,
            GgufArchitecture(
                "arcee",
                "ArceeForCausalLM",
                layer_names.LAYER,
                layer_names.QUERIES_KEYS,
                biases=False,
            ),
            post_norms.EXAONE4,
            GgufArchitecture("ernie4_5", "Ernie4_5ForCausalLM"),
            mixtures.HUNYUAN_DENSE,
            layer_norms.STARCODER2,
            layer_norms.PHI2,
            layer_norms.GPT_NEOX,
            layer_norms.FALCON,
            GgufArchitecture("gpt2", "GPT2LMHeadModel", layer_names.ONE_STACK, layer_norm=True),
            layer_norms.STABLELM,
            layer_norms.NEMOTRON,
            layer_norms.COMMAND_R,
            layer_norms.COHERE2,
            deepseek.DEEPSEEK2,
            mixtures.GLM4_MOE,
            mixtures.EXAONE_MOE,
            mixtures.DOTS1,
            mixtures.ERNIE4_5_MOE,
            GgufArchitecture(
                "smollm3", "SmolLM3ForCausalLM", layer_names.LAYER, layer_names.QUERIES_KEYS
            ),
            qwen.QWEN35,
            qwen.QWEN35_MOE,
            qwen.QWEN3_NEXT,
            lfm2.LFM2,
            lfm2.LFM2_MOE,
            encoders.BERT,
            encoders.JINA_BERT,
            encoders.NOMIC_BERT,
            encoders.NOMIC_BERT_MOE,
            encoders.MODERN_BERT,
        )
    }
)


def find_gguf_architecture(name: object, where: object) -> GgufArchitecture:
    """Return how llama.cpp writes an architecture.

    Raises:
        ConversionError: The architecture is unknown.
    """
    architecture = GGUF_ARCHITECTURES.get(name) if isinstance(name, str) else None
    if architecture is None:
        raise ConversionError(
            "a GGUF of unknown architecture",
            where=f"{where}, general.architecture",
            expected=", ".join(GGUF_ARCHITECTURES),
            found="nothing" if name is None else name,
            hint="this is a vision tower: convert its model, and name it with `mmproj`"
            if name == MMPROJ
            else None,
        )
    return architecture
