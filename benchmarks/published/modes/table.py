"""The tables of the decode modes and of the speed-ups that some must reach over others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from rdrr_format.errors import UsageError

from published.modes.submission import OURS, Submission

if TYPE_CHECKING:
    from rdrr_runtime.decode.strategy import Strategy


@dataclass(frozen=True)
class Mode:
    """A decode mode.

    Attributes:
        name: Name that `--mode` takes.
        submission: How programs are submitted to the queue.
        interval: Tokens per readback.
        sampler: Where the argmax is taken; with `cpu` all logits are read back.
        ahead: Passes of the next interval that are submitted before a readback; None for the
            default of this runtime. The published modes submit none.
    """

    name: str
    submission: Submission
    interval: int = 1
    sampler: Literal["gpu", "cpu"] = "gpu"
    ahead: int | None = 0

    def strategy(self) -> Strategy:
        """Return the decoding strategy of the mode."""
        from rdrr_runtime.decode.autoregressive import Autoregressive

        from published.strategies.greedy_on_host import GreedyOnHost

        return (
            GreedyOnHost() if self.sampler == "cpu" else Autoregressive(self.interval, self.ahead)
        )


_WEBLLM = Submission(
    submit_per_op=True, uniforms="fresh", fresh_bind_groups=True, fresh_staging=True
)
_CACHE = replace(_WEBLLM, uniforms="cached")

MODES: Mapping[str, Mode] = MappingProxyType(
    {
        mode.name: mode
        for mode in (
            Mode("webllm", _WEBLLM),
            Mode("webllm+cache", _CACHE),
            Mode("webllm+cache+interval", _CACHE, 4),
            *(Mode(f"ours-x{x}", OURS, x) for x in (1, 2, 4, 8)),
            *(Mode(f"ahead-x{x}", OURS, x, ahead=None) for x in (1, 8)),
        )
    }
)
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"ours": tuple(name for name in MODES if name.startswith("ours")), "all": tuple(MODES)}
)
"""Names that `--mode` takes for several modes."""


@dataclass(frozen=True)
class Gate:
    """The speed-up that one mode must reach over another.

    Attributes:
        fast: Name of the faster mode.
        slow: Name of the slower mode.
        least: The smallest ratio that passes.
        published: The ratio that the published system states, or None.
    """

    fast: str
    slow: str
    least: float
    published: float | None = None


GATES = (
    Gate("webllm+cache", "webllm", 1.05, 1.18),
    Gate("webllm+cache+interval", "webllm", 1.5, 1.88),
    Gate("webllm+cache+interval", "webllm+cache", 1.15, 1.59),
    Gate("ours-x1", "webllm", 1.2),
    Gate("ours-x4", "webllm", 1.5, 1.88),
    Gate("ours-x2", "ours-x1", 0.97),
    Gate("ours-x4", "ours-x2", 0.97),
    Gate("ours-x8", "ours-x4", 0.97),
    Gate("ours-x4", "ours-x1", 1.15),
    Gate("ahead-x1", "ours-x1", 1.0),
    Gate("ahead-x8", "ours-x8", 1.0),
)


def chosen(
    names: Iterable[str],
    *,
    submit: str | None = None,
    sampler: Literal["cpu", "gpu"] | None = None,
) -> list[Mode]:
    """Return the modes with the given names, each once; the names of `GROUPS` are expanded.

    Args:
        names: Names as given on the command line.
        submit: `per-op` or `per-token`, to replace the submissions of every mode.
        sampler: `cpu` or `gpu`, to replace the sampler of every mode.

    Raises:
        UsageError: There is no mode with a name.
    """
    selected: dict[str, Mode] = {}
    for name in names:
        for member in GROUPS.get(name, (name,)):
            if member not in MODES:
                known = ", ".join([*MODES, *GROUPS])
                raise UsageError("unknown mode", expected=f"one of {known}", found=member)
            selected[member] = MODES[member]
    modes = list(selected.values())
    if submit is not None:
        per_op = submit == "per-op"
        modes = [
            replace(mode, submission=replace(mode.submission, submit_per_op=per_op))
            for mode in modes
        ]
    if sampler is not None:
        modes = [replace(mode, sampler=sampler) for mode in modes]
    return modes
