"""Derive the semantic graph from the typed blocks of a manifest.

No other module interprets `inference` as instructions. Where the blocks and the tensors disagree,
the tensors decide (a bias that exists is added, a head that exists is used), because published
manifests state some of these flags wrongly.
"""

from __future__ import annotations

from collections.abc import Collection
from math import sqrt
from statistics import NormalDist

from rdrr_format.errors import ManifestError

from rdrr_manifests.graph.altup import AltUp
from rdrr_manifests.graph.experts import clamp_of, expert_width, experts_of
from rdrr_manifests.graph.latent import (
    LatentSizes,
    latent_attention,
    latent_norm,
    latent_rope,
    latent_sizes,
)
from rdrr_manifests.graph.layer_norms import layer_norms
from rdrr_manifests.graph.layer_sizes import LayerSizes, layer_sizes
from rdrr_manifests.graph.names import EXPERT_LATENTS, ExpertNames, TensorNames
from rdrr_manifests.graph.ops import (
    Activation,
    AddToStreams,
    Attention,
    Embed,
    GatedActivation,
    Graph,
    Head,
    Linear,
    Norm,
    Op,
    PositionEmbed,
    PositionScale,
    Residual,
    Rope,
    RopeSpec,
    Scale,
    SigmoidGate,
    Slice,
    Sparsify,
    Stateful,
    WeightKind,
    WeightUse,
)
from rdrr_manifests.graph.per_layer_inputs import input_of_layer, inputs_of_layers, layer_update
from rdrr_manifests.graph.recurrent_layers import has_both, is_recurrent, recurrent_ops
from rdrr_manifests.graph.rotary import rope_spec
from rdrr_manifests.graph.routing import router_of
from rdrr_manifests.graph.support import FEED_FORWARD, check_supported
from rdrr_manifests.models.experts import MoeConfig
from rdrr_manifests.models.inference import Attention as AttentionBlock
from rdrr_manifests.models.manifest import Manifest
from rdrr_manifests.models.state_space import StateSpace as StateSpaceBlock

ACTIVATIONS = {
    "silu": "silu",
    "swiglu": "silu",
    "gelu": "gelu_tanh",
    "geglu": "gelu_tanh",
    "gelu_erf": "gelu_erf",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
}
"""The activation for each spelling; `gelu` has always meant the tanh form in this format."""

XIELU_PARAMETERS = {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}
"""The tensors with the parameters of xIELU and their shapes, in the order of the op."""
BESIDE_DENSE = "dense_plus_moe"
"""Value of `ffn.branchMode` for experts beside a dense feed-forward."""


def window_of(attention: AttentionBlock) -> int | None:
    """Return the window of local layers; half of it lies on each side of a token if not causal."""
    size = attention.sliding_window
    return size if size is None or attention.causal else size // 2 + 1


def derive_graph(manifest: Manifest, names: Collection[str] | None = None) -> Graph:
    """Return the graph of a package.

    Args:
        manifest: Typed manifest, translated from any generation.
        names: Names of the tensors that exist; those of the manifest when None.

    Raises:
        ManifestError: The blocks need an op that this version lacks ("needs a newer rdrr").
    """
    builder = GraphBuilder(manifest, TensorNames(manifest.tensors if names is None else names))
    return builder.build()


