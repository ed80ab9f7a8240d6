"""From typed blocks to the semantic graph.

The only place that reads `inference` as instructions. Where blocks and tensors disagree, the
tensors decide (a bias that is there is added, a head that is there is used), because published
manifests state some of these flags wrongly.
"""

from __future__ import annotations

from collections.abc import Collection
from math import sqrt

from rdrr_format.errors import ManifestError

from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.graph.ops import (
    Attention,
    Embed,
    GatedActivation,
    Graph,
    Head,
    Linear,
    Norm,
    Op,
    Residual,
    Rope,
    RopeSpec,
    WeightUse,
)
from rdrr_manifests.models._base import ManifestModel
from rdrr_manifests.models.manifest import Manifest

ACTIVATIONS = {"silu": "silu", "swiglu": "silu", "gelu": "gelu_tanh", "geglu": "gelu_tanh"}
"""Spellings of manifests; `gelu` has always meant the tanh form in this format."""

_FOREIGN_SIZES = (
    "globalHeadDim",
    "hiddenSizePerLayerInput",
    "numKvSharedLayers",
    "linearNumKeyHeads",
    "linearNumValueHeads",
)
"""Sizes of parts that no op here computes; null or 0 where a model does without them."""

_SCALINGS = (None, "linear", "llama3", "yarn", "longrope")


def derive_graph(manifest: Manifest, names: Collection[str] | None = None) -> Graph:
    """The graph of a package.

    Args:
        manifest: Parsed manifest of any generation.
        names: Tensor names to decide by; the manifest's own when None.

    Raises:
        ManifestError: The blocks call for an op outside the set ("needs a newer rdrr").
    """
    builder = _Builder(manifest, TensorNames(manifest.tensors if names is None else names))
    return builder.build()


def _says(block: ManifestModel, key: str) -> bool:
    """Whether a block has a field of other writers with a value that asks for something."""
    return bool((block.model_extra or {}).get(key))


def is_global_layer(manifest: Manifest, layer: int) -> bool:
    """Whether a layer is one of those that attend to all earlier tokens.

    A pattern holds without a window too: its local layers may have a rope base of their own.
    """
    pattern = manifest.inference.layer_pattern
    if pattern.layer_types is not None:
        return pattern.layer_types[layer] == "full_attention"
    if pattern.type == "every_n" and pattern.period:
        return layer % pattern.period == (pattern.offset or 0)
    if pattern.type == "alternating":
        return layer % 2 == (0 if pattern.global_pattern == "even" else 1)
    return manifest.inference.attention.sliding_window is None


