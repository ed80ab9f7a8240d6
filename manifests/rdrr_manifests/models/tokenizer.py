"""The tokenizer's file and its special tokens."""

from __future__ import annotations

from rdrr_manifests.models.base import ManifestModel


class Tokenizer(ManifestModel):
    """`tokenizer` of a manifest.

    Attributes:
        type: `bundled` (a `tokenizer.json`) or `sentencepiece`.
        file: File name inside the package.
        vocab_size: Entries of the tokenizer's model; may differ from the embedding's rows.
        add_bos_token: Whether an encoded prompt starts with the bos token.
    """

    type: str = "bundled"
    file: str | None = None
    vocab_size: int | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    bos_token_id: int | None = None
    pad_token_id: int | None = None
