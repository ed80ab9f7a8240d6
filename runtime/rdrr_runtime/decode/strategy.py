"""The interface of a decoding strategy and of its options.

The command line reads the options for its help, so neither this module nor a strategy imports
anything heavy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from rdrr_runtime.decode.base import Counts, Job

if TYPE_CHECKING:
    from rdrr_manifests.package import Package

    from rdrr_runtime.backend import Backend
    from rdrr_runtime.decode.chooser import Chooser
    from rdrr_runtime.decode.rules import TokenRules
    from rdrr_runtime.draft_backend import DraftHead


class Strategy(ABC):
    """An order of forward passes that continues a prompt.

    Attributes:
        slots_of_last: Cache slots that the last new token takes; 0 if no row runs at its position.
    """

    slots_of_last: ClassVar[int] = 0

    def refusal(self, rules: TokenRules) -> str | None:
        """Return why this strategy cannot follow the rules; None if it can."""
        del rules
        return None

    @abstractmethod
    def run(self, job: Job, chooser: Chooser, counts: Counts) -> Iterator[list[int]]:
        """Yield groups of new ids until the job ends, each as soon as it is known.

        When a group is yielded, the cache holds the whole sequence except its last ids, of which
        `Chooser.uncached` gives the number.

        Args:
            job: The prompt and the largest number of new tokens.
            chooser: Runs rows of the model and chooses their tokens. Every group goes through
                `Chooser.deliver`, after which `Chooser.ended` says whether the sequence has ended.
            counts: Updated.
        """


class Models(Protocol):
    """The model that decodes, and access to further models, such as a draft model."""

    @property
    def package(self) -> Package:
        """The package of the model."""

    def get(self, path: str | Path) -> Backend:
        """Return the backend of another package with the same vocabulary, loaded once.

        Raises:
            UsageError: The package has another vocabulary.
            StoreError: There is no package at `path`.
        """

    def draft_head(self) -> tuple[Backend, DraftHead]:
        """Return the backend of the model and its draft head, loaded once.

        Raises:
            UsageError: The model has none, or its backend cannot load one.
            ManifestError: The head is incomplete.
        """


class StrategyOptions(ABC):
    """The options of a strategy, a frozen dataclass whose fields are declared with `option`."""

    @abstractmethod
    def strategy(self, models: Models) -> Strategy:
        """Return the strategy of these options.

        Raises:
            UsageError: The strategy cannot decode the model.
        """
