"""Ways of decoding that a generation may ask for, and the strategies that they become."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rdrr_format.errors import UsageError

from rdrr._backends import OpenedBackend, open_beside

if TYPE_CHECKING:
    from rdrr_manifests.package import Package
    from rdrr_runtime.backend import Backend
    from rdrr_runtime.decode.base import Strategy
    from rdrr_runtime.sampling.params import SamplingParams


NGRAM = "ngram"


@dataclass(frozen=True)
class Wedlm:
    """Masks ahead of the text are filled where the model is sure, many in a pass.

    For models that were trained to: their manifest names a mask token.

    Attributes:
        window: Places ahead of the text; a pass has up to twice as many rows.
        tau: Entropy in nats below which a mask is filled; None fills one a pass, the surest.
        slope: Added to the entropy for each place after the first mask, the published lambda.
        max_per_step: Most masks filled in a pass, those nearest the text; None for no limit.
        entropy: Of the logits as they are, or over the temperature.
    """

    window: int = 16
    tau: float | None = 0.4
    slope: float = 0.02
    max_per_step: int | None = None
    entropy: Literal["raw", "scaled"] = "raw"

    def strategy(self, package: Package, sampling: SamplingParams) -> Strategy:
        """What runs it on a package.

        Raises:
            UsageError: An option is out of range, or the model cannot be decoded so.
        """
        from rdrr_runtime.decode import wedlm

        options = wedlm.WedlmOptions(
            self.window, self.tau, self.slope, self.max_per_step, self.entropy == "scaled"
        )
        return wedlm.Wedlm(_mask_of(package), options, sampling)


@dataclass(frozen=True)
class Speculative:
    """A draft guesses tokens, and one pass of the model judges all of them.

    The text is what the model alone would have written, or drawn.

    Attributes:
        draft: A smaller package with the same tokens, or `ngram`: what followed the last tokens
            when they were in the text before.
        tokens: Most guesses of a pass.
    """

    draft: str | Path = NGRAM
    tokens: int = 5

    def strategy(self, drafts: Drafts, sampling: SamplingParams) -> Strategy:
        """What runs it.

        Raises:
            UsageError: An option is out of range, or the draft has other tokens.
            StoreError: There is no package of that name.
        """
        from rdrr_runtime.decode.drafts import Draft, ModelDraft, NgramDraft
        from rdrr_runtime.decode.speculative import Speculative as Run

        is_text = self.draft == NGRAM
        draft: Draft = NgramDraft() if is_text else ModelDraft(drafts.get(self.draft))
        return Run(draft, self.tokens, sampling)


@dataclass
class Drafts:
    """Models that guess, each loaded once beside the one that judges.

    Attributes:
        package: The model that judges.
        beside: Its backend; a draft runs on the same.
    """

    package: Package
    beside: OpenedBackend
    _loaded: dict[str, Backend] = field(default_factory=dict)

    def get(self, path: str | Path) -> Backend:
        """The backend of a draft.

        Raises:
            UsageError: It has other tokens.
            StoreError: There is no package at `path`.
        """
        from rdrr_manifests.package import open_package

        name = str(path)
        if name not in self._loaded:
            draft = open_package(path)
            sizes = [one.manifest.architecture.vocab_size for one in (self.package, draft)]
            if sizes[0] != sizes[1]:
                raise UsageError(
                    "a draft must have the model's tokens",
                    where=name,
                    expected=f"{sizes[0]} of them",
                    found=sizes[1],
                )
            self._loaded[name] = open_beside(draft, self.beside)
        return self._loaded[name]

    def close(self) -> None:
        """Free them."""
        for one in self._loaded.values():
            one.close()
        self._loaded.clear()


def _mask_of(package: Package) -> int:
    """The mask token of a model whose masks can be filled in place.

    Raises:
        UsageError: It has none, or layers that see a window of slots.
    """
    from rdrr_manifests.graph import Attention

    mask = package.manifest.mask_token_id
    if mask is None:
        raise UsageError(
            "the model was not trained to fill masks",
            where=package.where,
            expected="a manifest with a mask_token_id",
            hint="leave --decode out, or convert a WeDLM checkpoint",
        )
    # A window counts slots, in which masks do not lie in the order of the text.
    if any(isinstance(op, Attention) and op.window for op in package.graph.ops):
        raise UsageError(
            "wedlm does not decode models with sliding windows",
            where=package.where,
            hint="leave --decode out",
        )
    return mask
