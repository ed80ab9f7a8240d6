"""WeDLM's parallel decoding: masks ahead of the sequence are filled in where the model is sure.

Liu et al. 2025, "WeDLM: Reconciling Diffusion Language Models with Standard Causal Attention",
arXiv 2512.22737, in the form with a window that streams. For models that were trained to fill masks
in place and are causal otherwise.

A window of positions follows the sequence. In each pass its filled positions go before its masks,
so that under the causal mask every mask sees all that is known; rope has the positions as they are
in the sequence. The run of filled positions at the window's start then is where it stays: its keys
and values are those of the finished sequence, and it is committed. The logits of a mask predict its
own position; it is filled where their entropy, raised with the distance from the first mask, is low
enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from rdrr_format.errors import UsageError
from rdrr_format.options import check_fields, documented, option

from rdrr_runtime.decode.base import ChosenTokens, Counts, Job
from rdrr_runtime.decode.strategy import Models, Strategy, StrategyOptions

if TYPE_CHECKING:
    from rdrr_manifests.package import Package

    from rdrr_runtime.decode.chooser import Chooser, Picks
    from rdrr_runtime.decode.rules import TokenRules
    from rdrr_runtime.sampling.logprobs import TokenLogprobs


EntropyKind = Literal["raw", "scaled"]
"""Entropy of the logits as they are, or divided by the temperature."""


@documented
@dataclass(frozen=True)
class Wedlm(StrategyOptions):
    """Masks ahead of the sequence are filled where the model is sure, many in a pass.

    For models that were trained to: their manifest names a mask token.
    """

    window: int = option(
        16,
        "Positions ahead of the sequence; a pass has up to twice as many rows.",
        minimum=1,
    )
    tau: float | None = option(
        0.4,
        "Entropy below which a mask is filled; none fills one in a pass, the most confident.",
        metavar="NATS",
        minimum=0,
    )
    slope: float = option(
        0.02,
        "Added to the entropy for each position after the first mask.",
        flag="--lambda",
        minimum=0,
    )
    max_per_step: int | None = option(
        None, "Most masks filled in a pass, those nearest the sequence.", minimum=1
    )
    entropy: EntropyKind = option(
        "raw",
        "Entropy of the logits as they are, or over the temperature.",
        flag="--entropy-temp",
        choices=get_args(EntropyKind),
    )

    def __post_init__(self) -> None:
        """Check each value.

        Raises:
            UsageError: A value outside its range.
        """
        check_fields(self)

    def strategy(self, models: Models) -> WedlmDecoding:
        """Return the strategy, with the mask token of the model.

        Raises:
            UsageError: The model has none, or has layers with sliding windows.
        """
        return WedlmDecoding(_mask_of(models.package), self)

    def select(self, entropies: Sequence[float], positions: Sequence[int]) -> list[int]:
        """Return indices of the masks to fill, at least one.

        Args:
            entropies: Of each mask, in nats.
            positions: Where each is, ascending.
        """
        raised = [
            entropy + self.slope * (position - positions[0])
            for entropy, position in zip(entropies, positions, strict=True)
        ]
        tau = self.tau
        sure = [] if tau is None else [at for at, value in enumerate(raised) if value < tau]
        return sure[: self.max_per_step] or [raised.index(min(raised))]


@dataclass
class Window:
    """Positions after the committed sequence, each a token or, as None, a mask.

    Attributes:
        budget: Positions that may still be added.
        tokens: From the first that is not committed on.
        logprobs: What was recorded for the tokens, by their index in `tokens`.
    """

    budget: int
    tokens: list[int | None] = field(default_factory=list)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)

    def extend(self, count: int) -> None:
        """Add masks, as many as the budget allows."""
        added = min(count, self.budget)
        self.tokens += [None] * added
        self.budget -= added

    @property
    def masks(self) -> list[int]:
        """Indices of the masks, ascending."""
        return [at for at, token in enumerate(self.tokens) if token is None]

    @property
    def order(self) -> list[int]:
        """Indices of the filled positions, then of the masks, each ascending."""
        return sorted(range(len(self.tokens)), key=lambda at: self.tokens[at] is None)

    def prefix(self) -> list[int]:
        """Return the run of tokens before the first mask."""
        run: list[int] = []
        for token in self.tokens:
            if token is None:
                break
            run.append(token)
        return run

    def fill(self, picks: Picks, options: Wedlm) -> None:
        """Put tokens in place of the masks that are sure enough.

        Args:
            picks: Of the masks, in order.
            options: What is sure enough.
        """
        masks = self.masks
        for index in options.select(picks.entropies, masks) if masks else ():
            self.tokens[masks[index]] = picks.ids[index]
            if picks.logprobs:
                self.logprobs[masks[index]] = picks.logprobs[index]

    def commit(self, count: int) -> list[TokenLogprobs]:
        """Remove the first tokens; returns what was recorded for them."""
        recorded = [self.logprobs[at] for at in range(count) if at in self.logprobs]
        del self.tokens[:count]
        self.logprobs = {at - count: one for at, one in self.logprobs.items() if at >= count}
        return recorded


@dataclass(frozen=True)
class WedlmDecoding(Strategy):
    """Many masks at once, with a key-value cache.

    Attributes:
        mask_id: The model's mask token.
        options: Window and thresholds.
    """

    slots_of_last: ClassVar[int] = 1

    mask_id: int
    options: Wedlm = field(default_factory=Wedlm)

    def refusal(self, rules: TokenRules) -> str | None:
        """Return why tokens cannot be chosen so; None where they can."""
        if rules.constraint is not None:
            return "wedlm fills positions out of order, and a format reads them in order"
        if self.options.entropy == "scaled" and rules.sampling.temperature == 0:
            return "`entropy` scaled needs a temperature above 0"
        return None

    def run(self, job: Job, chooser: Chooser, counts: Counts) -> Iterator[list[int]]:
        """Yield runs of committed ids."""
        base, left = job.base + len(job.prompt), job.max_tokens
        chooser.backend.fill(job.prompt, job.base)
        window = Window(left)
        window.extend(self.options.window)
        while left > 0:
            ready = window.prefix()
            window.extend(len(ready))
            rows = len(window.tokens)
            picks = self._look(window, base, chooser, counts)
            window_logprobs = window.commit(len(ready))
            delivered = chooser.deliver(ChosenTokens(ready, window_logprobs))
            base += len(ready)
            left -= len(ready)
            counts.rows += rows
            counts.wasted_rows += rows - len(delivered)
            if delivered:
                yield delivered
            if chooser.ended:
                return
            window.fill(picks, self.options)

    def _look(self, window: Window, base: int, chooser: Chooser, counts: Counts) -> Picks:
        """Run the window, which starts at slot `base`, and pick a token for each mask."""
        order, wanted = window.order, len(window.masks)
        tokens = [window.tokens[at] for at in order]
        counts.forwards += 1
        counts.readbacks += wanted > 0
        return chooser.pick(
            [self.mask_id if token is None else token for token in tokens],
            base,
            wanted=wanted,
            positions=[base + at for at in order],
            scaled=self.options.entropy == "scaled",
        )


def _mask_of(package: Package) -> int:
    """Return the mask token of a model whose masks can be filled in place.

    Raises:
        UsageError: It has none, or layers that see a window of slots.
    """
    from rdrr_manifests.graph.ops import Attention

    mask = package.manifest.mask_token_id
    if mask is None:
        raise UsageError(
            "the model was not trained to fill masks",
            where=package.where,
            expected="a manifest with a mask_token_id",
            hint="omit `decode`, or convert a WeDLM checkpoint",
        )
    # A window counts slots, in which masks do not lie in the order of the sequence.
    if any(isinstance(op, Attention) and op.window for op in package.graph.ops):
        raise UsageError(
            "wedlm does not decode models with sliding windows",
            where=package.where,
            hint="omit `decode`",
        )
    return mask
