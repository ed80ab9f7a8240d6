"""How llama.cpp writes each architecture: names of tensors, order of rows, offsets of norms.

The table has one row per `general.architecture`. The architecture modules do not know about it:
what is read through it has the names, order and values of Hugging Face.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from rdrr_format.errors import ConversionError

from rdrr_converter.architectures.base import StackRule
from rdrr_converter.sources import (
    _gguf_gemma,
    _gguf_latest,
    _gguf_state_spaces,
    _gguf_states,
)
from rdrr_converter.sources._gguf_gemma import shares_values

ROPE_FREQS = "rope_freqs.weight"
"""Divisors of the rope frequencies, which is how a GGUF states llama3 scaling."""

ROPE_SHORT, ROPE_LONG = "rope_factors_short.weight", "rope_factors_long.weight"
"""Divisors of the rope frequencies of longrope scaling, for short and long contexts."""

_OUTSIDE: Mapping[str, str] = MappingProxyType(
    {
        "token_embd": "model.embed_tokens",
        "position_embd": "model.embed_positions",
        "output_norm": "model.norm",
        "output": "lm_head",
        **_gguf_gemma.OUTSIDE,
    }
)
_LAYER: Mapping[str, str] = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
_FOUR_NORMS: Mapping[str, str] = MappingProxyType(
    {
        **_LAYER,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)
_GEMMA4: Mapping[str, str] = MappingProxyType({**_FOUR_NORMS, **_gguf_gemma.LAYER})
_MIXTRAL: Mapping[str, str] = MappingProxyType(
    {
        **_LAYER,
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.w1",
        "ffn_up_exps": "block_sparse_moe.experts.w3",
        "ffn_down_exps": "block_sparse_moe.experts.w2",
    }
)
_EXPERTS: Mapping[str, str] = MappingProxyType(
    {
        **_LAYER,
        "ffn_gate_inp": "mlp.gate",
        "ffn_gate_exps": "mlp.experts.gate_proj",
        "ffn_up_exps": "mlp.experts.up_proj",
        "ffn_down_exps": "mlp.experts.down_proj",
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
        "ffn_up_shexp": "mlp.shared_expert.up_proj",
        "ffn_down_shexp": "mlp.shared_expert.down_proj",
    }
)
_STACKED: Mapping[str, str] = MappingProxyType(
    {**_LAYER, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
)
_SEED_OSS: Mapping[str, str] = MappingProxyType(
    {"post_attention_norm": "post_attention_layernorm", **_LAYER}
)
_GRANITE: Mapping[str, str] = MappingProxyType(
    {
        **_EXPERTS,
        "ffn_gate_inp": "block_sparse_moe.router.layer",
        "ffn_gate_exps": "block_sparse_moe.experts.gate_proj",
        "ffn_up_exps": "block_sparse_moe.experts.up_proj",
        "ffn_down_exps": "block_sparse_moe.experts.down_proj",
    }
)
_GPT_OSS: Mapping[str, str] = MappingProxyType(
    {
        **_SEED_OSS,
        "attn_sinks": "self_attn.sinks",
        "ffn_gate_inp": "mlp.router",
        "ffn_gate_exps": "mlp.experts.gate_proj",
        "ffn_up_exps": "mlp.experts.up_proj",
        "ffn_down_exps": "mlp.experts.down_proj",
    }
)
_GLM4: Mapping[str, str] = MappingProxyType(
    {
        **_STACKED,
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
    }
)
_POST_NORMS: Mapping[str, str] = MappingProxyType(
    {
        **{theirs: ours for theirs, ours in _LAYER.items() if not theirs.endswith("_norm")},
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)
_HUNYUAN: Mapping[str, str] = MappingProxyType(
    {
        **_LAYER,
        "attn_q_norm": "self_attn.query_layernorm",
        "attn_k_norm": "self_attn.key_layernorm",
    }
)
_PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_ONE_STACK: Mapping[str, str] = MappingProxyType(
    {
        **{theirs: ours for theirs, ours in _LAYER.items() if ours not in _PROJECTIONS},
        "attn_qkv": "self_attn.qkv_proj",
    }
)
_FALCON: Mapping[str, str] = MappingProxyType(
    {theirs: ours for theirs, ours in _ONE_STACK.items() if theirs != "ffn_norm"}
)
_FALCON_TWO_NORMS: Mapping[str, str] = MappingProxyType(
    {**_FALCON, "attn_norm": "post_attention_layernorm", "attn_norm_2": "input_layernorm"}
)
_PHI2: Mapping[str, str] = MappingProxyType({**_LAYER, "attn_qkv": "self_attn.qkv_proj"})
_NEXTN: Mapping[str, str] = MappingProxyType(
    {
        f"nextn.{theirs}": ours
        for theirs, ours in {
            "eh_proj": "eh_proj",
            "embed_tokens": "embed_tokens",
            "enorm": "enorm",
            "hnorm": "hnorm",
            "shared_head_head": "shared_head.head",
            "shared_head_norm": "shared_head.norm",
        }.items()
    }
)
"""Modules of layers that only predict further tokens."""
_SHARED_EXPERTS: Mapping[str, str] = MappingProxyType(
    {
        **_LAYER,
        **_NEXTN,
        "ffn_gate_inp": "mlp.gate",
        "exp_probs_b": "mlp.gate.e_score_correction_bias",
        "ffn_gate_exps": "mlp.experts.gate_proj",
        "ffn_up_exps": "mlp.experts.up_proj",
        "ffn_down_exps": "mlp.experts.down_proj",
        "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
        "ffn_up_shexp": "mlp.shared_experts.up_proj",
        "ffn_down_shexp": "mlp.shared_experts.down_proj",
    }
)
_GLM4_MOE: Mapping[str, str] = MappingProxyType(
    {"post_attention_norm": "post_attention_layernorm", **_SHARED_EXPERTS}
)
_ERNIE_MOE: Mapping[str, str] = MappingProxyType(
    {**_SHARED_EXPERTS, "exp_probs_b": "mlp.moe_statics.e_score_correction_bias"}
)
_DEEPSEEK: Mapping[str, str] = MappingProxyType(
    {
        **_SHARED_EXPERTS,
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
        "attn_k_b": "self_attn.k_b_proj",
        "attn_v_b": "self_attn.v_b_proj",
    }
)
_QWEN35: Mapping[str, str] = MappingProxyType(
    {**_gguf_states.LINEAR_ATTENTION, **_EXPERTS, **_NEXTN}
)
_QWEN3_NEXT: Mapping[str, str] = MappingProxyType({**_gguf_states.JOINED_GATES, **_EXPERTS})
_LFM2: Mapping[str, str] = MappingProxyType({**_SHARED_EXPERTS, **_gguf_states.SHORT_CONVOLUTION})
_LFM2_OUTSIDE: Mapping[str, str] = MappingProxyType(
    {
        "token_embd": "model.embed_tokens",
        "token_embd_norm": "model.norm",
        "output": "lm_head",
    }
)
_QUERIES_KEYS = ("q_proj", "k_proj")
_HYBRID: Mapping[str, str] = MappingProxyType({**_LAYER, **_gguf_state_spaces.MIXER})
_GRANITE_HYBRID: Mapping[str, str] = MappingProxyType({**_GRANITE, **_gguf_state_spaces.MIXER})
_NO_FORMS: Mapping[str, str] = MappingProxyType({})
_WHOLE: Mapping[str, str] = MappingProxyType(
    {
        "ffn_down_exps.scale": "router.per_expert_scale",
        "ffn_gate_inp.scale": "router.scale",
        "ssm_a": "linear_attn.A_log",
        "ssm_dt.bias": "linear_attn.dt_bias",
    }
)
_OF_STATE_SPACES: Mapping[str, str] = MappingProxyType(
    {
        theirs: ours
        for theirs, ours in _gguf_state_spaces.MIXER.items()
        if ours in _gguf_state_spaces.WITHOUT_ENDING
    }
)
_QWEN_FORMS: Mapping[str, str] = MappingProxyType(
    {
        "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
        "ssm_in": "linear_attn.in_proj_qkvz",
    }
)


@dataclass(frozen=True)
class GgufArchitecture:
    """How llama.cpp writes checkpoints of one architecture.

    Attributes:
        name: `general.architecture`.
        hf_class: The class that Hugging Face's configuration names.
        classes: Further classes whose checkpoints llama.cpp writes under this name.
        layer: Hugging Face's names of the modules of a layer, by llama.cpp's.
        interleaved: Modules whose rows alternate between the two halves of an attention head.
        norm_offset: Added to norm weights on reading; -1 where llama.cpp stores 1 + w.
        layer_norm: Whether the norms are LayerNorm, whose epsilon has a key of its own.
        dense_layers: Whether llama.cpp loads models in which only some layers have experts.
        flags: Keys of the configuration that follow from the tensors: the key, the last part of a
            tensor's Hugging Face name, and the value if there is such a tensor.
        per_layer: Metadata keys of sizes that may differ between layers.
        two_norms: `layer` for models whose parallel branches have a norm each, where it differs.
        shares_values: Whether the values of some layers may be their projected keys.
        plain_norms: Modules of norms to which `norm_offset` does not apply.
        outside: Hugging Face's names of the modules outside the layers, by llama.cpp's.
        alternating_heads: Whether the value heads of linear attention alternate between key heads.
        biases: Whether llama.cpp loads biases of projections and convolutions.
        other_forms: Further names of modules, of stacks that only some files have.
        is_causal: Whether a token attends only to earlier ones in these files.
        whole: Hugging Face's names of tensors of a layer, with their endings, by llama.cpp's.
        joins_gates: Whether llama.cpp stores gate and up of all experts in one tensor.
        in_metadata: A part of the names of tensors that a GGUF states in its metadata.
        is_written: Whether rdrr exports such files, and does not only read them.
        has_attention: Whether any layer has attention.
    """

    name: str
    hf_class: str
    layer: Mapping[str, str] = field(default_factory=lambda: _LAYER)
    interleaved: tuple[str, ...] = ()
    norm_offset: float = 0.0
    classes: tuple[str, ...] = ()
    layer_norm: bool = False
    flags: tuple[tuple[str, str, bool], ...] = ()
    per_layer: tuple[str, ...] = ()
    shares_values: bool = False
    is_written: bool = True
    is_causal: bool = True
    dense_layers: bool = False
    plain_norms: tuple[str, ...] = ()
    outside: Mapping[str, str] = field(default_factory=lambda: _OUTSIDE)
    alternating_heads: bool = False
    biases: bool = True
    other_forms: Mapping[str, str] = field(default_factory=lambda: _NO_FORMS)
    has_attention: bool = True
    whole: Mapping[str, str] = field(default_factory=lambda: _WHOLE)
    joins_gates: bool = False
    in_metadata: str | None = None
    two_norms: Mapping[str, str] | None = None

    def for_tensors(self, names: Iterable[str]) -> GgufArchitecture:
        """Return this row for a model with these tensors, in llama.cpp's names or the other."""
        own = (".attn_norm_2.weight", ".post_attention_layernorm.weight")
        if self.two_norms is None or not any(name.endswith(own) for name in names):
            return self
        return replace(self, layer=self.two_norms, two_norms=None)

    def stated_by(self, names: Iterable[str]) -> dict[str, bool]:
        """Return the keys of the configuration that follow from the tensors' Hugging Face names."""
        known = tuple(names)
        shared = {"attention_k_eq_v": shares_values(known)} if self.shares_values else {}
        return shared | {
            key: value == any(name.endswith(part) for name in known)
            for key, part, value in self.flags
        }

    def stores(self, stack: StackRule) -> bool:
        """Return whether llama.cpp stores a stack, and not its parts."""
        names = (stack.name, stack.parts[0])
        whole, part = (self.llama_name(name.format(layer=0, expert=0)) for name in names)
        return whole is not None and (part is None or stack.is_published)

    def translate(self, name: str) -> str:
        """Return the Hugging Face name of a tensor; an unknown name is returned unchanged."""
        stem, _, ending = name.rpartition(".")
        own = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        if own is not None and own[2] in self.whole:
            return f"model.layers.{own[1]}.{self.whole[own[2]]}"
        match = re.fullmatch(r"blk\.(\d+)\.(.+)", stem)
        if match is None:
            return f"{self.outside[stem]}.{ending}" if stem in self.outside else name
        part = self._part(match[2])
        if part is not None and part.endswith("_bias"):  # a name without ending
            return f"model.layers.{match[1]}.{part}"
        return name if part is None else f"model.layers.{match[1]}.{part}.{ending}"

    def llama_name(self, name: str) -> str | None:
        """Return llama.cpp's name of a tensor, given its Hugging Face name; None if it has none."""
        own = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
        whole = next(
            (theirs for theirs, ours in self.whole.items() if own and ours == own[2]), None
        )
        if own is not None and whole is not None:
            return f"blk.{own[1]}.{whole}"
        stem, _, ending = name.rpartition(".")
        if ending not in ("weight", "bias"):  # sinks and biases of routers have no such ending
            stem, ending = name, "bias" if name.endswith("_bias") else "weight"
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
        names, part = (self.outside, stem) if match is None else (self.layer, match[2])
        found = _theirs(names, part)
        if found is None or (name.endswith(".bias") and not self.biases):
            return None
        return f"{found}.{ending}" if match is None else f"blk.{match[1]}.{found}.{ending}"

    def _part(self, theirs: str) -> str | None:
        """Return Hugging Face's name of a module; the oldest files have one tensor per expert."""
        alone = re.fullmatch(r"(ffn_(?:gate|up|down))\.(\d+)", theirs)
        if alone is None:
            return self.layer.get(theirs) or self.other_forms.get(theirs)
        stem, _, kind = self.layer.get(f"{alone[1]}_exps", "").rpartition(".")
        return f"{stem}.{alone[2]}.{kind}" if stem else None

    def offset_of(self, name: str) -> float:
        """Return what is added on reading to a tensor of this Hugging Face name."""
        is_norm = name.endswith("norm.weight") and not self.is_plain_norm(name)
        return self.norm_offset if is_norm else 0.0

    def is_plain_norm(self, name: str) -> bool:
        """Return whether `norm_offset` does not apply to the norm of this Hugging Face name."""
        return name.removesuffix(".weight").endswith(self.plain_norms)

    @property
    def has_states(self) -> bool:
        """Whether some layers have a recurrent state."""
        return not self.layer.keys().isdisjoint(("ssm_conv1d", "shortconv.conv"))

    def is_interleaved(self, name: str) -> bool:
        """Return whether llama.cpp interleaves the rows of a tensor of this Hugging Face name."""
        return any(f".{part}." in name for part in self.interleaved)


