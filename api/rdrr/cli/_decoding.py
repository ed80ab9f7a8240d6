"""Options of the ways of decoding, read together: each belongs to one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import UsageError

if TYPE_CHECKING:
    from rdrr._decoding import Wedlm


@dataclass(frozen=True)
class DecodeFlags:
    """What was given on the command line; None for what was not.

    Attributes:
        decode: `ar` or `wedlm`.
        window: Of wedlm, as all that follow.
        tau: A number or `none`.
        slope: `--lambda`.
        max_per_step: Most masks filled in a pass.
        entropy: `--entropy-temp`.
    """

    decode: str
    window: int | None = None
    tau: str | None = None
    slope: float | None = None
    max_per_step: int | None = None
    entropy: str | None = None

    def read(self) -> Wedlm | None:
        """The way of decoding; None for one token after the other.

        Raises:
            UsageError: An option of another way, or no number.
        """
        wedlm = {
            "window": self.window,
            "tau": self.tau,
            "slope": self.slope,
            "max_per_step": self.max_per_step,
            "entropy": self.entropy,
        }
        given: dict[str, Any] = {key: value for key, value in wedlm.items() if value is not None}
        if self.decode != "wedlm":
            if given:
                flag = _FLAGS.get(next(iter(given)), f"--{next(iter(given))}".replace("_", "-"))
                raise UsageError(f"{flag} is an option of --decode wedlm", found=self.decode)
            return None
        from rdrr._decoding import Wedlm

        if self.tau is not None:
            given["tau"] = _tau(self.tau)
        return Wedlm(**given)


_FLAGS = {"slope": "--lambda", "entropy": "--entropy-temp"}


def _tau(word: str) -> float | None:
    if word == "none":
        return None
    try:
        return float(word)
    except ValueError:
        raise UsageError("not a --tau", expected="a number of nats, or none", found=word) from None
