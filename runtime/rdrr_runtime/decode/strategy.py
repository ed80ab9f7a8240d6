"""The interface of a decoding strategy and of its options.

Nothing heavy is imported here or by the strategies, since the command line reads their options.
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


class Strategy(ABC):
    """An order of forward passes that continues a prompt.

    Attributes:
        slots_of_last: Cache slots that the last new token takes: 0 where it is not run.
    """

    slots_of_last: ClassVar[int] = 0

    def refusal(self, rules: TokenRules) -> str | None:
        """Return why tokens cannot be chosen so under this strategy; None where they can."""
        del rules
        return None

    @abstractmethod
    def run(self, job: Job, chooser: Chooser, counts: Counts) -> Iterator[list[int]]:
        """Yield runs of new ids until the job ends, each as soon as it is known.

        When a run is yielded, the cache holds the sequence but for its last id.

        Args:
            job: What to run, and how many tokens may come.
            chooser: Runs rows of the model and says which tokens they give. Every run goes through
                `Chooser.deliver`, which says whether the sequence has ended.
            counts: Filled.
        """


class Models(Protocol):
    """The model that decodes, and others that can be loaded beside it."""

    @property
    def package(self) -> Package:
        """The package of the model."""
        ...

    def get(self, path: str | Path) -> Backend:
        """Return the backend of another package with the same vocabulary, loaded once.

        Raises:
            UsageError: It has another vocabulary.
            StoreError: There is no package at `path`.
        """
        ...


class StrategyOptions(ABC):
    """The options of a strategy, a frozen dataclass whose fields are declared with `option`."""

    @abstractmethod
    def strategy(self, models: Models) -> Strategy:
        """Return the strategy of these options.

        Raises:
            UsageError: The model cannot be decoded so.
        """
