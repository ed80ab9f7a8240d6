"""The vision tower of a model as a graph of its own, whose rows are the patches of images.

    x = patches W^T + b + interpolated position embedding
    x = x + attention(norm(x)), x = x + feed_forward(norm(x))           in each layer
    embeddings = merger(merged(norm(x)))                                after the last layer
    tap = merger(norm(merged(x)))                                       after each of some layers

In the form `rms_norm` there are no biases, a norm follows each branch as well, and none precedes
the merger. `merged` makes one row of the patches of a token, which follow each other, and `merger`
is down(gelu(up(x))), a product, or a product with the mean of the patches. Attention is that of
encoders, within each frame, with rows and columns of patches as the positions of its rope, if it
has one. Its ops are those of text models, and four more; the host computes rope and interpolation
from the grid.

The tensors have names of their own, to which the converter brings those of checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import cast

from rdrr_format.errors import ManifestError

from rdrr_manifests.faults import tensor_field
from rdrr_manifests.graph.builder import ACTIVATIONS
from rdrr_manifests.graph.ops import (
    Activation,
    Attention,
    GatedActivation,
    Linear,
    Norm,
    Op,
    Residual,
    Rope,
    Scale,
    WeightKind,
    WeightUse,
    uses,
    values_read,
)
from rdrr_manifests.graph.weights import Value
from rdrr_manifests.models.manifest import Manifest
from rdrr_manifests.models.vision import PositionSampling, Vision

VISION = "visual."
"""Prefix of the names of the tower's tensors."""

CACHE = 0
"""Cache of the keys and values of all layers, since no later pass reads them."""