class GraphBuilder:
    """A builder of one graph, which appends the ops layer by layer."""

    def __init__(self, manifest: Manifest, names: TensorNames) -> None:
        self.manifest = manifest
        self.names = names
        self.sizes = manifest.architecture
        self.blocks = manifest.inference
        self.ops: list[Op] = []
        self.ropes: list[RopeSpec] = []
        self.activation = self._activation()
        self.clamp = clamp_of(self.blocks.ffn)
        self.state_space = self.blocks.state_space or StateSpaceBlock()

    def prepare(self) -> None:
        """Check that every layer is supported, and find its sizes.

        Raises:
            ManifestError: The blocks need an op that this version lacks.
        """
        check_supported(self.manifest, self.names)
        self.layer_sizes = layer_sizes(self.manifest)

    def build(self) -> Graph:
        """Return the graph of the manifest."""
        self.prepare()
        stream = self._embed()
        self.ops += inputs_of_layers(self.manifest, self.names, stream)
        altup = AltUp(self.manifest, self.names) if self.sizes.altup_num_inputs else None
        if altup is not None:
            self.ops += altup.begin(stream)
            stream = self.ops[-1].out
        for layer in range(self.sizes.num_layers):
            if altup is None:
                stream = self._layer(layer, stream)
            else:
                stream = self._layer_of_streams(layer, stream, altup)
        if altup is not None:
            self.ops += altup.end(stream)
            stream = self.ops[-1].out
        self._head(stream)
        return self.graph(self.sizes.num_layers)

    def graph(self, layers: int) -> Graph:
        """Return the graph of the ops so far."""
        sizes = self.sizes
        return Graph(
            ops=tuple(self.ops),
            ropes=tuple(self.ropes),
            layers=layers,
            hidden_size=sizes.hidden_size,
            vocab_size=sizes.vocab_size,
            context=sizes.max_seq_len,
        )

    def _activation(self) -> str:
        found = ACTIVATIONS.get(self.blocks.ffn.activation)
        if found is None:
            raise ManifestError(
                "this package needs a newer rdrr: it has an unknown activation",
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
            self.names.body("embed_tokens.weight"),
            (rows, sizes.hidden_size),
            WeightKind.TABLE,
        )
        self.ops.append(Embed("x0", self.embedding, scale))
        offset = output.position_embedding_offset
        return "x0" if offset is None else self._positions("x0", offset)

    def _positions(self, stream: str, offset: int) -> str:
        """Append the learned position embedding."""
        name = self.names.body("embed_positions.weight")
        shape = (self.sizes.max_seq_len + offset, self.sizes.hidden_size)
        weight = WeightUse(name, shape, WeightKind.TABLE)
        self.ops.append(PositionEmbed(stream, "x0.placed", weight, offset))
        return "x0.placed"

    def _layer(self, layer: int, stream: str) -> str:
        """Append a decoder layer; take and return the name of the residual stream's value."""
        if self.blocks.layer_pattern.parallel_residual:
            return self._parallel_layer(layer, stream)
        if self.blocks.layer_pattern.single_branch:
            return self._single_branch(layer, stream)
        norms = layer_norms(self.blocks.normalization, self.names, layer)
        hidden = self._norm(layer, norms.attention, stream, f"l{layer}.attn_in")
        branch = self._mixer(layer, hidden)
        if has_both(self.manifest, layer):
            stream = self._add_mixer(layer, stream, branch)
            branch = self._attention(layer, hidden)
        branch = self._norm(layer, norms.attention_output, branch, f"l{layer}.attn_post")
        scale = self.state_space.attention_multiplier
        stream = self._residual(stream, branch, f"l{layer}.x_attn", scale)
        hidden = self._norm(layer, norms.feed_forward, stream, f"l{layer}.ffn_in")
        branch = self._feed_forward(layer, hidden)
        branch = self._add_experts(layer, stream, branch)
        branch = self._norm(layer, norms.feed_forward_output, branch, f"l{layer}.ffn_post")
        scale = self.blocks.ffn.output_multiplier
        stream = self._residual(stream, branch, f"l{layer}.x_ffn", scale)
        self.ops += input_of_layer(self.manifest, self.names, layer, stream, self.activation)
        return self._scaled(layer, self.ops[-1].out)

    def _layer_of_streams(self, layer: int, streams: str, altup: AltUp) -> str:
        """Append a layer with parallel residual streams; return the name of their new value."""
        stem, norms = f"l{layer}", layer_norms(self.blocks.normalization, self.names, layer)
        self.ops += altup.predict(layer, streams)
        predicted = self.ops[-1].out
        self.ops.append(altup.activate(predicted, f"{stem}.active"))
        hidden = self._norm(layer, norms.attention, f"{stem}.active", f"{stem}.attn_in")
        branch = self._attention(layer, hidden)
        branch = self._norm(layer, norms.attention_output, branch, f"{stem}.attn_post")
        stream = self._residual(f"{stem}.active", branch, f"{stem}.x_attn")
        stream = self._add_low_rank(layer, hidden, stream)
        hidden = self._norm(layer, norms.feed_forward, stream, f"{stem}.ffn_in")
        branch = self._feed_forward(layer, hidden)
        branch = self._norm(layer, norms.feed_forward_output, branch, f"{stem}.ffn_post")
        stream = self._residual(stream, branch, f"{stem}.x_ffn")
        self.ops += altup.correct(layer, predicted, stream)
        corrected, gated = self.ops[-1].out, f"{stem}.first"
        self.ops.append(altup.activate(corrected, gated))
        if self.blocks.layer_pattern.altup_correct_scale:
            name = self.names.layer(layer, "altup.correct_output_scale")
            weight = WeightUse(name, (self.sizes.hidden_size,), WeightKind.VECTOR)
            self.ops.append(Scale(gated, f"{gated}.scaled", 1.0, weight))
            gated = f"{gated}.scaled"
        self.ops += layer_update(self.manifest, self.names, layer, gated, self.activation)
        update, out = self.ops[-1].out, f"{stem}.x"
        self.ops.append(AddToStreams(corrected, update, out, altup.count, 1))
        return out

    def _add_low_rank(self, layer: int, hidden: str, stream: str) -> str:
        """Append the low-rank branch beside the attention, if there is one, and the mean of both.

        The branch adds a normed product of two small matrices to its input. The sum of stream and
        branch is divided by the square root of 2.
        """
        rank = self.sizes.laurel_rank
        if rank is None:
            return stream
        low = self._linear(layer, "laurel.linear_left", hidden, rank)
        branch = self._linear(layer, "laurel.linear_right", low, self.sizes.hidden_size, rank)
        branch = self._norm(layer, "laurel.post_laurel_norm", branch, f"l{layer}.laurel_post")
        branch = self._residual(branch, hidden, f"l{layer}.laurel")
        stream = self._residual(stream, branch, f"l{layer}.x_laurel")
        self.ops.append(Scale(stream, f"l{layer}.x_both", sqrt(0.5)))
        return f"l{layer}.x_both"

    def _scaled(self, layer: int, stream: str) -> str:
        """Append the factor on the stream after the layer, if there is one."""
        weight = WeightUse(self.names.layer(layer, "layer_scalar"), (1,), WeightKind.VECTOR)
        if weight.name not in self.names:
            return stream
        self.ops.append(Scale(stream, f"l{layer}.x", 1.0, weight))
        return f"l{layer}.x"

    def _parallel_layer(self, layer: int, stream: str) -> str:
        """Append a layer whose attention and feed-forward both read the stream before it."""
        hidden = self._norm(layer, "input_layernorm", stream, f"l{layer}.attn_in")
        attended = self._attention(layer, hidden)
        if self.blocks.normalization.post_attention_norm:
            hidden = self._norm(layer, "post_attention_layernorm", stream, f"l{layer}.ffn_in")
        branch = self._feed_forward(layer, hidden)
        stream = self._residual(stream, branch, f"l{layer}.x_ffn")
        return self._residual(stream, attended, f"l{layer}.x_attn")

    def _single_branch(self, layer: int, stream: str) -> str:
        """Append a layer that only mixes the tokens, or only has a feed-forward."""
        hidden = self._norm(layer, "input_layernorm", stream, f"l{layer}.in")
        kinds = self.blocks.layer_pattern.layer_types
        if kinds is not None and kinds[layer] == FEED_FORWARD:
            branch = self._feed_forward(layer, hidden)
        else:
            branch = self._mixer(layer, hidden)
        return self._residual(stream, branch, f"l{layer}.x")

    def _mixer(self, layer: int, hidden: str) -> str:
        """Append what mixes the tokens of a layer: attention, or ops with recurrent states."""
        if not is_recurrent(self.manifest, layer):
            return self._attention(layer, hidden)
        states = sum(isinstance(op, Stateful) for op in self.ops)
        self.ops += recurrent_ops(self.manifest, self.names, layer, hidden, states)
        return self.ops[-1].out

    def _attention(self, layer: int, hidden: str) -> str:
        """Append the attention of a layer with its projections; return its output."""
        latent = latent_sizes(self.manifest)
        if latent is not None:
            return self._latent_attention(layer, hidden, latent)
        sizes, attention = self.layer_sizes[layer], self.blocks.attention
        is_rotated = layer not in (self.blocks.rope.unrotated_layers or ())
        heads = {"q": sizes.heads}
        if sizes.cache == layer:
            heads["k"] = sizes.kv_heads
        values = {}
        for kind, count in heads.items():
            value = self._projected(layer, kind, hidden, count * sizes.head_dim)
            if not attention.query_key_norm_after_rope:
                value = self._head_norm(layer, kind, value, count, sizes.head_dim)
            value = self._clipped(value, count * sizes.head_dim)
            value = self._rotated(value, count, sizes.is_global) if is_rotated else value
            if attention.query_key_norm_after_rope:
                value = self._head_norm(layer, kind, value, count, sizes.head_dim)
            if is_rotated and attention.query_key_unit_norm:
                value = self._unit_norm(value, count, sizes.head_dim)
            values[kind] = self._position_scale(value, is_rotated) if kind == "q" else value
        if "k" in values:
            values["v"] = self._clipped(self._values(layer, hidden, sizes), sizes.kv)
        out = f"l{layer}.attn"
        assert sizes.cache is not None, "`check_supported` refuses such a layer"
        self.ops.append(
            Attention(
                q=values["q"],
                k=values.get("k"),
                v=values.get("v"),
                out=out,
                layer=sizes.cache,
                heads=sizes.heads,
                kv_heads=sizes.kv_heads,
                head_dim=sizes.head_dim,
                scale=1.0 / sqrt(attention.query_pre_attn_scalar),
                window=None if sizes.is_global else window_of(attention),
                softcap=attention.attn_logit_softcapping,
                sinks=self._sinks(layer),
                chunk=None if sizes.is_global else attention.attention_chunk_size,
                causal=attention.causal,
            )
        )
        if attention.attention_output_gate:
            gate = self._gated_half(layer, "gate", sizes.head_dim)
            self.ops.append(GatedActivation(gate, out, f"{out}.gated", "sigmoid", sizes.q))
            out = f"{out}.gated"
        return self._linear(layer, "self_attn.o_proj", out, self.sizes.hidden_size, sizes.q)

    def _clipped(self, value: str, width: int) -> str:
        """Append the limit on queries, keys or values, if there is one; return the output."""
        limit = self.blocks.attention.clip_qkv
        if limit is None:
            return value
        out = f"{value}.clipped"
        self.ops.append(Activation(value, out, "clip", width, limit=limit))
        return out

    def _projected(self, layer: int, kind: str, hidden: str, width: int) -> str:
        """Append a projection of queries or keys; with an output gate, that of queries is wider."""
        part = f"self_attn.{kind}_proj"
        if kind != "q" or not self.blocks.attention.attention_output_gate:
            return self._linear(layer, part, hidden, width)
        self._linear(layer, part, hidden, 2 * width)
        return self._gated_half(layer, "query", width // self.sizes.num_attention_heads)

    def _gated_half(self, layer: int, half: str, width: int) -> str:
        """Append the queries, or the gates, of a projection to both, head by head."""
        whole, heads = f"l{layer}.q_proj", self.sizes.num_attention_heads
        first = 0 if half == "query" else width
        self.ops.append(Slice(whole, f"{whole}.{half}", heads, 2 * width, first, width))
        return f"{whole}.{half}"

    def _sinks(self, layer: int) -> WeightUse | None:
        name = self.names.layer(layer, "self_attn.sinks")
        shape = (self.sizes.num_attention_heads,)
        return WeightUse(name, shape, WeightKind.VECTOR) if name in self.names else None

    def _unit_norm(self, value: str, heads: int, width: int) -> str:
        """Append a norm of each head without a weight."""
        out, eps = f"{value}.unit", self.blocks.normalization.rms_norm_eps
        self.ops.append(Norm(value, out, None, eps, False, heads, elements=width))
        return out

    def _position_scale(self, value: str, is_rotated: bool) -> str:
        """Append the scale of the queries by the position, if the layer has one."""
        attention = self.blocks.attention
        scale, length = attention.temperature_scale, attention.temperature_length
        is_other_kind = attention.temperature_without_rope and is_rotated
        if scale is None or length is None or is_other_kind:
            return value
        offset = int(attention.temperature_without_rope)
        self.ops.append(PositionScale(value, f"{value}.scaled", scale, length, offset))
        return f"{value}.scaled"

    def _values(self, layer: int, hidden: str, sizes: LayerSizes) -> str:
        """Append the values of a layer, which are its projected keys if it has no projection."""
        norms, attention = self.blocks.normalization, self.blocks.attention
        shares = attention.value_norm and sizes.is_global
        own = self.names.layer(layer, "self_attn.v_proj.weight") in self.names
        if shares and not own:
            value = f"l{layer}.k_proj"
        else:
            value = self._linear(layer, "self_attn.v_proj", hidden, sizes.kv)
        if not attention.value_norm:
            return value
        out, eps = f"l{layer}.v_proj.norm", norms.rms_norm_eps
        self.ops.append(Norm(value, out, None, eps, False, sizes.kv_heads, elements=sizes.head_dim))
        return out

    def _latent_attention(self, layer: int, hidden: str, latent: LatentSizes) -> str:
        """Append the attention of a layer that caches latents, without its norm."""
        heads, size = self.sizes.num_attention_heads, self.sizes.hidden_size
        width, part = heads * latent.query_dim, "self_attn.kv_a_proj_with_mqa"
        if latent.queries is None:
            q = self._linear(layer, "self_attn.q_proj", hidden, width)
            kv = self._linear(layer, part, hidden, latent.latent + latent.rope_dim)
        else:
            q = self._linear(layer, "self_attn.q_a_proj", hidden, latent.queries)
            kv = self._linear(layer, part, hidden, latent.latent + latent.rope_dim)
            stem, out = self.names.layer(layer, "self_attn.q_a_layernorm"), f"{q}.norm"
            self.ops.append(latent_norm(self.manifest, stem, latent.queries, q, out))
            q = self._linear(layer, "self_attn.q_b_proj", out, width, latent.queries)
        table = self._table(latent_rope(self.manifest, latent))
        op = latent_attention(self.manifest, self.names, layer, q, kv, table)
        self.ops.append(op)
        return self._linear(layer, "self_attn.o_proj", op.out, size, heads * latent.value_dim)

    def _table(self, spec: RopeSpec) -> int:
        """Return the index of a rotary embedding, which is added to those of the graph."""
        if spec not in self.ropes:
            self.ropes.append(spec)
        return self.ropes.index(spec)

    def _head_norm(self, layer: int, kind: str, value: str, heads: int, width: int) -> str:
        """Append the norm of the queries or keys, if the layer has one."""
        stem = self.names.head_norm(layer, kind)
        attention = self.blocks.attention
        if not attention.query_key_norm and f"{stem}.weight" not in self.names:
            return value
        if attention.query_key_norm_spans_heads:
            return self._append_norm(stem, (heads * width,), value, f"{value}.norm")
        shape = (heads, width) if attention.query_key_norm_per_head else (width,)
        return self._append_norm(stem, shape, value, f"{value}.norm", heads)

    def _feed_forward(self, layer: int, hidden: str) -> str:
        """Append the dense feed-forward or the experts of a layer; return the output's name."""
        experts = self.names.experts(layer)
        moe, is_beside = self.manifest.moe_config, self.blocks.ffn.branch_mode == BESIDE_DENSE
        if experts is not None and moe is not None and not is_beside:
            return self._mixture(layer, hidden, experts, moe)
        inner, out = self.layer_sizes[layer].inner, f"l{layer}.act"
        if not self.blocks.ffn.gated_activation:
            x = self._linear(layer, "mlp.up_proj", hidden, inner)
            parameters = self._activation_parameters(layer)
            self.ops.append(Activation(x, out, self.activation, inner, parameters))
            return self._linear(layer, "mlp.down_proj", out, self.sizes.hidden_size, inner)
        fused = self.names.layer(layer, "mlp.gate_up_proj.weight")
        if fused in self.names:
            gate = self._linear(layer, "mlp.gate_up_proj", hidden, 2 * inner)
            up = None
        else:
            gate = self._linear(layer, "mlp.gate_proj", hidden, inner)
            gate = self._sparsified(layer, gate)
            up = self._linear(layer, "mlp.up_proj", hidden, inner)
        scale = self.blocks.ffn.gate_multiplier
        self.ops.append(
            GatedActivation(gate, up, out, self.activation, inner, self.clamp, gate_scale=scale)
        )
        return self._linear(layer, "mlp.down_proj", out, self.sizes.hidden_size, inner)

    def _sparsified(self, layer: int, gate: str) -> str:
        """Append the cutoff of a gate, if the layer has one."""
        shares = self.blocks.ffn.activation_sparsity
        if shares is None or not shares[layer]:
            return gate
        self.ops.append(Sparsify(gate, f"{gate}.sparse", NormalDist().inv_cdf(shares[layer])))
        return f"{gate}.sparse"

    def _activation_parameters(self, layer: int) -> tuple[WeightUse, ...]:
        """Return the tensors that hold the parameters of the activation of a layer."""
        shapes = XIELU_PARAMETERS if self.activation == "xielu" else {}
        return tuple(
            WeightUse(self.names.layer(layer, f"mlp.act_fn.{name}"), shape, WeightKind.VECTOR)
            for name, shape in shapes.items()
        )

    def _add_experts(self, layer: int, stream: str, dense: str) -> str:
        """Append the experts beside the dense feed-forward, if the layer has both, and their sum.

        Both branches read the stream through norms of their own, and so does the router.
        """
        names, moe = self.names.experts(layer), self.manifest.moe_config
        if names is None or moe is None or self.blocks.ffn.branch_mode != BESIDE_DENSE:
            return dense
        size, stem = self.sizes.hidden_size, f"l{layer}.router"
        gain = WeightUse(self.names.layer(layer, "router.scale"), (size,), WeightKind.VECTOR)
        eps = self.blocks.normalization.rms_norm_eps
        self.ops.append(Norm(stream, f"{stem}_in", gain, eps, False))
        self.ops.append(Scale(f"{stem}_in", f"{stem}_scaled", 1.0 / sqrt(size)))
        hidden = self._norm(layer, "pre_feedforward_layernorm_2", stream, f"l{layer}.experts_in")
        mixed = self._mixture(layer, hidden, names, moe, routed=f"{stem}_scaled")
        mixed = self._norm(layer, "post_feedforward_layernorm_2", mixed, f"l{layer}.experts_post")
        dense = self._norm(layer, "post_feedforward_layernorm_1", dense, f"l{layer}.dense_post")
        self.ops.append(Residual(dense, mixed, f"l{layer}.ffn"))
        return f"l{layer}.ffn"

    def _mixture(
        self,
        layer: int,
        hidden: str,
        names: ExpertNames,
        moe: MoeConfig,
        routed: str | None = None,
    ) -> str:
        """Append the experts of a layer, and the shared expert if there is one.

        The router reads `routed`, or what the experts read if it is None.
        """
        router, out = f"l{layer}.router", f"l{layer}.experts"
        weight = self._use(layer, names.router, (moe.num_experts, self.sizes.hidden_size))
        self.ops.append(router_of(moe, self.names, layer, routed or hidden, router, weight))
        latent, size = moe.expert_latent_size, self.sizes.hidden_size
        read = hidden if latent is None else self._linear(layer, EXPERT_LATENTS[0], hidden, latent)
        self.ops.append(
            experts_of(self.manifest, self.names, layer, read, router, out, self.activation)
        )
        if latent is not None:
            out = self._linear(layer, EXPERT_LATENTS[1], out, size, latent)
        part = self.names.shared_expert(layer)
        if part is None:
            return out
        width = moe.shared_expert_intermediate_size or expert_width(self.manifest, moe)
        shared = self._shared_expert(layer, part, hidden, width)
        self.ops.append(Residual(out, shared, f"l{layer}.ffn"))
        return f"l{layer}.ffn"

    def _shared_expert(self, layer: int, part: str, hidden: str, width: int) -> str:
        size, act, out = self.sizes.hidden_size, f"l{layer}.act", f"l{layer}.shared"
        if self.blocks.ffn.gated_activation:
            gate = self._linear(layer, f"{part}.gate_proj", hidden, width)
            up = self._linear(layer, f"{part}.up_proj", hidden, width)
            self.ops.append(GatedActivation(gate, up, act, self.activation, width, self.clamp))
        else:
            up = self._linear(layer, f"{part}.up_proj", hidden, width)
            self.ops.append(Activation(up, act, self.activation, width))
        branch = self._linear(layer, f"{part}.down_proj", act, size, width)
        weight = self._use(layer, "mlp.shared_expert_gate", (1, size), WeightKind.VECTOR)
        if weight.name not in self.names:
            return branch
        self.ops.append(SigmoidGate(hidden, branch, out, weight))
        return out

    def _use(
        self,
        layer: int,
        part: str,
        shape: tuple[int, ...],
        kind: WeightKind = WeightKind.MATRIX,
    ) -> WeightUse:
        return WeightUse(self.names.layer(layer, f"{part}.weight"), shape, kind)

    def _head(self, stream: str) -> None:
        sizes, output = self.sizes, self.blocks.output
        self._append_norm(self.names.body("norm"), (sizes.hidden_size,), stream, "final")
        own, bias, rows = self.names.head(), self.names.head_bias(), self.embedding.shape[:1]
        self.ops.append(
            Head(
                "final",
                "logits",
                WeightUse(self.embedding.name if own is None else own, self.embedding.shape),
                output.logit_input_scale,
                output.final_logit_softcapping,
                None if bias is None else WeightUse(bias, rows, WeightKind.VECTOR),
            )
        )

    def _norm(self, layer: int, part: str | None, x: str, out: str) -> str:
        """Append a norm of a layer, if it has it; return the output's name."""
        if part is None:
            return x
        return self._append_norm(self.names.layer(layer, part), (self.sizes.hidden_size,), x, out)

    def _append_norm(
        self, stem: str, shape: tuple[int, ...], x: str, out: str, groups: int = 1
    ) -> str:
        """Append a norm, given the name of its tensors without `.weight`; return its output."""
        norms, bias = self.blocks.normalization, f"{stem}.bias"
        weight = WeightUse(f"{stem}.weight", shape, WeightKind.VECTOR)
        self.ops.append(
            Norm(
                x,
                out,
                weight if norms.norm_weights else None,
                norms.rms_norm_eps,
                norms.rms_norm_weight_offset,
                groups,
                norms.layer_norm,
                WeightUse(bias, shape, WeightKind.VECTOR) if bias in self.names else None,
                None if norms.norm_weights else shape[-1],
            )
        )
        return out

    def _linear(
        self, layer: int, part: str, x: str, features: int, inputs: int | None = None
    ) -> str:
        out = f"l{layer}.{part.rpartition('.')[2]}"
        shape = (features, inputs or self.sizes.hidden_size)
        bias_name = self.names.layer(layer, f"{part}.bias")
        has_bias = bias_name in self.names
        bias = WeightUse(bias_name, (features,), WeightKind.VECTOR) if has_bias else None
        weight = self._use(layer, part, shape)
        self.ops.append(Linear(x, out, weight, bias))
        return out

    def _add_mixer(self, layer: int, stream: str, branch: str) -> str:
        """Append the sum of the stream and the state space of a layer that also has attention."""
        scale = self.state_space.output_multiplier
        return self._residual(stream, branch, f"l{layer}.x_ssm", scale)

    def _residual(self, x: str, branch: str, out: str, scale: float = 1.0) -> str:
        scale *= self.blocks.layer_pattern.residual_branch_scale
        self.ops.append(Residual(x, branch, out, scale))
        return out

    def _rotated(self, value: str, heads: int, is_global: bool) -> str:
        spec = rope_spec(self.manifest, is_global=is_global)
        if spec not in self.ropes:
            self.ropes.append(spec)
        interleaved = self.blocks.rope.rope_interleaved
        out, table = f"{value}.rope", self.ropes.index(spec)
        self.ops.append(Rope(value, out, heads, table, interleaved))
        return f"{value}.rope"
