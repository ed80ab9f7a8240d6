"""Models that draft tokens for another, loaded beside it for a decoding strategy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rdrr_format.errors import UsageError

from rdrr._backends import OpenedBackend, open_beside

if TYPE_CHECKING:
    from rdrr_manifests.package import Package
    from rdrr_runtime.backend import Backend
    from rdrr_runtime.decode.turns import Turns


@dataclass
class Drafts:
    """Draft models, each loaded once beside the one that verifies.

    Attributes:
        package: The model that verifies.
        beside: Its backend; a draft runs on the same.
        turns: Who may use the device of both.
        follow_links: Whether links out of a draft's folder are followed, as out of the package's.
    """

    package: Package
    beside: OpenedBackend
    turns: Turns
    follow_links: bool = False
    _loaded: dict[str, Backend] = field(default_factory=dict)

    def get(self, path: str | Path) -> Backend:
        """Return the backend of a draft model.

        Raises:
            UsageError: It has another vocabulary.
            StoreError: There is no package at `path`.
            GenerationError: Another thread did not end its generation in time.
        """
        from rdrr_manifests.package import open_package

        name = str(path)
        if name not in self._loaded:
            draft = open_package(path, follow_links=self.follow_links)
            sizes = [one.manifest.architecture.vocab_size for one in (self.package, draft)]
            if sizes[0] != sizes[1]:
                raise UsageError(
                    "a draft must have the model's tokens",
                    where=name,
                    expected=f"{sizes[0]} of them",
                    found=sizes[1],
                )
            with self.turns.exclusive():
                if name not in self._loaded:  # no other thread has loaded it since
                    self._loaded[name] = open_beside(draft, self.beside)
        return self._loaded[name]

    def close(self) -> None:
        """Free them."""
        for one in self._loaded.values():
            one.close()
        self._loaded.clear()
