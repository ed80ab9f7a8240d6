"""Measurements of a generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rdrr_format.html_tables import facts_table

from rdrr_runtime.decode.base import Counts


@dataclass(repr=False)
class GenerationStats:
    """Measurements of one generation, complete once its iterator has ended.

    Attributes:
        prompt_tokens: Ids of the prompt.
        cached_tokens: Ids of the prompt that were already in the cache and did not run again.
        context_shifts: Times that the context was full and its older half was dropped.
        new_tokens: Delivered ids, including an end-of-text id.
        first_token_seconds: Time from the start to the first id.
        total_seconds: Time from the start to the last id.
        finish: `stop` (an end-of-text id, or a constraint that is complete), `length`
            (max_tokens), `context` (the context is full), or `running`.
        counts: Counters of forward passes, rows, draft tokens and readbacks.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    context_shifts: int = 0
    new_tokens: int = 0
    first_token_seconds: float = 0.0
    total_seconds: float = 0.0
    finish: str = "running"
    counts: Counts = field(default_factory=Counts)

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens that were run, divided by the time to first token."""
        run = self.prompt_tokens - self.cached_tokens
        return run / self.first_token_seconds if self.first_token_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Delivered tokens after the first one, divided by the time after the first one."""
        seconds = self.total_seconds - self.first_token_seconds
        return (self.new_tokens - 1) / seconds if seconds > 0 and self.new_tokens > 1 else 0.0

    @property
    def tokens_per_forward(self) -> float:
        """Delivered tokens per forward pass, not counting the passes of the prompt."""
        counts = self.counts
        return (counts.rows - counts.wasted_rows) / counts.forwards if counts.forwards else 0.0

    def __repr__(self) -> str:
        return (
            f"GenerationStats(prompt_tokens={self.prompt_tokens}, new_tokens={self.new_tokens}, "
            f"finish={self.finish!r}, time_to_first_token_ms={1e3 * self.first_token_seconds:.1f}, "
            f"decode_tokens_per_second={self.decode_tokens_per_second:.1f})"
        )

    def _repr_html_(self) -> str:
        """Return a table of the figures for notebooks."""
        decode, prefill = self.decode_tokens_per_second, self.prefill_tokens_per_second
        return facts_table(
            "Generation",
            {
                "prompt": f"{self.prompt_tokens:,} tokens, {self.cached_tokens:,} of them cached",
                "new tokens": f"{self.new_tokens:,}",
                "finish": self.finish,
                "time to first token": f"{1e3 * self.first_token_seconds:.1f} ms",
                "total time": f"{1e3 * self.total_seconds:.1f} ms",
                "prefill": f"{prefill:,.1f} tokens per second" if prefill else None,
                "decode": f"{decode:,.1f} tokens per second" if decode else None,
                "draft tokens": f"{self.counts.accepted:,} of {self.counts.drafted:,} accepted"
                if self.counts.drafted
                else None,
            },
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the figures that `--json` and `--stats` print."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "context_shifts": self.context_shifts,
            "new_tokens": self.new_tokens,
            "finish": self.finish,
            "time_to_first_token_ms": 1e3 * self.first_token_seconds,
            "total_ms": 1e3 * self.total_seconds,
            "prefill_tokens_per_second": self.prefill_tokens_per_second,
            "decode_tokens_per_second": self.decode_tokens_per_second,
            "forwards": self.counts.forwards,
            "wasted_forwards": self.counts.wasted,
            "rows": self.counts.rows,
            "wasted_rows": self.counts.wasted_rows,
            "tokens_per_forward": self.tokens_per_forward,
            "drafted": self.counts.drafted,
            "accepted": self.counts.accepted,
            "readbacks": self.counts.readbacks,
        }
