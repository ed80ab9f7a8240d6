"""WeDLM's parallel decoding: mask tokens after the sequence are filled, several per pass.

Liu et al. 2025, "WeDLM: Reconciling Diffusion Language Models with Standard Causal Attention",
arXiv 2512.22737, in the variant with a streaming window. It needs a model that was trained to fill
masks in place and uses causal attention.

A window of positions follows the sequence; each is either filled or a mask. A pass runs the filled
positions before the masks, so that under causal attention every mask attends to all known tokens.
Rope uses the true positions in the sequence. The filled positions at the start of the window then
have the keys and values that the finished sequence has, so they leave the window. The logits of a
mask predict the token at its own position. A mask is filled if the entropy of its logits, plus a
penalty that grows with the distance from the first mask, is below a threshold.

A token is delivered as soon as no mask precedes it, although only the next pass stores its keys and
values; after the last tokens there is no such pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from rdrr_format.errors import UsageError
from rdrr_format.misuse import explained
from rdrr_format.options import check_fields, documented, option

from rdrr_runtime.decode.base import Counts, Job
from rdrr_runtime.decode.strategy import Models, Strategy, StrategyOptions

if TYPE_CHECKING:
    from rdrr_manifests.package import Package

    from rdrr_runtime.decode.chooser import Chooser
    from rdrr_runtime.decode.rules import TokenRules
    from rdrr_runtime.sampling.masks import MaskRules


EntropyKind = Literal["raw", "scaled"]
"""Entropy of the logits as they are, or divided by the temperature."""


@documented
@explained
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

    def rules(self, mask_id: int) -> MaskRules:
        """Return the rules by which a model's masks are filled."""
        from rdrr_runtime.sampling.masks import (
            MaskRules,
        )  # imports numpy, which --help needs not load

        return MaskRules(mask_id, self.window, self.tau, self.slope, self.max_per_step)


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
        """Yield groups of ids, each as soon as no mask precedes it."""
        base, left = job.base + len(job.prompt), job.max_tokens
        chooser.backend.fill(job.prompt, job.base)
        scaled = self.options.entropy == "scaled"
        stream = chooser.masks(base, self.options.rules(self.mask_id), left, scaled=scaled)
        submitted = collected = 0
        try:
            while left > 0:
                # The fewest passes at first, then as many as the tokens of a pass so far suggest.
                rate = max(1.0, (job.max_tokens - left) / collected) if collected else stream.window
                goal = collected + min(1 + stream.ahead, ceil(left / rate))
                while submitted < goal:
                    stream.submit()
                    submitted += 1
                    counts.forwards += 1
                filled = stream.collect()
                collected += 1
                delivered = chooser.deliver(filled.tokens)
                left -= len(delivered)
                counts.readbacks += 1
                counts.rows += filled.rows
                counts.wasted_rows += filled.rows - len(delivered)
                if delivered:
                    chooser.uncached = len(delivered)  # the next pass runs them
                    yield delivered
                if chooser.ended:
                    return
        finally:
            counts.wasted += submitted - collected


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