class _Builder:
    """Holds what all layers share while ops are appended."""

    def __init__(self, manifest: Manifest, names: TensorNames) -> None:
        self.manifest = manifest
        self.names = names
        self.sizes = manifest.architecture
        self.blocks = manifest.inference
        self.ops: list[Op] = []
        self.ropes: list[RopeSpec] = []
        self.activation = self._activation()

    def build(self) -> Graph:
        self._check_supported()
        stream = self._embed()
        for layer in range(self.sizes.num_layers):
            stream = self._layer(layer, stream)
        self._head(stream)
        sizes = self.sizes
        return Graph(
            ops=tuple(self.ops),
            ropes=tuple(self.ropes),
            layers=sizes.num_layers,
            hidden_size=sizes.hidden_size,
            kv_heads=sizes.num_key_value_heads,
            head_dim=sizes.head_dim,
            vocab_size=sizes.vocab_size,
            context=sizes.max_seq_len,
        )

    def _check_supported(self) -> None:
        blocks, manifest = self.blocks, self.manifest
        scaling = (blocks.rope.rope_scaling_type, blocks.rope.rope_local_scaling_type)
        unsupported = {
            "modelType": manifest.model_type not in ("transformer", "embedding"),
            "moeConfig": manifest.moe_config is not None,
            "inference.attention.causal": not blocks.attention.causal,
            "inference.attention.valueNorm": blocks.attention.value_norm,
            "inference.ffn.gatedActivation": not blocks.ffn.gated_activation,
            "inference.ffn.useDoubleWideMlp": blocks.ffn.use_double_wide_mlp,
            "inference.ffn.swigluLimit": blocks.ffn.swiglu_limit is not None,
            "inference.rope.mropeSection": blocks.rope.mrope_section is not None,
            "inference.rope.ropeScalingType": any(kind not in _SCALINGS for kind in scaling),
            "inference.attention.attentionOutputGate": _says(
                blocks.attention, "attentionOutputGate"
            ),
            **{f"architecture.{key}": _says(manifest.architecture, key) for key in _FOREIGN_SIZES},
            "inference.output.embeddingTranspose": blocks.output.embedding_transpose,
            "inference.layerPattern.layerTypes": any(
                kind not in ("full_attention", "sliding_attention")
                for kind in blocks.layer_pattern.layer_types or ()
            ),
        }
        kinds = blocks.layer_pattern.layer_types
        if kinds is not None and len(kinds) < manifest.architecture.num_layers:
            raise ManifestError(
                "the pattern does not cover every layer",
                where="inference.layerPattern.layerTypes",
                expected=f"{manifest.architecture.num_layers} kinds",
                found=len(kinds),
            )
        for where, is_unsupported in unsupported.items():
            if is_unsupported:
                raise ManifestError(
                    "this package needs a newer rdrr: no op for what the field asks", where=where
                )

    def _activation(self) -> str:
        found = ACTIVATIONS.get(self.blocks.ffn.activation)
        if found is None:
            raise ManifestError(
                "this package needs a newer rdrr: unknown activation",
                where="inference.ffn.activation",
                expected=" or ".join(ACTIVATIONS),
                found=self.blocks.ffn.activation,
            )
        return found

    def _embed(self) -> str:
        output, sizes = self.blocks.output, self.sizes
        scale = 1.0
        if output.embedding_scale is not None:
            scale = output.embedding_scale
        elif output.scale_embeddings:
            scale = sqrt(sizes.hidden_size)
        rows = output.embedding_vocab_size or sizes.vocab_size
        self.embedding = WeightUse(
            self.names.body("embed_tokens.weight"), (rows, sizes.hidden_size)
        )
        self.ops.append(Embed("x0", self.embedding, scale))
        return "x0"

    def _layer(self, layer: int, stream: str) -> str:
        norms = self.blocks.normalization
        sandwich = norms.pre_feedforward_norm
        branch = self._attention(layer, stream)
        if sandwich and norms.post_attention_norm:
            branch = self._norm(layer, "post_attention_layernorm", branch, f"l{layer}.attn_post")
        stream = self._residual(stream, branch, f"l{layer}.x_attn")
        ffn_norm = "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"
        hidden = self._norm(layer, ffn_norm, stream, f"l{layer}.ffn_in")
        branch = self._feed_forward(layer, hidden)
        if norms.post_feedforward_norm:
            branch = self._norm(layer, "post_feedforward_layernorm", branch, f"l{layer}.ffn_post")
        return self._residual(stream, branch, f"l{layer}.x_ffn")

    def _attention(self, layer: int, stream: str) -> str:
        sizes, attention = self.sizes, self.blocks.attention
        hidden = self._norm(layer, "input_layernorm", stream, f"l{layer}.attn_in")
        is_global = is_global_layer(self.manifest, layer)
        table = self._rope_table(is_global)
        heads = {"q": sizes.num_attention_heads, "k": sizes.num_key_value_heads}
        values = {}
        for kind, count in heads.items():
            value = self._linear(layer, f"self_attn.{kind}_proj", hidden, count * sizes.head_dim)
            value = self._head_norm(layer, kind, value, count)
            self.ops.append(Rope(value, f"{value}.rope", count, table))
            values[kind] = f"{value}.rope"
        width = sizes.num_key_value_heads * sizes.head_dim
        values["v"] = self._linear(layer, "self_attn.v_proj", hidden, width)
        out = f"l{layer}.attn"
        self.ops.append(
            Attention(
                q=values["q"],
                k=values["k"],
                v=values["v"],
                out=out,
                layer=layer,
                heads=sizes.num_attention_heads,
                kv_heads=sizes.num_key_value_heads,
                head_dim=sizes.head_dim,
                scale=1.0 / sqrt(attention.query_pre_attn_scalar),
                window=None if is_global else attention.sliding_window,
                softcap=attention.attn_logit_softcapping,
            )
        )
        inner = sizes.num_attention_heads * sizes.head_dim
        return self._linear(layer, "self_attn.o_proj", out, sizes.hidden_size, inner)

    def _head_norm(self, layer: int, kind: str, value: str, heads: int) -> str:
        name = self.names.layer(layer, f"self_attn.{kind}_norm.weight")
        if not self.blocks.attention.query_key_norm and name not in self.names:
            return value
        weight = WeightUse(name, (self.sizes.head_dim,))
        norms = self.blocks.normalization
        self.ops.append(
            Norm(
                value,
                f"{value}.norm",
                weight,
                norms.rms_norm_eps,
                norms.rms_norm_weight_offset,
                heads,
            )
        )
        return f"{value}.norm"

    def _feed_forward(self, layer: int, hidden: str) -> str:
        inner, out = self.sizes.intermediate_size, f"l{layer}.act"
        fused = self.names.layer(layer, "mlp.gate_up_proj.weight")
        if fused in self.names:
            gate = self._linear(layer, "mlp.gate_up_proj", hidden, 2 * inner)
            up = None
        else:
            gate = self._linear(layer, "mlp.gate_proj", hidden, inner)
            up = self._linear(layer, "mlp.up_proj", hidden, inner)
        self.ops.append(GatedActivation(gate, up, out, self.activation, inner))
        return self._linear(layer, "mlp.down_proj", out, self.sizes.hidden_size, inner)

    def _head(self, stream: str) -> None:
        sizes, output, norms = self.sizes, self.blocks.output, self.blocks.normalization
        weight = WeightUse(self.names.body("norm.weight"), (sizes.hidden_size,))
        self.ops.append(
            Norm(stream, "final", weight, norms.rms_norm_eps, norms.rms_norm_weight_offset)
        )
        own = self.names.head()
        use = self.embedding if own is None else WeightUse(own, self.embedding.shape)
        self.ops.append(
            Head("final", "logits", use, output.logit_input_scale, output.final_logit_softcapping)
        )

    def _norm(self, layer: int, part: str, x: str, out: str) -> str:
        norms = self.blocks.normalization
        weight = WeightUse(self.names.layer(layer, f"{part}.weight"), (self.sizes.hidden_size,))
        self.ops.append(Norm(x, out, weight, norms.rms_norm_eps, norms.rms_norm_weight_offset))
        return out

    def _linear(
        self, layer: int, part: str, x: str, features: int, inputs: int | None = None
    ) -> str:
        out = f"l{layer}.{part.rsplit('.', 1)[1]}"
        shape = (features, inputs or self.sizes.hidden_size)
        bias_name = self.names.layer(layer, f"{part}.bias")
        bias = WeightUse(bias_name, (features,)) if bias_name in self.names else None
        weight = WeightUse(self.names.layer(layer, f"{part}.weight"), shape)
        self.ops.append(Linear(x, out, weight, bias))
        return out

    def _residual(self, x: str, branch: str, out: str) -> str:
        scale = self.blocks.layer_pattern.residual_branch_scale
        self.ops.append(Residual(x, branch, out, scale))
        return out

    def _rope_table(self, is_global: bool) -> int:
        spec = rope_spec(self.manifest, is_global=is_global)
        if spec not in self.ropes:
            self.ropes.append(spec)
        return self.ropes.index(spec)


