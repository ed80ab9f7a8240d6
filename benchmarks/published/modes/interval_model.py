"""The speed-up from reading back every x tokens: predicted from a token's costs, and measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rdrr.bench.figures import Spread

from published.modes.runs import ModeRuns


@dataclass(frozen=True)
class IntervalGain:
    """The gain of a mode that reads back every x tokens over the same mode with x = 1.

    Attributes:
        name: Name of the mode.
        over: Name of the mode that reads back every token.
        encode_ms: Host time to record and submit a token.
        gpu_ms: GPU time of a token.
        sync_ms: The rest of the time of a token with readback: waiting and reading.
        predicted: The gain if host and GPU overlap, so that the longer of `encode_ms` and `gpu_ms`
            counts, and `sync_ms` is paid once per x tokens.
        measured: The measured gain.
    """

    name: str
    over: str
    encode_ms: float
    gpu_ms: float
    sync_ms: float
    predicted: float
    measured: float

    def as_dict(self) -> dict[str, str | float]:
        """Return the gain for JSON."""
        return asdict(self)


def interval_gains(modes: Sequence[ModeRuns]) -> Iterator[IntervalGain]:
    """Yield the gain of each mode with an interval if its variant with x = 1 was measured too.

    Modes that submit passes ahead of a readback are omitted, since the model's waiting time does
    not apply to them.
    """
    waiting = [runs for runs in modes if runs.mode.ahead == 0]
    singles = {
        (runs.mode.submission, runs.mode.sampler): runs
        for runs in waiting
        if runs.mode.interval == 1
    }
    for runs in waiting:
        single = singles.get((runs.mode.submission, runs.mode.sampler))
        if runs.mode.interval > 1 and single is not None:
            gain = _gain(runs, single)
            if gain is not None:
                yield gain


def _gain(runs: ModeRuns, single: ModeRuns) -> IntervalGain | None:
    last = single.runs[-1]
    if single.gpu is None or last.host is None:
        return None
    alone = 1e3 * Spread.of(single.seconds()).median
    encode, gpu = 1e3 * last.host.submit / last.decoded, single.gpu.token_ms
    busy = max(encode, gpu)
    # With one submission per op the GPU starts while the host is still recording.
    before_sync = busy if single.mode.submission.submit_per_op else encode + gpu
    sync = max(0.0, alone - before_sync)
    return IntervalGain(
        runs.mode.name,
        single.mode.name,
        encode,
        gpu,
        sync,
        predicted=alone / (busy + sync / runs.mode.interval),
        measured=alone / (1e3 * Spread.of(runs.seconds()).median),
    )
