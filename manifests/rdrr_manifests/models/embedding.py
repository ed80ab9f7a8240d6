"""`inference.output.embeddingPostprocessor`: how hidden states become the embedding of a text."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rdrr_manifests.models.base import WRITTEN_IF_SET, Block


class Projection(Block):
    """A linear layer that follows the pooling.

    Attributes:
        input_size: Elements of the vector that it reads.
        output_size: Elements of the vector that it returns.
        weight_tensor: Name of its weight, [output size, input size].
        bias_tensor: Name of its bias, [output size]; None for none.
        activation: What is applied to the result; `identity` is the only one that is known.
    """

    input_size: int = Field(gt=0)
    output_size: int = Field(gt=0)
    weight_tensor: str
    bias_tensor: str | None = None
    activation: str = "identity"


class EmbeddingPostprocessor(Block):
    """Pooling of the hidden states after the final norm, and what follows it.

    Attributes:
        pooling_mode: `last` (the last token), `mean` (the mean of all tokens) or `cls` (the first).
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