def rope_spec(manifest: Manifest, *, is_global: bool) -> RopeSpec:
    """The rotary embedding of global layers, or of sliding-window ones where that differs."""
    rope, head_dim = manifest.inference.rope, manifest.architecture.head_dim
    is_local = not is_global and rope.rope_local_theta is not None
    partial = (
        rope.rope_local_partial_rotary_factor if is_local else None
    ) or rope.partial_rotary_factor
    rotary_dim = int(head_dim * partial) if partial else head_dim
    if is_local:
        assert rope.rope_local_theta is not None
        return RopeSpec(
            theta=rope.rope_local_theta,
            head_dim=head_dim,
            rotary_dim=rotary_dim,
            scaling=rope.rope_local_scaling_type,
            factor=rope.rope_local_scaling_factor,
            beta_fast=rope.rope_local_yarn_beta_fast,
            beta_slow=rope.rope_local_yarn_beta_slow,
            original_max_pos=rope.rope_local_yarn_original_max_pos,
        )
    return RopeSpec(
        theta=rope.rope_theta,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        scaling=rope.rope_scaling_type,
        factor=rope.rope_scaling_factor,
        low_freq_factor=rope.llama3_low_freq_factor,
        high_freq_factor=rope.llama3_high_freq_factor,
        beta_fast=rope.yarn_beta_fast,
        beta_slow=rope.yarn_beta_slow,
        original_max_pos=(
            rope.llama3_original_max_pos
            or rope.yarn_original_max_pos
            or rope.longrope_original_max_pos
        ),
        short_factor=rope.longrope_short_factor,
        long_factor=rope.longrope_long_factor,
    )
