"""Find tensors by their function in the model, whatever prefix the writer of the package chose."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

PREFIXES = (
    "model.",
    "language_model.model.",
    "model.language_model.",
    "model.text_model.",
    "model.decoder.",
    "transformer.",
    "",
)
"""The prefixes of `layers.0...` in the packages seen so far, the usual one first."""


GATE_UP = "gate_up_proj"
"""Name of a gate and an up projection in one matrix, in place of the names of the two."""

PAIRS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
"""The names of a gate and an up projection, and of the down projection that tells which they are
where they are stored as one matrix."""


@dataclass(frozen=True)
class ExpertNames:
    """The names of the parts of a layer with experts, in one family of checkpoints.

    Attributes:
        router: Name of the router's matrix.
        gate: Name of an expert's gate projection, with `{expert}` for the expert's number.
        up: Name of an expert's up projection, likewise.
        down: Name of an expert's down projection, likewise.
    """

    router: str
    gate: str
    up: str
    down: str

    @property
    def gate_up(self) -> str:
        """Name of an expert's gate and up projections in one matrix, likewise."""
        return f"{self.up.rpartition('.')[0]}.{GATE_UP}"

    def expert(self, number: int) -> tuple[str, str, str]:
        """Return the names of an expert's gate, up and down projections, without `.weight`."""
        gate, up, down = (part.format(expert=number) for part in (self.gate, self.up, self.down))
        return gate, up, down


EXPERT_NAMES = (
    ExpertNames(
        "mlp.gate.wg",
        "mlp.experts.{expert}.gate_proj",
        "mlp.experts.{expert}.up_proj",
        "mlp.experts.{expert}.down_proj",
    ),
    ExpertNames(
        "mlp.gate",
        "mlp.experts.{expert}.gate_proj",
        "mlp.experts.{expert}.up_proj",
        "mlp.experts.{expert}.down_proj",
    ),
    ExpertNames(
        "block_sparse_moe.gate",
        "block_sparse_moe.experts.{expert}.w1",
        "block_sparse_moe.experts.{expert}.w3",
        "block_sparse_moe.experts.{expert}.w2",
    ),
    ExpertNames(
        "mlp.router",
        "mlp.experts.{expert}.gate_proj",
        "mlp.experts.{expert}.up_proj",
        "mlp.experts.{expert}.down_proj",
    ),
    ExpertNames(
        "router.proj",
        "experts.{expert}.gate_proj",
        "experts.{expert}.up_proj",
        "experts.{expert}.down_proj",
    ),
    ExpertNames(
        "block_sparse_moe.router.layer",
        "block_sparse_moe.experts.{expert}.gate_proj",
        "block_sparse_moe.experts.{expert}.up_proj",
        "block_sparse_moe.experts.{expert}.down_proj",
    ),
)
"""The names in Qwen's checkpoints, in Mixtral's, in those of gpt-oss, of Gemma and of Granite."""

SHARED_EXPERTS = ("mlp.shared_expert", "mlp.shared_experts", "mlp.shared_mlp")
"""Names of the expert that every token uses, or of several that are stored as a wider one."""

EXPERT_LATENTS = ("mlp.fc1_latent_proj", "mlp.fc2_latent_proj")
"""Names of the projections to the latent that routed experts read, and from what they write."""

SUM_BIAS = "mlp.experts.bias"
"""Name of what is added once to the sum of the experts."""

SELECTION_BIASES = (
    "mlp.gate.e_score_correction_bias",
    "mlp.moe_statics.e_score_correction_bias",
    "block_sparse_moe.e_score_correction_bias",
)
"""Names of the bias on the scores by which experts are selected: DeepSeek's, Ernie's, MiniMax's."""


HEAD_NORMS = {
    "q": ("q_norm", "query_layernorm", "q_layernorm"),
    "k": ("k_norm", "key_layernorm", "k_layernorm"),
}
"""The names of the norms of queries and keys: the usual ones, those of Hunyuan and of LFM2."""


LFM2_MODULES = {
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    "norm": "embedding_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "self_attn.o_proj": "self_attn.out_proj",
}
"""The names of modules in LFM2's checkpoints, which other writers of packages keep."""


class TensorNames:
    """The tensor names of one package.

    Args:
        names: Every tensor name of the package.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._prefix = next(
            (p for p in PREFIXES if f"{p}embed_tokens.weight" in self._names), PREFIXES[0]
        )

        is_lfm2 = f"{self._prefix}embedding_norm.weight" in self._names
        self._modules = LFM2_MODULES if is_lfm2 else {}

    @property
    def prefix(self) -> str:
        """The prefix of `layers.0...` in this package."""
        return self._prefix

    def body(self, part: str) -> str:
        """Return the full name of a tensor outside the layers, whether or not it exists."""
        return f"{self._prefix}{self._stored(part)}"

    def _stored(self, part: str) -> str:
        """Return the name that this package has for a module, or for a tensor of a module."""
        for usual, stored in self._modules.items():
            if part == usual or part.startswith(f"{usual}."):
                return stored + part.removeprefix(usual)
        return part

    def layer(self, index: int, part: str) -> str:
        """Return the full name of a tensor of a layer, whether or not it exists."""
        return f"{self._prefix}layers.{index}.{self._stored(part)}"

    def head_norm(self, index: int, kind: str) -> str:
        """Return the name of the norm of a layer's queries or keys, without `.weight`.

        Args:
            index: Index of the layer.
            kind: `q` or `k`.
        """
        names = [self.layer(index, f"self_attn.{part}") for part in HEAD_NORMS[kind]]
        return next((name for name in names if f"{name}.weight" in self), names[0])

    def experts(self, layer: int) -> ExpertNames | None:
        """Return the names of a layer's experts; None for a layer without experts."""
        return next(
            (
                names
                for names in EXPERT_NAMES
                if self.layer(layer, f"{names.router}.weight") in self
            ),
            None,
        )

    def shared_expert(self, layer: int) -> str | None:
        """Return the name of a layer's shared expert; None for a layer without one."""
        present = (
            part
            for part in SHARED_EXPERTS
            if any(self.layer(layer, f"{part}.{up}.weight") in self for up in ("up_proj", GATE_UP))
        )
        return next(present, None)

    def head(self) -> str | None:
        """Return the name of the output head's tensor; None if the head uses the embedding."""
        return self._of_head("weight")

    def head_bias(self) -> str | None:
        """Return the name of the bias of the output head; None if it has none."""
        return self._of_head("bias")

    def _of_head(self, kind: str) -> str | None:
        candidates = (
            f"lm_head.{kind}",
            f"language_model.lm_head.{kind}",
            self.body(f"lm_head.{kind}"),
        )
        return next((name for name in candidates if name in self._names), None)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._names
