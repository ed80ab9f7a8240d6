"""WeDLM's parallel decoding: mask tokens after the sequence are filled, several per pass.

Liu et al. 2025, "WeDLM: Reconciling Diffusion Language Models with Standard Causal Attention",
arXiv 2512.22737, in the variant with a streaming window. It needs a model that was trained to fill
masks in place and uses causal attention.

A window of positions follows the sequence; each is either filled or a mask. A pass runs the filled
positions before the masks, so that under causal attention every mask attends to all known tokens.
Rope uses the true positions in the sequence. The filled positions at the start of the window then
have the keys and values that the finished sequence has, so they are committed. The logits of a mask
predict the token at its own position. A mask is filled if the entropy of its logits, plus a penalty
that grows with the distance from the first mask, is below a threshold.
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
    """Masks after the sequence are filled where the model is confident, several per pass.

    This is for models that were trained for it; their manifest names a mask token.
    """

    window: int = option(
        16,
        "Positions after the sequence in the window; a pass has up to twice as many rows.",
        minimum=1,
    )
    tau: float | None = option(
        0.4,
        "Entropy below which a mask is filled; none fills only the most confident mask per pass.",
        metavar="NATS",
        minimum=0,
    )
    slope: float = option(
        0.02,
        "Amount added to the entropy for each position after the first mask.",
        flag="--lambda",
        minimum=0,
    )
    max_per_step: int | None = option(
        None, "Most masks filled per pass; the masks nearest the sequence come first.", minimum=1
    )
    entropy: EntropyKind = option(
        "raw",
        "Compute the entropy from the raw logits, or from logits scaled by the temperature.",
        flag="--entropy-temp",
        choices=get_args(EntropyKind),
    )

    def __post_init__(self) -> None:
        """Check each value.

        Raises:
            UsageError: A value is out of range.
        """
        check_fields(self)

    def strategy(self, models: Models) -> WedlmDecoding:
        """Return the strategy, with the mask token of the model.

        Raises:
            UsageError: The model has no mask token, or has layers with sliding windows.
        """
        return WedlmDecoding(_mask_of(models.package), self)

    def select(self, entropies: Sequence[float], positions: Sequence[int]) -> list[int]:
        """Return the indices of the masks to fill, at least one.

        Args:
            entropies: Entropy of each mask, in nats.
            positions: Position of each mask in the window, ascending.
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
        budget: Number of positions that may still be added.
        tokens: Tokens and masks, from the first position that is not committed yet.
        logprobs: Log-probabilities recorded for the tokens, by index in `tokens`.
    """

    budget: int
    tokens: list[int | None] = field(default_factory=list)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)

    def extend(self, count: int) -> None:
        """Append up to `count` masks, as many as the budget allows."""
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
        """Return the tokens before the first mask."""
        run: list[int] = []
        for token in self.tokens:
            if token is None:
                break
            run.append(token)
        return run

    def fill(self, picks: Picks, options: Wedlm) -> None:
        """Fill the masks whose tokens are confident enough.

        Args:
            picks: A token and an entropy for each mask, in order.
            options: The thresholds that decide which masks are filled.
        """
        masks = self.masks
        for index in options.select(picks.entropies, masks) if masks else ():
            self.tokens[masks[index]] = picks.ids[index]
            if picks.logprobs:
                self.logprobs[masks[index]] = picks.logprobs[index]

    def commit(self, count: int) -> list[TokenLogprobs]:
        """Remove the first `count` tokens and return the log-probabilities recorded for them."""
        recorded = [self.logprobs[at] for at in range(count) if at in self.logprobs]
        del self.tokens[:count]
        self.logprobs = {at - count: one for at, one in self.logprobs.items() if at >= count}
        return recorded


@dataclass(frozen=True)
class WedlmDecoding(Strategy):
    """Decoding that fills several masks per pass and keeps a key-value cache.

    Attributes:
        mask_id: Id of the model's mask token.
        options: Size of the window, and thresholds.
    """

    slots_of_last: ClassVar[int] = 1

    mask_id: int
    options: Wedlm = field(default_factory=Wedlm)

    def refusal(self, rules: TokenRules) -> str | None:
        """Return why this strategy cannot follow the rules; None if it can."""
        if rules.constraint is not None:
            return "wedlm fills positions out of order, but a response format needs them in order"
        if self.options.entropy == "scaled" and rules.sampling.temperature == 0:
            return "`entropy` scaled needs a temperature above 0"
        return None

    def run(self, job: Job, chooser: Chooser, counts: Counts) -> Iterator[list[int]]:
        """Yield groups of committed ids."""
        base, left = job.base + len(job.prompt), job.max_tokens
        chooser.backend.fill(job.prompt, job.base)
        window = Window(left)
        window.extend(self.options.window)
        while left > 0:
            ready = window.prefix()
            window.extend(len(ready))
            rows = len(window.tokens)
            picks = self._pick_masks(window, base, chooser, counts)
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

    def _pick_masks(self, window: Window, base: int, chooser: Chooser, counts: Counts) -> Picks:
        """Run the window from slot `base` on, and choose a token for each mask."""
        order, last_n = window.order, len(window.masks)
        tokens = [window.tokens[at] for at in order]
        counts.forwards += 1
        counts.readbacks += last_n > 0
        return chooser.pick(
            [self.mask_id if token is None else token for token in tokens],
            base,
            last_n=last_n,
            positions=[base + at for at in order],
            scaled=self.options.entropy == "scaled",
        )


def _mask_of(package: Package) -> int:
    """Return the mask token of a model whose masks can be filled in place.

    Raises:
        UsageError: The model has no mask token, or has layers with sliding windows or states.
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
    # A sliding window counts slots, and masks are not stored in the order of the sequence.
    if any(isinstance(op, Attention) and (op.window or op.chunk) for op in package.graph.ops):
        raise UsageError(
            "wedlm cannot decode models with sliding windows",
            where=package.where,
            hint="omit `decode`",
        )
    if package.graph.states:
        raise UsageError(
            "wedlm cannot decode models with recurrent states, which absorb tokens in their order",
            where=package.where,
            hint="omit `decode`",
        )
    return mask