UNKNOWN_TO_LLAMA_CPP = ("helium", "opt", "vaultgemma", "wedlm")
"""Architectures of rdrr for whose models llama.cpp has none."""


def _theirs(names: Mapping[str, str], name: str) -> str | None:
    """Return llama.cpp's name of what Hugging Face has under another; None if it has none."""
    return next((theirs for theirs, ours in names.items() if ours == name), None)


GGUF_ARCHITECTURES: Mapping[str, GgufArchitecture] = MappingProxyType(
    {
        row.name: row
        for row in (
            GgufArchitecture(
                "llama",
                "LlamaForCausalLM",
                _MIXTRAL,
                _QUERIES_KEYS,
                classes=("MistralForCausalLM", "MixtralForCausalLM", "MinistralForCausalLM"),
            ),
            GgufArchitecture("qwen2", "Qwen2ForCausalLM"),
            GgufArchitecture("qwen2moe", "Qwen2MoeForCausalLM", _EXPERTS),
            GgufArchitecture("qwen3", "Qwen3ForCausalLM"),
            GgufArchitecture("qwen3moe", "Qwen3MoeForCausalLM", _EXPERTS),
            GgufArchitecture("gemma2", "Gemma2ForCausalLM", _FOUR_NORMS, norm_offset=-1.0),
            GgufArchitecture("gemma3", "Gemma3ForCausalLM", _FOUR_NORMS, norm_offset=-1.0),
            GgufArchitecture(
                "gemma-embedding",
                "Gemma3TextModel",
                _FOUR_NORMS,
                norm_offset=-1.0,
                is_causal=False,
            ),
            GgufArchitecture(
                "gemma3n",
                "Gemma3nForCausalLM",
                _GEMMA4,
                per_layer=("feed_forward_length",),
            ),
            GgufArchitecture(
                "gemma4",
                "Gemma4ForCausalLM",
                _GEMMA4,
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
                {**_LAYER, **_gguf_latest.APERTUS},
                in_metadata=_gguf_latest.ACTIVATION,
            ),
            GgufArchitecture(
                "hunyuan-moe",
                "HunYuanMoEV1ForCausalLM",
                {**_HUNYUAN, **_gguf_latest.HUNYUAN_EXPERTS},
            ),
            GgufArchitecture(
                "llama4",
                "Llama4ForCausalLM",
                {**_LAYER, **_gguf_latest.LLAMA4},
                dense_layers=True,
            ),
            GgufArchitecture("granite", "GraniteForCausalLM", interleaved=_QUERIES_KEYS),
            GgufArchitecture(
                "granitemoe",
                "GraniteMoeForCausalLM",
                _GRANITE,
                _QUERIES_KEYS,
                classes=("GraniteMoeSharedForCausalLM",),
            ),
            GgufArchitecture(
                "granitehybrid",
                "GraniteMoeHybridForCausalLM",
                _GRANITE_HYBRID,
                _QUERIES_KEYS,
                per_layer=_gguf_state_spaces.PER_LAYER,
                whole=_OF_STATE_SPACES,
                flags=_gguf_state_spaces.STATED,
            ),
            GgufArchitecture(
                "mamba2",
                "Mamba2ForCausalLM",
                _HYBRID,
                flags=(
                    ("use_bias", ".mamba.in_proj.bias", True),
                    ("use_conv_bias", ".mamba.conv1d.bias", True),
                ),
                has_attention=False,
                whole=_OF_STATE_SPACES,
            ),
            GgufArchitecture(
                "nemotron_h",
                "NemotronHForCausalLM",
                _HYBRID,
                _QUERIES_KEYS,
                per_layer=_gguf_state_spaces.PER_LAYER,
                whole=_OF_STATE_SPACES,
                flags=(
                    ("mlp_bias", ".mlp.up_proj.bias", True),
                    ("use_bias", ".mamba.in_proj.bias", True),
                    ("use_conv_bias", ".mamba.conv1d.bias", True),
                ),
            ),
            GgufArchitecture(
                "falcon-h1",
                "FalconH1ForCausalLM",
                _HYBRID,
                flags=(
                    *_gguf_state_spaces.STATED,
                    ("attention_bias", ".q_proj.bias", True),
                    ("mamba_rms_norm", ".mamba.norm.weight", True),
                    ("mlp_bias", ".mlp.up_proj.bias", True),
                    ("projectors_bias", ".mamba.out_proj.bias", True),
                ),
                whole=_OF_STATE_SPACES,
                is_written=False,
            ),
            GgufArchitecture("olmoe", "OlmoeForCausalLM", _EXPERTS),
            GgufArchitecture("gpt-oss", "GptOssForCausalLM", _GPT_OSS),
            GgufArchitecture("phi3", "Phi3ForCausalLM", _STACKED),
            GgufArchitecture("seed_oss", "SeedOssForCausalLM", _SEED_OSS),
            GgufArchitecture("chatglm", "GlmForCausalLM", _STACKED),
            GgufArchitecture("glm4", "Glm4ForCausalLM", _GLM4),
            GgufArchitecture(
                "olmo2", "Olmo2ForCausalLM", _POST_NORMS, classes=("Olmo3ForCausalLM",)
            ),
            GgufArchitecture("mistral3", "Ministral3ForCausalLM", _LAYER, _QUERIES_KEYS),
            GgufArchitecture("olmo", "OlmoForCausalLM", _LAYER, _QUERIES_KEYS, layer_norm=True),
            GgufArchitecture("arcee", "ArceeForCausalLM", _LAYER, _QUERIES_KEYS, biases=False),
            GgufArchitecture("exaone4", "Exaone4ForCausalLM", _POST_NORMS),
            GgufArchitecture("ernie4_5", "Ernie4_5ForCausalLM"),
            GgufArchitecture("hunyuan-dense", "HunYuanDenseV1ForCausalLM", _HUNYUAN),
            GgufArchitecture("starcoder2", "Starcoder2ForCausalLM", layer_norm=True),
            GgufArchitecture("phi2", "PhiForCausalLM", _PHI2, layer_norm=True),
            GgufArchitecture("gptneox", "GPTNeoXForCausalLM", _ONE_STACK, layer_norm=True),
            GgufArchitecture(
                "falcon",
                "FalconForCausalLM",
                _FALCON,
                layer_norm=True,
                flags=(("new_decoder_architecture", ".post_attention_layernorm.weight", True),),
                two_norms=_FALCON_TWO_NORMS,
            ),
            GgufArchitecture("gpt2", "GPT2LMHeadModel", _ONE_STACK, layer_norm=True),
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
                _DEEPSEEK,
                classes=("DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"),
                dense_layers=True,
                biases=False,
            ),
            GgufArchitecture(
                "glm4moe",
                "Glm4MoeForCausalLM",
                _GLM4_MOE,
                flags=(("use_qk_norm", ".q_norm.weight", True),),
                dense_layers=True,
            ),
            GgufArchitecture("dots1", "Dots1ForCausalLM", _SHARED_EXPERTS, dense_layers=True),
            GgufArchitecture(
                "ernie4_5-moe", "Ernie4_5_MoeForCausalLM", _ERNIE_MOE, dense_layers=True
            ),
            GgufArchitecture("smollm3", "SmolLM3ForCausalLM", _LAYER, _QUERIES_KEYS),
            GgufArchitecture(
                "qwen35",
                "Qwen3_5ForCausalLM",
                _QWEN35,
                norm_offset=-1.0,
                plain_norms=(_gguf_states.PLAIN_NORM,),
                alternating_heads=True,
                other_forms=_QWEN_FORMS,
            ),
            GgufArchitecture(
                "qwen35moe",
                "Qwen3_5MoeForCausalLM",
                _QWEN35,
                norm_offset=-1.0,
                plain_norms=(_gguf_states.PLAIN_NORM,),
                alternating_heads=True,
                other_forms=_QWEN_FORMS,
            ),
            GgufArchitecture(
                "qwen3next",
                "Qwen3NextForCausalLM",
                _QWEN3_NEXT,
                norm_offset=-1.0,
                plain_norms=(_gguf_states.PLAIN_NORM,),
                other_forms=_QWEN_FORMS,
            ),
            GgufArchitecture(
                "lfm2",
                "Lfm2ForCausalLM",
                _LFM2,
                outside=_LFM2_OUTSIDE,
                biases=False,
                per_layer=("attention.head_count_kv",),
            ),
            GgufArchitecture(
                "lfm2moe",
                "Lfm2MoeForCausalLM",
                _LFM2,
                outside=_LFM2_OUTSIDE,
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
