"""What a run of the tuner has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rdrr_device.tuning import AnyTuningKey, Params


class Verdict(StrEnum):
    """What became of a candidate."""

    WON = "won"
    NO_BETTER = "no better"
    WRONG = "wrong results"
    FAILED = "does not run"


@dataclass(frozen=True)
class Trial:
    """A candidate that was tried.

    Attributes:
        params: Its parameters.
        verdict: What became of it.
        seconds: Median GPU time of the tuning key in a pass; 0 where it was not timed.
    """

    params: Params
    verdict: Verdict
    seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """One tuning key.

    Attributes:
        tuning_key: Whose parameters were tried.
        step: `decode` or `prefill`.
        chosen: The parameters that are to run.
        default_seconds: Median GPU time of the tuning key in a pass with the default.
        seconds: The same with what was chosen.
        trials: The candidates, the default not among them.
    """

    tuning_key: AnyTuningKey
    step: str
    chosen: Params
    default_seconds: float
    seconds: float
    trials: tuple[Trial, ...]

    @property
    def changes(self) -> bool:
        """Whether other parameters than the default were chosen."""
        default: Params = self.tuning_key.default
        return self.chosen != default


@dataclass(frozen=True)
class PassTimes:
    """A whole pass with the defaults and with all that is stored.

    Attributes:
        step: `decode` or `prefill`.
        default_seconds: Median GPU time.
        seconds: The same with the winners.
        kept: Whether the winners are kept: not where they are slower together.
    """

    step: str
    default_seconds: float
    seconds: float
    kept: bool


@dataclass(frozen=True)
class Tuned:
    """What a run of the tuner found.

    Attributes:
        outcomes: The tuning keys that were tuned.
        passes: Whole passes, where there were winners.
        known: Sites that were stored already.
    """

    outcomes: tuple[Outcome, ...]
    passes: tuple[PassTimes, ...]
    known: int

    @property
    def trials(self) -> int:
        """Candidates that were tried."""
        return sum(len(one.trials) for one in self.outcomes)
