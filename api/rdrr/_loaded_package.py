"""A loaded package with its tokenizer and chat templates, and what frees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rdrr_format.closing import Closing
from rdrr_format.errors import GenerationError, ManifestError, UsageError
from rdrr_format.html_tables import facts_table
from rdrr_format.misuse import explained

from rdrr._arguments import token_ids
from rdrr._backends import OpenedBackend
from rdrr._chat_template import open_template
from rdrr._load_options import LoadOptions

if TYPE_CHECKING:
    from rdrr_manifests.package import Package
    from rdrr_runtime.backend import BackendInfo
    from rdrr_runtime.text.chat_template import ChatTemplate
    from rdrr_runtime.text.tokenizer import TextCodec


@explained
class LoadedPackage(Closing):
    """A package on a backend, with its tokenizer and chat templates.

    Attributes:
        package: The package that was loaded.
        reason: One line that says which backend runs it, why, and how to choose the other one.
        unhonoured_hints: One line for each kernel hint that the backend does not honour.
        unchecked: One line for each check of the shards that could not be done; usually none.
    """

    def __init__(
        self, package: Package, opened: OpenedBackend, options: LoadOptions | None = None
    ) -> None:
        from rdrr_runtime.decode.backend_lock import BackendLock
        from rdrr_runtime.engine import Engine

        self.package = package
        self.reason = opened.reason
        self.unhonoured_hints = opened.unhonoured
        self.unchecked = opened.unchecked
        self._opened = opened
        self._codec = text_codec(package)
        self._templates: dict[tuple[str | None, bool], ChatTemplate] = {}
        manifest = package.manifest
        vocabulary = manifest.architecture.vocab_size
        lock = BackendLock((options or LoadOptions()).busy_timeout)
        self._engine = Engine(opened.backend, manifest.eos_token_ids, vocabulary, lock)

    @property
    def info(self) -> BackendInfo:
        """The backend, its adapter, the context length and the memory in use."""
        return self._opened.backend.info

    @property
    def has_tokenizer(self) -> bool:
        """Whether the package has a tokenizer; without one it takes and gives token ids only."""
        stated = self.package.manifest.tokenizer
        return stated is not None and stated.file is not None

    def chat_template(self, file: str | Path | None = None, *, tools: bool = False) -> ChatTemplate:
        """Return the chat template of `file`, or of the package when None; see `chat`."""
        key = (None if file is None else str(file), tools)
        if key not in self._templates:
            self._templates[key] = open_template(self.package, file=file, tools=tools)
        return self._templates[key]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, with the special tokens that a prompt begins with."""
        return self._codec.encode(text)

    def encode_as_is(self, text: str) -> list[int]:
        """Return the token ids of a text to which no special tokens are added."""
        return self._codec.encode_as_is(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens.

        Raises:
            UsageError: An element of `ids` is not an id of the model.
        """
        checked = list(ids) if isinstance(ids, Iterable) else token_ids(ids, "`ids`")
        text = self._codec.decode(checked)
        vocab_size = self.package.manifest.architecture.vocab_size
        # A tokenizer may have tokens that the model was never given.
        for token_id in checked:
            if token_id >= vocab_size and self._codec.token(token_id) is None:
                raise UsageError(
                    "not a token id of the model",
                    expected=f"0 to {vocab_size - 1}",
                    found=token_id,
                )
        return text

    def _check_head(self) -> None:
        """Check that the model predicts tokens.

        Raises:
            ManifestError: It is an embedding model without an output head.
        """
        if not has_head(self.package):
            raise ManifestError(
                "this embedding model has no output head or no causal attention, so it predicts no "
                "tokens",
                where=self.package.where,
                hint="use `embed`, or `classify` if it has labels",
            )

    def _check_length(self, ids: Sequence[int]) -> None:
        context = self.info.context
        if not 0 < len(ids) <= context:
            raise GenerationError(
                "a text does not fit the context",
                expected=f"1 to {context} tokens",
                found=f"{len(ids)} tokens",
                hint="split the text, or use `truncate`" if ids else "omit empty texts",
            )

    def close(self) -> None:
        """Free the memory of the model. A running generation ends after its current pass.

        Raises:
            GenerationError: The pass took too long, or this is called from within it.
        """
        if self._engine.lock.close():
            self._release()

    def _release(self) -> None:
        """Free what was loaded; nothing is running any more."""
        self._opened.close()

    def __repr__(self) -> str:
        info = self.info
        place = info.adapter or info.name
        return (
            f"<{type(self).__name__} {self.package.manifest.model_id!r} on {place!r}: "
            f"{info.context:,} tokens of context>"
        )

    def _repr_html_(self) -> str:
        """Return a table of the model for notebooks."""
        info = self.info
        return facts_table(
            f"Model {self.package.manifest.model_id}",
            {
                "location": self.package.where,
                "runs on": self.reason,
                "context": f"{info.context:,} tokens",
                "key-value cache": f"{info.kv_bytes:,} bytes, {info.kv_dtype}",
                "weights": f"{info.weights_bytes:,} bytes",
            },
        )


def has_head(package: Package) -> bool:
    """Return whether a model predicts tokens; one that classifies texts does not."""
    manifest = package.manifest
    if not manifest.inference.attention.causal or manifest.inference.output.classifier:
        return False
    is_tied = manifest.inference.output.tie_word_embeddings
    roles = (tensor.role for tensor in manifest.tensors.values())
    return manifest.model_type != "embedding" or is_tied or "lm_head" in roles


def text_codec(package: Package) -> TextCodec:
    """Return the tokenizer of a package."""
    from rdrr_runtime.text.tokenizer import TextCodec

    stated = package.manifest.tokenizer
    return TextCodec(
        package.tokenizer_bytes(),
        bos_token_id=stated.bos_token_id if stated else None,
        add_bos=stated.add_bos_token if stated else None,
        where=package.where,
    )
