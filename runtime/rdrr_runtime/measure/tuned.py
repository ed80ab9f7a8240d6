"""The result of a run of the tuner."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rdrr_device.tuning import AnyTuningKey, Params

from rdrr_runtime.phases.context import Grid


class Verdict(StrEnum):
    """The outcome of a candidate."""

    WON = "won"
    NO_BETTER = "no better"
    WRONG = "wrong results"
    FAILED = "does not run"


@dataclass(frozen=True)
class Trial:
    """A candidate that was tried.

    Attributes:
        params: The candidate's parameters.
        verdict: The outcome.
        seconds: Median GPU time per pass of the phases that use the tuning key; 0 if not timed.
    """

    params: Params
    verdict: Verdict
    seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """The result for one tuning key.

    Attributes:
        tuning_key: The tuning key whose candidates were tried.
        step: Name of the pass, e.g. `decode`.
        chosen: The parameters to use from now on.
        default_seconds: Median GPU time per pass with the default parameters.
        seconds: Median GPU time per pass with the chosen parameters.
        trials: The candidates other than the default.
    """

    tuning_key: AnyTuningKey
    step: str
    chosen: Params
    default_seconds: float
    seconds: float
    trials: tuple[Trial, ...]

    @property
    def changes(self) -> bool:
        """Whether the chosen parameters differ from the default."""
        default: Params = self.tuning_key.default
        return self.chosen != default


@dataclass(frozen=True)
class PassTimes:
    """The times of a whole pass, with the default parameters and with the winners.

    Attributes:
        step: Name of the pass, e.g. `decode`.
        default_seconds: Median GPU time with the defaults.
        seconds: Median GPU time with the winners.
        kept: Whether the winners are kept; they are not if together they make the pass slower.
    """

    step: str
    default_seconds: float
    seconds: float
    kept: bool


@dataclass(frozen=True)
class GridTrial:
    """A grid on which the decode pass was tried in one dispatch.

    Attributes:
        grid: The grid.
        verdict: The outcome.
        seconds: Median GPU time of a pass; 0 if it was not timed.
    """

    grid: Grid
    verdict: Verdict
    seconds: float = 0.0


@dataclass(frozen=True)
class ExecutorTimes:
    """The times of the decode pass as dispatches and in one dispatch.

    Attributes:
        dispatches: Median GPU time of a pass whose phases are launched one by one.
        trials: The grids that were tried for one dispatch.
        chosen: The grid to run it on from now on; None to launch the phases.
    """

    dispatches: float
    trials: tuple[GridTrial, ...]
    chosen: Grid | None

    @property
    def seconds(self) -> float:
        """Median GPU time of a pass as it runs from now on."""
        return next(
            (trial.seconds for trial in self.trials if trial.grid == self.chosen), self.dispatches
        )


@dataclass(frozen=True)
class Tuned:
    """The result of a run of the tuner.

    Attributes:
        outcomes: Results of the tuning keys that were tuned.
        passes: Times of the whole passes that had winners.
        known: Number of tuning keys whose parameters were stored already.
    """

    outcomes: tuple[Outcome, ...]
    passes: tuple[PassTimes, ...]
    known: int

    @property
    def trials(self) -> int:
        """Number of candidates that were tried."""
        return sum(len(outcome.trials) for outcome in self.outcomes)
