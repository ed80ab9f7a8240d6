"""Options of the ways of decoding, read together: each belongs to one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import UsageError

if TYPE_CHECKING:
    from rdrr._decoding import Speculative, Wedlm

_FLAGS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "wedlm": {
            "window": "--window",
            "tau": "--tau",
            "slope": "--lambda",
            "max_per_step": "--max-per-step",
            "entropy": "--entropy-temp",
        },
        "speculative": {"draft": "--draft", "draft_tokens": "--draft-tokens"},
    }
)
"""Of each way, its options and their flags."""


@dataclass(frozen=True)
class DecodeFlags:
    """What was given on the command line; None for what was not.

    Attributes:
        decode: `ar`, `wedlm` or `speculative`.
        window: Of wedlm, as the next four.
        tau: A number or `none`.
        slope: `--lambda`.
        max_per_step: Most masks filled in a pass.
        entropy: `--entropy-temp`.
        draft: Of speculative, as the next: a package, or `ngram`.
        draft_tokens: Most guesses of a pass.
    """

    decode: str
    window: int | None = None
    tau: str | None = None
    slope: float | None = None
    max_per_step: int | None = None
    entropy: str | None = None
    draft: str | None = None
    draft_tokens: int | None = None

    def read(self) -> Wedlm | Speculative | None:
        """The way of decoding; None for one token after the other.

        Raises:
            UsageError: An option of another way, or no number.
        """
        for way, flags in _FLAGS.items():
            for name in flags if way != self.decode else ():
                if getattr(self, name) is not None:
                    raise UsageError(f"{flags[name]} is an option of --decode {way}")
        given = self._given()
        if self.decode == "wedlm":
            from rdrr._decoding import Wedlm

            tau = {} if self.tau is None else {"tau": _tau(self.tau)}
            return Wedlm(**given | tau)
        if self.decode == "speculative":
            from rdrr._decoding import Speculative

            tokens = {} if self.draft_tokens is None else {"tokens": given.pop("draft_tokens")}
            return Speculative(**given | tokens)
        return None

    def _given(self) -> dict[str, Any]:
        names = _FLAGS.get(self.decode, ())
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def _tau(word: str) -> float | None:
    if word == "none":
        return None
    try:
        return float(word)
    except ValueError:
        raise UsageError("not a --tau", expected="a number of nats, or none", found=word) from None
