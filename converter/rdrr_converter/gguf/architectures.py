"""How llama.cpp writes each architecture: names of tensors, order of rows, offsets of norms.

The table has one row per `general.architecture`. The architecture modules do not know about it:
what is read through it has the names, order and values of Hugging Face.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rdrr_format.errors import ConversionError

from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.families import latest, state_spaces, states

ROPE_FREQS = "rope_freqs.weight"
"""Divisors of the rope frequencies, which is how a GGUF states llama3 scaling."""

ROPE_SHORT, ROPE_LONG = "rope_factors_short.weight", "rope_factors_long.weight"
"""Divisors of the rope frequencies of longrope scaling, for short and long contexts."""

UNKNOWN_TO_LLAMA_CPP = ("flex_olmo", "helium", "opt", "vaultgemma", "wedlm")
"""Architectures of rdrr for whose models llama.cpp has none."""

GGUF_ARCHITECTURES: Mapping[str, GgufArchitecture] = MappingProxyType(
    {
        row.name: row
        for row in (
            GgufArchitecture(
                "llama",
                "LlamaForCausalLM",
                layer_names.MIXTRAL,
                layer_names.QUERIES_KEYS,
                classes=("MistralForCausalLM", "MixtralForCausalLM", "MinistralForCausalLM"),
            ),
            GgufArchitecture("qwen2", "Qwen2ForCausalLM"),
            GgufArchitecture("qwen2moe", "Qwen2MoeForCausalLM", layer_names.EXPERTS),
            GgufArchitecture(
                "qwen3", "Qwen3ForCausalLM", rank_class="Qwen3ForSequenceClassification"
            ),
            GgufArchitecture("qwen3moe", "Qwen3MoeForCausalLM", layer_names.EXPERTS),
            GgufArchitecture(
                "gemma2", "Gemma2ForCausalLM", layer_names.FOUR_NORMS, norm_offset=-1.0
            ),
            GgufArchitecture(
                "gemma3", "Gemma3ForCausalLM", layer_names.FOUR_NORMS, norm_offset=-1.0
            ),
            GgufArchitecture(
                "gemma-embedding",
                "Gemma3TextModel",
                layer_names.FOUR_NORMS,
                norm_offset=-1.0,
                is_causal=False,
            ),
            GgufArchitecture(
                "gemma3n",
                "Gemma3nForCausalLM",
                layer_names.GEMMA4,
                per_layer=("feed_forward_length",),
            ),
            GgufArchitecture(
                "gemma4",
                "Gemma4ForCausalLM",
                layer_names.GEMMA4,
                per_layer=("feed_forward_length", "attention.head_count_kv"),
                classes=("Gemma4UnifiedForCausalLM",),
                shares_values=True,
                dense_layers=True,
                joins_gates=True,
            ),
            GgufArchitecture("gemma", "GemmaForCausalLM", norm_offset=-1.0),
            GgufArchitecture("qwen2vl", "Qwen2VLForConditionalGeneration"),
            GgufArchitecture("qwen3vl", "Qwen3VLForConditionalGeneration"),
            GgufArchitecture(
                "apertus",
                "ApertusForCausalLM",
                {**layer_names.LAYER, **latest.APERTUS},
                in_metadata=latest.ACTIVATION,
            ),
            GgufArchitecture(
                "hunyuan-moe",
                "HunYuanMoEV1ForCausalLM",
                {**layer_names.HUNYUAN, **latest.HUNYUAN_EXPERTS},
            ),
            GgufArchitecture(
                "llama4",
                "Llama4ForCausalLM",
                {**layer_names.LAYER, **latest.LLAMA4},
                dense_layers=True,
            ),
            GgufArchitecture("granite", "GraniteForCausalLM", interleaved=layer_names.QUERIES_KEYS),
            GgufArchitecture(
                "granitemoe",
                "GraniteMoeForCausalLM",
                layer_names.GRANITE,
                layer_names.QUERIES_KEYS,
                classes=("GraniteMoeSharedForCausalLM",),
            ),
            GgufArchitecture(
                "granitehybrid",
                "GraniteMoeHybridForCausalLM",
                layer_names.GRANITE_HYBRID,
                layer_names.QUERIES_KEYS,
                per_layer=state_spaces.PER_LAYER,
                whole=layer_names.OF_STATE_SPACES,
                flags=state_spaces.STATED,
            ),
            GgufArchitecture(
                "mamba2",
                "Mamba2ForCausalLM",
                layer_names.HYBRID,
                flags=(
                    ("use_bias", ".mamba.in_proj.bias", True),
                    ("use_conv_bias", ".mamba.conv1d.bias", True),
                ),
                has_attention=False,
                whole=layer_names.OF_STATE_SPACES,
            ),
            GgufArchitecture(
                "nemotron_h",
                "NemotronHForCausalLM",
                layer_names.HYBRID,
                layer_names.QUERIES_KEYS,
                per_layer=state_spaces.PER_LAYER,
                whole=layer_names.OF_STATE_SPACES,
                flags=(
                    ("mlp_bias", ".mlp.up_proj.bias", True),
                    ("use_bias", ".mamba.in_proj.bias", True),
                    ("use_conv_bias", ".mamba.conv1d.bias", True),
                ),
                has_experts=False,
            ),
            GgufArchitecture(
                "nemotron_h_moe",
                "NemotronHForCausalLM",
                layer_names.NEMOTRON_EXPERTS,
                layer_names.QUERIES_KEYS,
                per_layer=state_spaces.PER_LAYER,
                whole=layer_names.OF_STATE_SPACES,
                flags=(("use_conv_bias", ".mamba.conv1d.bias", True),),
                has_experts=True,
            ),
            GgufArchitecture(
                "falcon-h1",
                "FalconH1ForCausalLM",
                layer_names.HYBRID,
                flags=(
                    *state_spaces.STATED,
                    ("attention_bias", ".q_proj.bias", True),
                    ("mamba_rms_norm", ".mamba.norm.weight", True),
                    ("mlp_bias", ".mlp.up_proj.bias", True),
                    ("projectors_bias", ".mamba.out_proj.bias", True),
                ),
                whole=layer_names.OF_FALCON_H1,
                factors_in_weights=True,
            ),
            GgufArchitecture("olmoe", "OlmoeForCausalLM", layer_names.EXPERTS),
            GgufArchitecture("gpt-oss", "GptOssForCausalLM", layer_names.GPT_OSS),
            GgufArchitecture("phi3", "Phi3ForCausalLM", layer_names.STACKED),
            GgufArchitecture(
                "phimoe",
                "PhimoeForCausalLM",
                layer_names.MIXTRAL,
                flags=(
                    ("attention_bias", ".q_proj.bias", True),
                    ("lm_head_bias", "lm_head.bias", True),
                ),
            ),
            GgufArchitecture(
                "minimax-m2", "MiniMaxM2ForCausalLM", layer_names.MINIMAX, biases=False
            ),
            GgufArchitecture("seed_oss", "SeedOssForCausalLM", layer_names.SEED_OSS),
            GgufArchitecture("chatglm", "GlmForCausalLM", layer_names.STACKED),
            GgufArchitecture("glm4", "Glm4ForCausalLM", layer_names.GLM4),
            GgufArchitecture(
                "olmo2", "Olmo2ForCausalLM", layer_names.POST_NORMS, classes=("Olmo3ForCausalLM",)
            ),
            GgufArchitecture(
                "mistral3", "Ministral3ForCausalLM", layer_names.LAYER, layer_names.QUERIES_KEYS
            ),
            GgufArchitecture(
                "olmo",
                "OlmoForCausalLM",
                layer_names.LAYER,
                layer_names.QUERIES_KEYS,
                layer_norm=True,
            ),
            GgufArchitecture(
                "arcee",
                "ArceeForCausalLM",
                layer_names.LAYER,
                layer_names.QUERIES_KEYS,
                biases=False,
            ),
            GgufArchitecture("exaone4", "Exaone4ForCausalLM", layer_names.POST_NORMS),
            GgufArchitecture("ernie4_5", "Ernie4_5ForCausalLM"),
            GgufArchitecture("hunyuan-dense", "HunYuanDenseV1ForCausalLM", layer_names.HUNYUAN),
            GgufArchitecture("starcoder2", "Starcoder2ForCausalLM", layer_norm=True),
            GgufArchitecture("phi2", "PhiForCausalLM", layer_names.PHI2, layer_norm=True),
            GgufArchitecture(
                "gptneox", "GPTNeoXForCausalLM", layer_names.ONE_STACK, layer_norm=True
            ),
            GgufArchitecture(
                "falcon",
                "FalconForCausalLM",
                layer_names.FALCON,
                layer_norm=True,
                flags=(("new_decoder_architecture", ".post_attention_layernorm.weight", True),),
                two_norms=layer_names.FALCON_TWO_NORMS,
            ),
            GgufArchitecture("gpt2", "GPT2LMHeadModel", layer_names.ONE_STACK, layer_norm=True),
            GgufArchitecture(
                "stablelm",
                "StableLmForCausalLM",
                layer_norm=True,
                flags=(
                    ("qk_layernorm", ".q_norm.weight", True),
                    ("use_parallel_residual", ".post_attention_layernorm.weight", False),
                ),
            ),
            GgufArchitecture("nemotron", "NemotronForCausalLM", norm_offset=-1.0, layer_norm=True),
            GgufArchitecture(
                "command-r",
                "CohereForCausalLM",
                layer_norm=True,
                flags=(("use_qk_norm", ".q_norm.weight", True),),
            ),
            GgufArchitecture("cohere2", "Cohere2ForCausalLM", layer_norm=True),
            GgufArchitecture(
                "deepseek2",
                "DeepseekV2ForCausalLM",
                layer_names.DEEPSEEK,
                classes=("DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"),
                dense_layers=True,
                biases=False,
                has_draft_head=True,
            ),
            GgufArchitecture(
                "glm4moe",
                "Glm4MoeForCausalLM",
                layer_names.GLM4_MOE,
                classes=("SolarOpenForCausalLM",),
                flags=(("use_qk_norm", ".q_norm.weight", True),),
                dense_layers=True,
                has_draft_head=True,
            ),
            GgufArchitecture(
                "exaone-moe",
                "ExaoneMoeForCausalLM",
                layer_names.SHARED_EXPERTS,
                dense_layers=True,
                biases=False,
            ),
            GgufArchitecture(
                "dots1", "Dots1ForCausalLM", layer_names.SHARED_EXPERTS, dense_layers=True
            ),
            GgufArchitecture(
                "ernie4_5-moe", "Ernie4_5_MoeForCausalLM", layer_names.ERNIE_MOE, dense_layers=True
            ),
            GgufArchitecture(
                "smollm3", "SmolLM3ForCausalLM", layer_names.LAYER, layer_names.QUERIES_KEYS
            ),
            GgufArchitecture(
                "qwen35",
                "Qwen3_5ForCausalLM",
                layer_names.QWEN35,
                norm_offset=-1.0,
                plain_norms=(states.PLAIN_NORM,),
                alternating_heads=True,
                other_forms=layer_names.QWEN_FORMS,
                has_draft_head=True,
            ),
            GgufArchitecture(
                "qwen35moe",
                "Qwen3_5MoeForCausalLM",
                layer_names.QWEN35,
                norm_offset=-1.0,
                plain_norms=(states.PLAIN_NORM,),
                alternating_heads=True,
                other_forms=layer_names.QWEN_FORMS,
                has_draft_head=True,
            ),
            GgufArchitecture(
                "qwen3next",
                "Qwen3NextForCausalLM",
                layer_names.QWEN3_NEXT,
                norm_offset=-1.0,
                plain_norms=(states.PLAIN_NORM,),
                other_forms=layer_names.QWEN_FORMS,
                has_draft_head=True,
            ),
            GgufArchitecture(
                "lfm2",
                "Lfm2ForCausalLM",
                layer_names.LFM2,
                outside=layer_names.LFM2_OUTSIDE,
                biases=False,
                per_layer=("attention.head_count_kv",),
            ),
            GgufArchitecture(
                "lfm2moe",
                "Lfm2MoeForCausalLM",
                layer_names.LFM2,
                outside=layer_names.LFM2_OUTSIDE,
                biases=False,
                per_layer=("attention.head_count_kv",),
                dense_layers=True,
                flags=(("use_expert_bias", ".e_score_correction_bias", True),),
            ),
        )
    }
)


def find_gguf_architecture(name: object, where: object) -> GgufArchitecture:
    """Return how llama.cpp writes an architecture.

    Raises:
        ConversionError: The architecture is unknown.
    """
    found = GGUF_ARCHITECTURES.get(name) if isinstance(name, str) else None
    if found is None:
        raise ConversionError(
            "a GGUF of unknown architecture",
            where=f"{where}, general.architecture",
            expected=", ".join(GGUF_ARCHITECTURES),
            found="nothing" if name is None else name,
        )
    return found
