"""The rule that a package's tokenizer can be used: it is read, tried on a text, and its ids fit.

Only `validate --deep` and the converter ask for it: it imports the library `tokenizers`.
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
FOREIGN = "in a form of another runtime: this version cannot turn text into ids with it"
SAMPLE = (
    "The quick brown fox's 1,234 jumps: over (2) lazy dogs!\n\n\tif x == 1:  # Grüße, 你好, "
    "Привет, مرحبا, नमस्ते 👋🏽\r\n" + "a" * 64 + " " * 32
)
"""A text that a tokenizer must be able to encode and decode."""


def tokenizer_content(manifest: Manifest, store: Store) -> Iterator[Finding]:
    """The tokenizer's file can be read and used, and its ids are rows of the embedding."""
    name = manifest.tokenizer.file if manifest.tokenizer else None
    if name is None or not name.endswith(".json"):
        return  # a tokenizer.model is none that this version reads
    try:
        if store.exists(name):
            yield from examine_tokenizer(read_bounded(store, name, JSON_BOUNDS.size), manifest)
    except RdrrError as error:
        yield Finding(FIELD, error.message, error.expected, error.found)


def examine_tokenizer(content: bytes, manifest: Manifest) -> Iterator[Finding]:
    """Yield what is wrong with a `tokenizer.json`.

    Args:
        content: Its bytes.
        manifest: The manifest that names it.
    """
    try:
        tokenizer = BoundedTokenizer(content)
        tokenizer.decode(tokenizer.encode(SAMPLE))
        own, added = tokenizer.vocabulary()
    except RdrrError as error:
        if _is_bare_vocabulary(content):
            yield Finding(FIELD, FOREIGN, "a tokenizer.json", "a bare vocabulary", "warning")
            return
        yield Finding(FIELD, error.message, error.expected, error.found)
        return
    rows = manifest.inference.output.embedding_vocab_size or manifest.architecture.vocab_size
    most = max(own.values(), default=-1)
    if most >= rows:
        yield Finding(FIELD, "an id has no row of the embedding", f"at most {rows - 1}", most)
    beyond = [token_id for token_id in added.values() if token_id >= rows]
    if beyond:
        # Published models have some, of pictures for instance, that no text may hold.
        message = (
            f"{len(beyond)} added tokens have no row of the embedding; texts may not hold them"
        )
        yield Finding(FIELD, message, f"at most {rows - 1}", max(beyond), "warning")


def _is_bare_vocabulary(content: bytes) -> bool:
    """Whether a file has its vocabulary at the top, as early packages of the public runtime do."""
    try:
        found = parse_json(content, JSON_BOUNDS)
    except FormatError:
        return False
    return (
        isinstance(found, dict)
        and isinstance(found.get("vocab"), dict)
        and not isinstance(found.get("model"), dict)
    )
