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
    _gguf_latest,
    _gguf_state_spaces,
    _gguf_states,
)
from rdrr_converter.sources import _gguf_layer_names as layer_names
from rdrr_converter.sources._gguf_gemma import shares_values

ROPE_FREQS = "rope_freqs.weight"
"""Divisors of the rope frequencies, which is how a GGUF states llama3 scaling."""

ROPE_SHORT, ROPE_LONG = "rope_factors_short.weight", "rope_factors_long.weight"
"""Divisors of the rope frequencies of longrope scaling, for short and long contexts."""


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
        has_experts: Whether the models have experts, where llama.cpp gives those with experts
            another name than those without; None where it does not.
    """

    name: str
    hf_class: str
    layer: Mapping[str, str] = field(default_factory=lambda: layer_names.LAYER)
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
    outside: Mapping[str, str] = field(default_factory=lambda: layer_names.OUTSIDE)
    alternating_heads: bool = False
    biases: bool = True
    other_forms: Mapping[str, str] = field(default_factory=lambda: layer_names.NO_FORMS)
    has_attention: bool = True
    whole: Mapping[str, str] = field(default_factory=lambda: layer_names.WHOLE)
    joins_gates: bool = False
    in_metadata: str | None = None
    two_norms: Mapping[str, str] | None = None
    has_experts: bool | None = None

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
                layer_names.MIXTRAL,
                layer_names.QUERIES_KEYS,
                classes=("MistralForCausalLM", "MixtralForCausalLM", "MinistralForCausalLM"),
            ),
            GgufArchitecture("qwen2", "Qwen2ForCausalLM"),
            GgufArchitecture("qwen2moe", "Qwen2MoeForCausalLM", layer_names.EXPERTS),
            GgufArchitecture("qwen3", "Qwen3ForCausalLM"),
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
                {**layer_names.LAYER, **_gguf_latest.APERTUS},
                in_metadata=_gguf_latest.ACTIVATION,
            ),
            GgufArchitecture(
                "hunyuan-moe",
                "HunYuanMoEV1ForCausalLM",
                {**layer_names.HUNYUAN, **_gguf_latest.HUNYUAN_EXPERTS},
            ),
            GgufArchitecture(
                "llama4",
                "Llama4ForCausalLM",
                {**layer_names.LAYER, **_gguf_latest.LLAMA4},
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
                per_layer=_gguf_state_spaces.PER_LAYER,
                whole=layer_names.OF_STATE_SPACES,
                flags=_gguf_state_spaces.STATED,
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
                per_layer=_gguf_state_spaces.PER_LAYER,
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
                per_layer=_gguf_state_spaces.PER_LAYER,
                whole=layer_names.OF_STATE_SPACES,
                flags=(("use_conv_bias", ".mamba.conv1d.bias", True),),
                has_experts=True,
            ),
            GgufArchitecture(
                "falcon-h1",
                "FalconH1ForCausalLM",
                layer_names.HYBRID,
                flags=(
                    *_gguf_state_spaces.STATED,
                    ("attention_bias", ".q_proj.bias", True),
                    ("mamba_rms_norm", ".mamba.norm.weight", True),
                    ("mlp_bias", ".mlp.up_proj.bias", True),
                    ("projectors_bias", ".mamba.out_proj.bias", True),
                ),
                whole=layer_names.OF_STATE_SPACES,
                is_written=False,
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
            ),
            GgufArchitecture(
                "glm4moe",
                "Glm4MoeForCausalLM",
                layer_names.GLM4_MOE,
                flags=(("use_qk_norm", ".q_norm.weight", True),),
                dense_layers=True,
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
                plain_norms=(_gguf_states.PLAIN_NORM,),
                alternating_heads=True,
                other_forms=layer_names.QWEN_FORMS,
            ),
            GgufArchitecture(
                "qwen35moe",
                "Qwen3_5MoeForCausalLM",
                layer_names.QWEN35,
                norm_offset=-1.0,
                plain_norms=(_gguf_states.PLAIN_NORM,),
                alternating_heads=True,
                other_forms=layer_names.QWEN_FORMS,
            ),
            GgufArchitecture(
                "qwen3next",
                "Qwen3NextForCausalLM",
                layer_names.QWEN3_NEXT,
                norm_offset=-1.0,
                plain_norms=(_gguf_states.PLAIN_NORM,),
                other_forms=layer_names.QWEN_FORMS,
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
