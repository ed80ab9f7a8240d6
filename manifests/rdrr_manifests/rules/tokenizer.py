"""The rule that a package's tokenizer can be used.

The tokenizer is loaded, tried on a text, and its ids are compared with the rows of the embedding.
Only deep validation and the converter run this rule, because it imports the library `tokenizers`.
"""

from __future__ import annotations

from collections.abc import Iterator

from rdrr_format.bounded_json import parse_json
from rdrr_format.bounded_tokenizer import JSON_BOUNDS, BoundedTokenizer
from rdrr_format.errors import FormatError, RdrrError
from rdrr_format.stores import Store, read_bounded

from rdrr_manifests.models import Manifest
from rdrr_manifests.rules.subject import Finding

FIELD = "tokenizer.file"
FOREIGN = "the file is in the format of another runtime, so this version cannot encode text with it"
SAMPLE = (
    "The quick brown fox's 1,234 jumps: over (2) lazy dogs!\n\n\tif x == 1:  # Grüße, 你好, "
    "Привет, مرحبا, नमस्ते 👋🏽\r\n" + "a" * 64 + " " * 32
)
"""A text that a tokenizer must be able to encode and decode."""


def tokenizer_content(manifest: Manifest, store: Store) -> Iterator[Finding]:
    """Check that the tokenizer's file can be used and that its ids are rows of the embedding."""
    name = manifest.tokenizer.file if manifest.tokenizer else None
    if name is None or not name.endswith(".json"):
        return  # this version does not read other files, such as a tokenizer.model
    try:
        if store.exists(name):
            yield from examine_tokenizer(read_bounded(store, name, JSON_BOUNDS.size), manifest)
    except RdrrError as error:
        yield Finding(FIELD, error.message, error.expected, error.found)


def examine_tokenizer(content: bytes, manifest: Manifest) -> Iterator[Finding]:
    """Yield the findings on a `tokenizer.json`.

    Args:
        content: Bytes of the file.
        manifest: The manifest that names the file.
    """
    try:
        tokenizer = BoundedTokenizer(content)
        tokenizer.decode(tokenizer.encode(SAMPLE))
        vocabulary, added = tokenizer.vocabulary()
    except RdrrError as error:
        if _is_bare_vocabulary(content):
            yield Finding(FIELD, FOREIGN, "a tokenizer.json", "a bare vocabulary", "warning")
            return
        yield Finding(FIELD, error.message, error.expected, error.found)
        return
    rows = manifest.inference.output.embedding_vocab_size or manifest.architecture.vocab_size
    largest = max(vocabulary.values(), default=-1)
    if largest >= rows:
        yield Finding(FIELD, "an id has no row in the embedding", f"at most {rows - 1}", largest)
    beyond = [token_id for token_id in added.values() if token_id >= rows]
    if beyond:
        # Published models have such tokens, for example for images; text must not contain them.
        message = (
            f"{len(beyond)} added tokens have no row in the embedding; text must not contain them"
        )
        yield Finding(FIELD, message, f"at most {rows - 1}", max(beyond), "warning")


def _is_bare_vocabulary(content: bytes) -> bool:
    """Return whether a file has its vocabulary at the top level.

    Early packages of the public runtime have such files.
    """
    try:
        parsed = parse_json(content, JSON_BOUNDS)
    except FormatError:
        return False
    return (
        isinstance(parsed, dict)
        and isinstance(parsed.get("vocab"), dict)
        and not isinstance(parsed.get("model"), dict)
    )
