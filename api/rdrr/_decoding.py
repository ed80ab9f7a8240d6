"""Draft models and heads for speculative decoding, loaded on the device of the target model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rdrr_format.errors import UsageError

from rdrr._backends import OpenedBackend, load_checked, open_beside

if TYPE_CHECKING:
    from rdrr_manifests.package import Package
    from rdrr_runtime.backend import Backend
    from rdrr_runtime.decode.backend_lock import BackendLock
    from rdrr_runtime.draft_backend import DraftHead


@dataclass
class DraftModels:
    """The draft models of a target model, each loaded once.

    Attributes:
        package: The package of the target model, which verifies draft tokens.
        beside: Its backend. Draft models run on the same device.
        lock: The lock of the target model, which draft models share.
        follow_links: Whether links that lead out of a draft's folder are followed.
    """

    package: Package
    beside: OpenedBackend
    lock: BackendLock
    follow_links: bool = False
    _loaded: dict[str, Backend] = field(default_factory=dict)
    _head: DraftHead | None = None

    def get(self, path: str | Path) -> Backend:
        """Return the backend of a draft model.

        Raises:
            UsageError: Its vocabulary differs from that of the target model.
            StoreError: There is no package at `path`.
            GenerationError: Another thread did not end its generation in time.
        """
        from rdrr_manifests.package import open_package

        name = str(path)
        if name not in self._loaded:
            draft = open_package(path, follow_links=self.follow_links)
            sizes = [package.manifest.architecture.vocab_size for package in (self.package, draft)]
            if sizes[0] != sizes[1]:
                raise UsageError(
                    "the draft model has another vocabulary than the target model",
                    where=name,
                    expected=f"{sizes[0]} tokens",
                    found=sizes[1],
                )
            with self.lock.exclusive():
                if name not in self._loaded:  # no other thread has loaded it since
                    self._loaded[name] = open_beside(draft, self.beside)
        return self._loaded[name]

    def draft_head(self) -> tuple[Backend, DraftHead]:
        """Return the backend of the target model and its draft head, loaded once.

        Raises:
            UsageError: The model has none.
            ManifestError: The head is incomplete.
            GenerationError: Another thread did not end its generation in time.
        """
        from rdrr_runtime.draft_backend import DraftingBackend

        backend = self.beside.backend
        if self.package.mtp_graph is None or not isinstance(backend, DraftingBackend):
            raise UsageError(
                "the model has no head for multi-token prediction",
                where=self.package.manifest.model_id,
                hint="draft with `ngram` or a smaller model; a head is converted from checkpoints "
                "that have one (`mtp.*`)",
            )
        if self._head is None:
            with self.lock.exclusive():
                self._head = load_checked(
                    self.package, self.beside.verify, lambda: backend.draft_head(self.package)
                )[0]
        return backend, self._head

    def close(self) -> None:
        """Free all draft models."""
        for draft in self._loaded.values():
            draft.close()
        self._loaded.clear()
