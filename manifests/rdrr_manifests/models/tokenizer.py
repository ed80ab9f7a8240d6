"""`tokenizer`: the tokenizer's file and its special tokens."""

from __future__ import annotations

from rdrr_manifests.models.base import ManifestModel


class Tokenizer(ManifestModel):
    """The tokenizer's file and the special tokens that it adds.

    Attributes:
        type: `bundled` (a `tokenizer.json`) or `sentencepiece`.
        file: File name within the package's folder.
        vocab_size: Entries of the tokenizer's vocabulary; may differ from the embedding's rows.
        add_bos_token: Whether an encoded prompt begins with the bos token.
        add_eos_token: Whether the checkpoint's tokenizer ends a text with the eos token.
        bos_token_id: Id of the token at the beginning of a sequence.
        pad_token_id: Id of the padding token.
    """

    type: str = "bundled"
    file: str | None = None
    vocab_size: int | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    bos_token_id: int | None = None
    pad_token_id: int | None = None
