"""`vision`: the tower that makes embeddings of the patches of an image."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rdrr_manifests.models.base import WRITTEN_IF_SET, Block

Layer = Annotated[int, Field(ge=0)]
PositionSampling = Literal["bilinear", "nearest", "separate"]


class Vision(Block):
    """A vision tower: an encoder of patches, and what merges them into tokens of the text model.

    Written by rdrr only. What an image's patches are is the block `processor`.

    Attributes:
        patch_inputs: Values of a patch.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the feed-forward.
        num_layers: Number of layers.
        num_attention_heads: Heads of attention, of `hiddenSize / numAttentionHeads` elements each.
        activation: Activation of the feed-forward: `gelu` (the tanh form), `gelu_erf`, `silu` or
            `relu`.
        form: Form of the layers. `layer_norm`: a LayerNorm before attention and before a
            feed-forward without a gate, and biases. `rms_norm`: RMSNorms before and after attention
            and a gated feed-forward, and of the heads of queries, keys and, without gains, values;
            scores are not divided by the root of the head dimension, and there are no biases.
        norm_eps: Epsilon of the norms.
        position_grid: Rows and columns of the learned position embedding.
        position_sampling: How it is read for an image of other rows and columns: `bilinear`,
            between the rows of the embedding around each patch, `nearest`, the row in whose part
            of the grid the patch begins, or `separate`, the sum of a row for the column of the
            patch, of the first `positionGrid`, and of a row for its row, of as many behind them.
        rope_theta: Base of the frequencies of the rotary embedding in two dimensions: the first
            half of a head's pairs is rotated by the row of a patch, the second by its column; none
            if the tower has learned positions only.
        merge_size: Height and width, in patches, of the square that becomes one token.
        merger: What makes the embedding of a token of its patches, after their norm: `mlp`, two
            products with biases and the exact GELU between them, `linear`, a product, `mean`, a
            product with their mean after an RMSNorm, whose gains are 1 + weight, or `scaled_mean`,
            a product with their mean after an RMSNorm without gains.
        standardizes: For `scaled_mean`: whether a vector is subtracted from the mean, times the
            root of `hiddenSize`, and the difference multiplied by another, before the norm.
        output_size: Width of the embeddings, which is the hidden size of the text model.
        taps: Layers after which the stream is merged as well; what becomes of it is added to the
            tokens of the image after the first layers of the text model, in this order.
        seen_whole: The layers of the text model in which a token of an image attends to all tokens
            of it, later ones as well: `all`, or `sliding`, those with a sliding window, which then
            limits earlier tokens only; none if absent.
    """

    patch_inputs: int = Field(gt=0, le=1 << 20)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    activation: Literal["gelu", "gelu_erf", "silu", "relu"]
    form: Annotated[Literal["layer_norm", "rms_norm"], WRITTEN_IF_SET] = "layer_norm"
    norm_eps: float = Field(gt=0)
    position_grid: int = Field(gt=0, le=1 << 14)
    position_sampling: Annotated[PositionSampling, WRITTEN_IF_SET] = "bilinear"
    rope_theta: Annotated[float | None, WRITTEN_IF_SET] = Field(default=None, gt=0)
    merge_size: int = Field(gt=0, le=64)
    merger: Annotated[Literal["mlp", "linear", "mean", "scaled_mean"], WRITTEN_IF_SET] = "mlp"
    standardizes: Annotated[bool, WRITTEN_IF_SET] = False
    output_size: int = Field(gt=0)
    taps: Annotated[tuple[Layer, ...], WRITTEN_IF_SET] = ()
    seen_whole: Annotated[Literal["all", "sliding"] | None, WRITTEN_IF_SET] = None

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def position_rows(self) -> int:
        """Rows of the position embedding."""
        grid = self.position_grid
        return 2 * grid if self.position_sampling == "separate" else grid**2

    @property
    def merged_size(self) -> int:
        """Elements of the patches of a token."""
        return self.hidden_size * self.merge_size**2
