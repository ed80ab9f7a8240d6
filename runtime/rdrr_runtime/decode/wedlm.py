"""WeDLM's parallel decoding: masks ahead of the text are filled in where the model is sure.

Liu et al. 2025, "WeDLM: Reconciling Diffusion Language Models with Standard Causal Attention",
arXiv 2512.22737, in the form with a window that streams. For models that were trained to fill masks
in place and are causal otherwise.

A window of places follows the text. In each pass its filled places go before its masks, so that
under the causal mask every mask sees all that is known; rope has the places as they are in the
text. The run of filled places at the window's start then stands where it stays: its keys and values
are those of the finished text, and it is committed. The logits of a mask predict its own place; it
is filled where their entropy, raised with the distance from the first mask, is low enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import GenerationError, UsageError

from rdrr_runtime.backend import Backend
from rdrr_runtime.decode.base import Counts, Job, until_stop
from rdrr_runtime.sampling.entropy import entropies
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.sampler import Sampler

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class WedlmOptions:
    """How far ahead, and how sure.

    Attributes:
        window: Places of the window; a pass has up to twice as many rows.
        tau: Entropy in nats below which a mask is filled; None fills one a pass, the surest.
        slope: Added to the entropy for each place after the first mask, the published lambda.
        max_per_step: Most masks filled in a pass, those nearest the text; None for no limit.
        scaled_entropy: Take the entropy of the logits over the temperature, not of the logits.
    """

    window: int = 16
    tau: float | None = 0.4
    slope: float = 0.02
    max_per_step: int | None = None
    scaled_entropy: bool = False

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            UsageError: A value outside its range.
        """
        checks = {
            "window": (self.window, self.window >= 1, "1 or more"),
            "tau": (self.tau, self.tau is None or self.tau >= 0, "0 or more"),
            "lambda": (self.slope, self.slope >= 0, "0 or more"),
            "max-per-step": (
                self.max_per_step,
                self.max_per_step is None or self.max_per_step >= 1,
                "1 or more",
            ),
        }
        for name, (found, holds, expected) in checks.items():
            if not holds:
                raise UsageError(f"{name} is out of range", expected=expected, found=found)

    def select(self, entropy: Sequence[float] | F32, places: Sequence[int]) -> list[int]:
        """Indices of the masks to fill, at least one.

        Args:
            entropy: Of each mask, in nats.
            places: Where each is, ascending.
        """
        raised = np.asarray(entropy, np.float64) + self.slope * (np.asarray(places) - places[0])
        sure = [] if self.tau is None else [int(i) for i in np.flatnonzero(raised < self.tau)]
        return sure[: self.max_per_step] or [int(raised.argmin())]


@dataclass
class Window:
    """Places after the committed text, each a token or, as None, a mask.

    Attributes:
        budget: Places that may still be added.
        places: From the first that is not committed on.
    """

    budget: int
    places: list[int | None] = field(default_factory=list)

    def extend(self, count: int) -> None:
        """Add masks, as many as the budget allows."""
        added = min(count, self.budget)
        self.places += [None] * added
        self.budget -= added

    @property
    def masks(self) -> list[int]:
        """Places that are masks, ascending."""
        return [at for at, token in enumerate(self.places) if token is None]

    @property
    def order(self) -> list[int]:
        """The filled places, then the masks, each ascending."""
        return sorted(range(len(self.places)), key=lambda at: self.places[at] is None)

    def prefix(self) -> list[int]:
        """The run of tokens before the first mask."""
        run: list[int] = []
        for token in self.places:
            if token is None:
                break
            run.append(token)
        return run


@dataclass(frozen=True)
class Wedlm:
    """Many masks at once, with a key-value cache.

    Attributes:
        mask_id: The model's mask token.
        options: Window and thresholds.
        sampling: How a place's token is chosen.
    """

    mask_id: int
    options: WedlmOptions = field(default_factory=WedlmOptions)
    sampling: SamplingParams = field(default_factory=SamplingParams)

    def __post_init__(self) -> None:
        """Check that the options go together.

        Raises:
            UsageError: An entropy scaled by no temperature.
        """
        if self.options.scaled_entropy and self.sampling.temperature == 0:
            raise UsageError("a scaled entropy needs a temperature", expected="above 0", found=0)

    def run(self, backend: Backend, job: Job, counts: Counts) -> Iterator[list[int]]:
        """Runs of committed ids."""
        base = job.base + len(job.prompt)
        # Unlike the last token of other strategies, here each takes a slot.
        left = min(job.max_tokens, backend.info.context - base)
        if left < 1:
            raise GenerationError(
                "the prompt leaves no room in the context",
                expected=f"at most {backend.info.context - 1} tokens",
                found=f"{base} tokens",
            )
        backend.fill(job.prompt, job.base)
        chooser = _Chooser(self, backend, [*job.seen, *job.prompt])
        window = Window(left)
        window.extend(self.options.window)
        while left > 0:
            ready = window.prefix()
            window.extend(len(ready))
            rows = len(window.places)
            found = chooser.look(window, base, counts)
            delivered, ended = until_stop(ready, job.stop_ids)
            base += len(ready)
            left -= len(ready)
            counts.rows += rows
            counts.wasted_rows += rows - len(delivered)
            if delivered:
                chooser.seen += delivered
                yield delivered
            if ended:
                return
            del window.places[: len(ready)]
            found.fill(window, self.options)


@dataclass(frozen=True)
class _Found:
    """What a pass says of its masks, in order: ids and entropies."""

    ids: Sequence[int]
    entropy: F32

    def fill(self, window: Window, options: WedlmOptions) -> None:
        """Put ids in place of the masks that are sure enough."""
        masks = window.masks
        for index in options.select(self.entropy, masks) if masks else ():
            window.places[masks[index]] = self.ids[index]


class _Chooser:
    """Runs the passes; ids come from the device, or from the host where they are drawn."""

    def __init__(self, strategy: Wedlm, backend: Backend, seen: list[int]) -> None:
        self._strategy = strategy
        self._backend = backend
        self._sampler = None if strategy.sampling.is_greedy else Sampler(strategy.sampling)
        self.seen = seen

    def look(self, window: Window, base: int, counts: Counts) -> _Found:
        """One pass over the window, which starts at slot `base`."""
        order, wanted = window.order, len(window.masks)
        tokens = [window.places[at] for at in order]
        ids = [self._strategy.mask_id if token is None else token for token in tokens]
        positions = [base + at for at in order]
        counts.forwards += 1
        counts.readbacks += wanted > 0
        if self._sampler is None:
            return _Found(
                *self._backend.window_picks(ids, base, wanted=wanted, positions=positions)
            )
        logits = self._backend.window_logits(ids, base, wanted=wanted, positions=positions)
        # A place is chosen before those in front of it are known: only the text counts as seen.
        drawn = [self._sampler.choose(row, self.seen) for row in logits]
        if self._strategy.options.scaled_entropy:
            logits = logits / np.float32(self._strategy.sampling.temperature)
        return _Found(drawn, entropies(logits) if wanted else np.empty(0, np.float32))
