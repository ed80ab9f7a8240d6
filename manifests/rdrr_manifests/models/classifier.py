"""`inference.output.classifier`: what the numbers of a sequence-classification head mean."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rdrr_manifests.models.base import Block

ClassifierActivation = Literal["identity", "sigmoid", "softmax"]


class Classifier(Block):
    """Labels of a text and how its logits become their probabilities. Written by rdrr only.

    The logits are what `embeddingPostprocessor` gives: the hidden state of the last token and a
    projection to one element for each label.

    Attributes:
        labels: Name of each label, in the order of the logits.
        activation: `softmax` if a text has one of the labels, `sigmoid` if it may have each of
            them, `identity` if the logits themselves are the result, as in a regression.
    """

    labels: tuple[str, ...] = Field(min_length=1)
    activation: ClassifierActivation
