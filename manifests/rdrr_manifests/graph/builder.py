"""A graph under construction: its ops so far, and the parts that every kind of layer has.

The modules that append layers share this state: `layers` the order of a layer's parts,
`attention_layers` attention with its projections, `feed_forwards` dense feed-forwards and experts.
"""

from __future__ import annotations

from rdrr_format.errors import ManifestError

from rdrr_manifests.graph.experts import clamp_of
from rdrr_manifests.graph.layer_sizes import layer_sizes
from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.graph.ops import (
    Graph,
    Linear,
    Norm,
    Op,
    Residual,
    RopeSpec,
    WeightKind,
    WeightUse,
)
from rdrr_manifests.graph.support import check_supported
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


class GraphBuilder:
    """A graph under construction.

    Args:
        manifest: Typed manifest, translated from any generation.
        names: Names of the tensors that exist.

    Attributes:
        sizes: The block `architecture`.
        blocks: The block `inference`.
        ops: The ops so far.
        ropes: The rotary embeddings that they use.
        activation: Activation of the feed-forwards, by its name in the graph.
        clamp: Constants of the clamped SwiGLU; None for the usual formula.
        state_space: The block of state spaces, with its defaults if the manifest has none.
        layer_sizes: The sizes of each layer.

    Raises:
        ManifestError: The blocks need an op that this version lacks.
    """

    def __init__(self, manifest: Manifest, names: TensorNames) -> None:
        self.manifest = manifest
        self.names = names
        self.sizes = manifest.architecture
        self.blocks = manifest.inference
        self.ops: list[Op] = []
        self.ropes: list[RopeSpec] = []
        self.activation = _activation(self.blocks.ffn.activation)
        self.clamp = clamp_of(self.blocks.ffn)
        self.state_space = self.blocks.state_space or StateSpaceBlock()
        check_supported(manifest, names)
        self.layer_sizes = layer_sizes(manifest)

    def add(self, *ops: Op) -> str:
        """Append ops; return the name of the last value."""
        self.ops += ops
        return self.ops[-1].out

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

    def use(
        self,
        layer: int,
        part: str,
        shape: tuple[int, ...],
        kind: WeightKind = WeightKind.MATRIX,
    ) -> WeightUse:
        """Return a weight of a layer, given its name without `.weight`."""
        return WeightUse(self.names.layer(layer, f"{part}.weight"), shape, kind)

    def norm(self, layer: int, part: str | None, x: str, out: str) -> str:
        """Append a norm of a layer, if it has it; return the output's name."""
        if part is None:
            return x
        return self.norm_of(self.names.layer(layer, part), (self.sizes.hidden_size,), x, out)

    def norm_of(self, stem: str, shape: tuple[int, ...], x: str, out: str, groups: int = 1) -> str:
        """Append a norm, given the name of its tensors without `.weight`; return its output."""
        norms, bias = self.blocks.normalization, f"{stem}.bias"
        weight = WeightUse(f"{stem}.weight", shape, WeightKind.VECTOR)
        return self.add(
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

    def unit_norm(self, value: str, out: str, heads: int, width: int) -> str:
        """Append a norm of each head without a weight; return its output.

        Args:
            value: Value of the heads.
            out: Name of the output.
            heads: Number of heads.
            width: Elements of a head.
        """
        eps = self.blocks.normalization.rms_norm_eps
        return self.add(Norm(value, out, None, eps, False, heads, elements=width))

    def linear(
        self, layer: int, part: str, x: str, features: int, inputs: int | None = None
    ) -> str:
        """Append a projection of a layer, with its bias if there is one; return its output.

        Args:
            layer: Index of the layer.
            part: Name of the tensors without `.weight` and `.bias`.
            x: Value that it reads.
            features: Outputs.
            inputs: Inputs; the hidden size when None.
        """
        out = f"l{layer}.{part.rpartition('.')[2]}"
        shape = (features, inputs or self.sizes.hidden_size)
        bias_name = self.names.layer(layer, f"{part}.bias")
        has_bias = bias_name in self.names
        bias = WeightUse(bias_name, (features,), WeightKind.VECTOR) if has_bias else None
        weight = self.use(layer, part, shape)
        return self.add(Linear(x, out, weight, bias))

    def residual(self, x: str, branch: str, out: str, scale: float = 1.0) -> str:
        """Append the sum of a stream and a branch; return its name."""
        scale *= self.blocks.layer_pattern.residual_branch_scale
        return self.add(Residual(x, branch, out, scale))

    def rope_table(self, spec: RopeSpec) -> int:
        """Return the index of a rotary embedding, which is added to those of the graph."""
        if spec not in self.ropes:
            self.ropes.append(spec)
        return self.ropes.index(spec)


def _activation(name: str) -> str:
    """Return the activation of the graph for a spelling of the manifest."""
    activation = ACTIVATIONS.get(name)
    if activation is None:
        raise ManifestError(
            "this package needs a newer rdrr: it has an unknown activation",
            where="inference.ffn.activation",
            expected=" or ".join(ACTIVATIONS),
            found=name,
        )
    return activation
