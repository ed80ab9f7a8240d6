"""`inference.output.embeddingPostprocessor`: how hidden states become the embedding of a text."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rdrr_manifests.models.base import WRITTEN_IF_SET, Block


class Projection(Block):
    """A linear layer that follows the pooling, an activation, and a LayerNorm if it has one.

    Attributes:
        input_size: Elements of the vector that it reads.
        output_size: Elements of the vector that it returns.
        weight_tensor: Name of its weight, [output size, input size].
        bias_tensor: Name of its bias, [output size]; None for none.
        activation: What is applied to the result: `identity`, `tanh`, `relu`, `gelu` (the tanh
            form), `gelu_erf` or `silu`.
        norm_tensor: Name of the weight of the norm after that, [output size]; None for no norm.
            This and the following two are written by rdrr only.
        norm_bias_tensor: Name of the norm's bias; None for none.
        norm_eps: Epsilon of the norm.
    """

    input_size: int = Field(gt=0)
    output_size: int = Field(gt=0)
    weight_tensor: str
    bias_tensor: str | None = None
    activation: str = "identity"
    norm_tensor: Annotated[str | None, WRITTEN_IF_SET] = None
    norm_bias_tensor: Annotated[str | None, WRITTEN_IF_SET] = None
    norm_eps: Annotated[float | None, WRITTEN_IF_SET] = Field(default=None, gt=0)


class EmbeddingPostprocessor(Block):
    """Pooling of the hidden states after the final norm, and what follows it.

    Attributes:
        pooling_mode: `last` (the last token), `mean` (the mean of all tokens), `cls` (the first) or
            `none` (each token by itself, in models that classify tokens or fill in masks).
        include_prompt: Whether the mean includes the tokens of the prompt before the text.
        projections: Linear layers after the pooling, in order.
        normalize: `l2` if the result is divided by its Euclidean norm; None or `none` if not.
        prompts: Texts to put before the text to be embedded, by name. Written by rdrr only.
        default_prompt_name: Name of the prompt that is used where none is asked for. Written by
            rdrr only.
    """

    pooling_mode: str
    include_prompt: bool = True
    projections: tuple[Projection, ...] = ()
    normalize: str | None = None
    prompts: Annotated[dict[str, str], WRITTEN_IF_SET] = Field(default={})
    default_prompt_name: Annotated[str | None, WRITTEN_IF_SET] = None
