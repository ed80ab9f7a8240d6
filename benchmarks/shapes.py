"""The shapes of models that benchmarks run: the sizes that a Hugging Face configuration states.

`synthesize.py` writes checkpoints of these shapes with random weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}


@dataclass(frozen=True)
class Matrix:
    """The weight matrix of one product of a model.

    Attributes:
        name: What the product computes.
        n: Number of outputs.
        k: Number of inputs.
    """

    name: str
    n: int
    k: int


@dataclass(frozen=True)
class Shape:
    """The sizes of a model.

    Attributes:
        model_type: `llama`, `qwen3`, `qwen3_moe` or `gemma3_text`.
        hidden: Hidden size.
        intermediate: Width of the feed-forward network, or of each expert.
        layers: Number of layers.
        heads: Number of query heads.
        kv_heads: Number of key-value heads.
        head_dim: Head dimension.
        vocab: Size of the vocabulary.
        tied: Whether the embedding is also the output head.
        extra: Further keys of the configuration.
    """

    model_type: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def norm_offset(self) -> bool:
        """Return whether norms multiply by 1 + weight instead of by the weight."""
        return self.model_type == "gemma3_text"

    def config(self) -> dict[str, Any]:
        """Return the content of `config.json`."""
        return {
            "architectures": [_CLASSES[self.model_type]],
            "model_type": self.model_type,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "rope_theta": 500000.0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
            **self.extra,
        }

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and the shape of every tensor, in the order of the model."""
        yield "model.embed_tokens.weight", (self.vocab, self.hidden)
        for layer in range(self.layers):
            for name, shape in self._layer():
                yield f"model.layers.{layer}.{name}.weight", shape
        yield "model.norm.weight", (self.hidden,)
        if not self.tied:
            yield "lm_head.weight", (self.vocab, self.hidden)

    def centre(self, name: str, dims: tuple[int, ...]) -> float:
        """Return the mean of a tensor's weights: 1 for norms that scale by their weight, else 0."""
        del name
        return 1.0 if len(dims) == 1 and not self.norm_offset else 0.0

    def matrices(self) -> tuple[Matrix, ...]:
        """Return the distinct weight matrices, with q, k, v and gate, up fused."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (
            Matrix("qkv", queries + 2 * keys, self.hidden),
            Matrix("output", self.hidden, queries),
            Matrix("gate-up", 2 * self.intermediate, self.hidden),
            Matrix("down", self.hidden, self.intermediate),
            Matrix("head", self.vocab, self.hidden),
        )

    def _layer(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "input_layernorm", (self.hidden,)
        yield "self_attn.q_proj", (queries, self.hidden)
        yield "self_attn.k_proj", (keys, self.hidden)
        yield "self_attn.v_proj", (keys, self.hidden)
        yield "self_attn.o_proj", (self.hidden, queries)
        if self.model_type != "llama":
            yield "self_attn.q_norm", (self.head_dim,)
            yield "self_attn.k_norm", (self.head_dim,)
        yield "post_attention_layernorm", (self.hidden,)
        if self.model_type == "gemma3_text":
            yield "pre_feedforward_layernorm", (self.hidden,)
            yield "post_feedforward_layernorm", (self.hidden,)
        yield from self._feed_forward()

    def _feed_forward(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        experts = self.extra.get("num_experts", 0)
        if experts:
            yield "mlp.gate", (experts, self.hidden)
        for prefix in [f"mlp.experts.{index}" for index in range(experts)] or ["mlp"]:
            yield f"{prefix}.gate_proj", (self.intermediate, self.hidden)
            yield f"{prefix}.up_proj", (self.intermediate, self.hidden)
            yield f"{prefix}.down_proj", (self.hidden, self.intermediate)


_GEMMA3 = {
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
}

_QWEN3_MOE = {
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}

SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "tiny": Shape("llama", 256, 512, 3, 4, 2, 64, 1024, tied=False),
        "tiny-gemma3": Shape("gemma3_text", 320, 640, 6, 4, 2, 256, 1024, tied=True, extra=_GEMMA3),
        "tiny-qwen3": Shape("qwen3", 256, 512, 3, 4, 2, 128, 1024, tied=True),
        "tiny-qwen3-moe": Shape(
            "qwen3_moe",
            256,
            256,
            2,
            4,
            2,
            128,
            1024,
            tied=True,
            extra={**_QWEN3_MOE, "num_experts": 12, "moe_intermediate_size": 256},
        ),
        # 4 of the 48 layers of Qwen3-30B-A3B with 32 of their 128 experts: a token reads as many
        # bytes per layer as in the whole model.
        "qwen3-moe-4-layers": Shape(
            "qwen3_moe",
            2048,
            768,
            4,
            32,
            4,
            128,
            32768,
            tied=True,
            extra={**_QWEN3_MOE, "num_experts": 32, "moe_intermediate_size": 768},
        ),
        "smollm-135m": Shape("llama", 576, 1536, 30, 9, 3, 64, 49152, tied=True),
        "qwen3-0.6b": Shape("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, tied=True),
        "llama-1b": Shape("llama", 2048, 8192, 16, 32, 8, 64, 128256, tied=False),
        "gemma3-1b": Shape(
            "gemma3_text", 1152, 6912, 26, 4, 1, 256, 262144, tied=True, extra=_GEMMA3
        ),
        "llama-3b": Shape("llama", 3072, 8192, 28, 24, 8, 128, 128256, tied=True),
        "gemma3-4b": Shape(
            "gemma3_text", 2560, 10240, 34, 8, 4, 256, 262208, tied=True, extra=_GEMMA3
        ),
        "mistral-7b": Shape("llama", 4096, 14336, 32, 32, 8, 128, 32768, tied=False),
        "qwen3-8b": Shape("qwen3", 4096, 12288, 36, 32, 8, 128, 151936, tied=False),
        "llama-8b": Shape("llama", 4096, 14336, 32, 32, 8, 128, 128256, tied=False),
    }
)
"""The shapes by name. The tiny ones are for trying scripts and for tests."""