PATCHES, POSITIONS = f"{VISION}patch_embed", f"{VISION}embed_positions"
LAYER, MERGER, TAP = f"{VISION}layers.{{layer}}.", f"{VISION}merger.", f"{VISION}taps.{{tap}}."
ATTENTION_NORM, FEED_FORWARD_NORM = "input_layernorm", "post_attention_layernorm"
AFTER_ATTENTION, BEFORE_FEED_FORWARD, AFTER_FEED_FORWARD = (
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
"""Norms of the form `rms_norm`, whose names differ as they do in text models."""


@dataclass(frozen=True)
class Patches:
    """out = the values of the patches, [patches, width]."""

    out: str
    width: int


@dataclass(frozen=True)
class InterpolatedPositions:
    """out[r] = x[r] + the position embedding of patch r, in or between rows of a grid.

    Attributes:
        weight: [grid * grid, features of x], rows of the grid one after the other.
        grid: Rows and columns of the grid.
        sampling: See `Vision.position_sampling`.
    """

    x: Value
    out: str
    weight: WeightUse
    grid: int
    sampling: PositionSampling = "bilinear"


@dataclass(frozen=True)
class MergeRows:
    """out[r] = the rows r * rows to (r + 1) * rows of x, one after the other."""

    x: Value
    out: str
    rows: int


@dataclass(frozen=True)
class MeanOfParts:
    """out[r] = factor * the mean of the parts of x[r], each of `width` elements, - shift."""

    x: Value
    out: str
    parts: int
    width: int
    factor: float = 1.0
    shift: WeightUse | None = None


VisionOp = Op | Patches | InterpolatedPositions | MergeRows | MeanOfParts


def values_of(op: VisionOp) -> tuple[str, ...]:
    """Return the names of the values that an op reads, in the order of its fields."""
    return values_read(cast(Op, op))  # it reads the fields of any op


@dataclass(frozen=True)
class VisionGraph:
    """The graph of a tower.

    Attributes:
        vision: The block that it was derived from.
        ops: Ops in order of execution; `Rope.table` is always 0, the rope of the patches' places.
        embeddings: Name of the value that holds the embeddings.
        taps: Names of the values that hold the taps.
    """

    vision: Vision
    ops: tuple[VisionOp, ...]
    embeddings: str
    taps: tuple[str, ...] = field(default=())

    def weights(self) -> tuple[WeightUse, ...]:
        """Return every tensor that the graph reads, in order of first use."""
        return tuple(use for op in self.ops for use in uses(cast(Op, op)))  # likewise


class _Builder:
    """A graph under construction."""

    def __init__(self, vision: Vision) -> None:
        self.vision = vision
        self.is_plain = vision.form == "layer_norm"
        self.ops: list[VisionOp] = []

    def add(self, op: VisionOp) -> str:
        self.ops.append(op)
        return op.out

    def norm(self, x: str, out: str, stem: str, width: int, groups: int = 1) -> str:
        weight = _vector(f"{stem}.weight", width)
        bias = _vector(f"{stem}.bias", width) if self.is_plain else None
        eps, centred = self.vision.norm_eps, self.is_plain
        return self.add(Norm(x, out, weight, eps, False, groups, centred=centred, bias=bias))

    def norm_after(self, x: str, stem: str) -> str:
        """Append the norm that follows a branch in the form `rms_norm`."""
        size = self.vision.hidden_size
        return x if self.is_plain else self.norm(x, f"{x}_normed", stem, size)

    def linear(
        self, x: str, out: str, stem: str, shape: tuple[int, int], *, bias: bool = True
    ) -> str:
        weight = WeightUse(f"{stem}.weight", shape)
        vector = _vector(f"{stem}.bias", shape[0]) if bias and self.is_plain else None
        return self.add(Linear(x, out, weight, vector))

    def begin(self) -> str:
        vision = self.vision
        x = self.add(Patches("v.patches", vision.patch_inputs))
        x = self.linear(x, "v.embedded", PATCHES, (vision.hidden_size, vision.patch_inputs))
        shape = (vision.position_rows, vision.hidden_size)
        table = WeightUse(f"{POSITIONS}.weight", shape, WeightKind.TABLE)
        sampling = vision.position_sampling
        return self.add(InterpolatedPositions(x, "v.x", table, vision.position_grid, sampling))

    def layer(self, number: int, x: str) -> str:
        size, stem, name = self.vision.hidden_size, LAYER.format(layer=number), f"v{number}"
        hidden = self.norm(x, f"{name}.attn_in", f"{stem}{ATTENTION_NORM}", size)
        branch = self.norm_after(self._attention(hidden, number), f"{stem}{AFTER_ATTENTION}")
        x = self.add(Residual(x, branch, f"{name}.x_attn"))
        before = FEED_FORWARD_NORM if self.is_plain else BEFORE_FEED_FORWARD
        hidden = self.norm(x, f"{name}.ffn_in", f"{stem}{before}", size)
        inner = self.vision.intermediate_size
        branch = self.feed_forward(hidden, f"{stem}mlp.", (size, inner, size))
        branch = self.norm_after(branch, f"{stem}{AFTER_FEED_FORWARD}")
        return self.add(Residual(x, branch, f"{name}.x"))

    def _attention(self, hidden: str, number: int) -> str:
        vision, name, stem = self.vision, f"v{number}", LAYER.format(layer=number)
        size, heads = vision.hidden_size, vision.num_attention_heads
        q, k, v = (
            self.linear(hidden, f"{name}.{part}", f"{stem}self_attn.{part}_proj", (size, size))
            for part in "qkv"
        )
        dim = vision.head_dim
        if not self.is_plain:
            q, k = (
                self.norm(value, f"{value}_normed", f"{stem}self_attn.{part}_norm", dim, heads)
                for part, value in zip("qk", (q, k), strict=True)
            )
            v = self.add(Norm(v, f"{v}_normed", None, vision.norm_eps, False, heads, elements=dim))
        if vision.rope_theta is not None:
            q, k = (self.add(Rope(value, f"{value}_rope", heads, 0)) for value in (q, k))
        scale = dim**-0.5 if self.is_plain else 1.0
        attended = self.add(
            Attention(q, k, v, f"{name}.attn", CACHE, heads, heads, dim, scale, causal=False)
        )
        return self.linear(attended, f"{name}.attn_out", f"{stem}self_attn.o_proj", (size, size))

    def feed_forward(
        self, x: str, stem: str, widths: tuple[int, int, int], activation: str | None = None
    ) -> str:
        inputs, inner, outputs = widths
        name = activation or ACTIVATIONS[self.vision.activation]
        up = self.linear(x, f"{stem}up", f"{stem}up_proj", (inner, inputs))
        if self.is_plain:
            active = self.add(Activation(up, f"{stem}active", name, inner))
        else:
            gate = self.linear(x, f"{stem}gate", f"{stem}gate_proj", (inner, inputs))
            active = self.add(GatedActivation(gate, up, f"{stem}active", name, inner))
        return self.linear(active, f"{stem}out", f"{stem}down_proj", (outputs, inner))

    def merge(self, x: str, stem: str, *, norm_first: bool) -> str:
        """Append what makes tokens of patches; the norm is that of patches, or of tokens."""
        vision, merged = self.vision, self.vision.merged_size
        rows = vision.merge_size**2
        if norm_first and self.is_plain:
            x = self.norm(x, f"{stem}normed", f"{stem}norm", vision.hidden_size)
        x = self.add(MergeRows(x, f"{stem}merged", rows))
        if not norm_first:
            x = self.norm(x, f"{stem}normed", f"{stem}norm", merged)
        if vision.merger in ("mean", "scaled_mean"):
            x, merged = self._mean(x, stem), vision.hidden_size
        if vision.merger != "mlp":
            shape = (vision.output_size, merged)
            return self.linear(x, f"{stem}out", f"{stem}proj", shape, bias=False)
        # Whatever the activation of the layers is, mergers have the exact GELU.
        return self.feed_forward(x, stem, (merged, merged, vision.output_size), "gelu_erf")

    def _mean(self, x: str, stem: str) -> str:
        """Append the mean of the patches of each token, and its norm."""
        vision, width, out = self.vision, self.vision.hidden_size, f"{stem}mean_normed"
        mean = MeanOfParts(x, f"{stem}mean", vision.merge_size**2, width)
        if vision.merger == "mean":
            gains = _vector(f"{stem}mean_norm.weight", width)
            return self.add(Norm(self.add(mean), out, gains, vision.norm_eps, unit_offset=True))
        shift = _vector(f"{stem}shift", width) if vision.standardizes else None
        x = self.add(replace(mean, factor=width**0.5, shift=shift))
        if vision.standardizes:
            x = self.add(Scale(x, f"{stem}standardized", weight=_vector(f"{stem}scale", width)))
        return self.add(Norm(x, out, None, vision.norm_eps, unit_offset=False, elements=width))


def _vector(name: str, width: int) -> WeightUse:
    return WeightUse(name, (width,), WeightKind.VECTOR)


def vision_graph(vision: Vision) -> VisionGraph:
    """Return the graph that a block describes."""
    build = _Builder(vision)
    x, taps = build.begin(), []
    for layer in range(vision.num_layers):
        x = build.layer(layer, x)
        if layer in vision.taps:
            stem = TAP.format(tap=vision.taps.index(layer))
            taps.append(build.merge(x, stem, norm_first=False))
    embeddings = build.merge(x, MERGER, norm_first=True)
    return VisionGraph(vision, tuple(build.ops), embeddings, tuple(taps))


def derive_vision(manifest: Manifest, names: Collection[str] | None = None) -> VisionGraph | None:
    """Return the graph of a package's vision tower; None if it has none.

    Args:
        manifest: Typed manifest, translated from any generation.
        names: Names of the tensors that exist; those of the manifest when None.

    Raises:
        ManifestError: A tensor of the tower is missing or has the wrong shape.
    """
    if manifest.vision is None:
        return None
    known = frozenset(manifest.tensors if names is None else names)
    if manifest.vision.num_layers > len(known):
        # Deriving takes time for every layer, and a hostile manifest may state millions.
        raise ManifestError(
            "the tower has more layers than the package has tensors",
            where="vision.numLayers",
            expected=f"at most {len(known)}",
            found=manifest.vision.num_layers,
        )
    graph = vision_graph(manifest.vision)
    for use in graph.weights():
        tensor = manifest.tensors.get(use.name)
        if use.name not in known or (tensor is not None and tensor.shape != use.shape):
            raise ManifestError(
                "a tensor of the vision tower is missing"
                if tensor is None
                else "a tensor of the vision tower has the wrong shape",
                where=tensor_field(use.name),
                expected=f"shape {list(use.shape)}",
                found=None if tensor is None else list(tensor.shape),
            )
    return graph
