"""What an engine needs of something that runs a model: the GPU program or the torch reference.

Positions are KV slots: `base` is the number of tokens already in the cache, and a pass over n
tokens fills the slots base .. base+n-1. Passing a smaller base than before rewinds the cache;
later writes overwrite what was beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rdrr_runtime.sampling.logprobs import TokenLogprobs
from rdrr_runtime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from rdrr_runtime.compile.decision import Decision

F32 = npt.NDArray[np.float32]
Mask = Callable[[], npt.NDArray[np.uint32]]


@dataclass(frozen=True)
class BackendInfo:
    """What a backend is and has allocated.

    Attributes:
        name: `wgpu` or `cpu`.
        adapter: GPU adapter, None on the CPU.
        context: KV slots.
        weights_bytes: Memory that the weights take in it.
        kv_bytes: Memory of the key-value cache.
        decisions: What serves each op and why (see `rdrr_runtime.compile.decision`).
        kv_dtype: How the cache stores its elements.
    """

    name: str
    adapter: str | None
    context: int
    weights_bytes: int
    kv_bytes: int
    decisions: tuple[Decision, ...] = field(default=())
    kv_dtype: str = "f32"


class Backend(Protocol):
    """A loaded model that turns token ids into logits or, greedily, into further ids."""

    @property
    def info(self) -> BackendInfo:
        """Facts about the backend."""
        ...

    def logits(self, ids: Sequence[int], base: int, *, all_rows: bool = False) -> F32:
        """Logits after the last of `ids`, float32 [1, vocab]; of every row with `all_rows`."""
        ...

    def greedy(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        """Run `ids`, then feed back the most probable token; `count` new ids, read back at once.

        The last of them has not been run: the cache then holds base + len(ids) + count - 1 tokens.
        """
        ...

    def fill(self, ids: Sequence[int], base: int) -> None:
        """Run `ids` for their keys and values alone."""
        ...

    def window_logits(
        self,
        ids: Sequence[int],
        base: int,
        *,
        wanted: int,
        positions: Sequence[int] | None = None,
    ) -> F32:
        """Logits of the last `wanted` of `ids`, float32 [wanted, vocab], from one pass.

        Made for up to 32 rows, whose weights are then read once.

        Args:
            ids: Row r goes to slot base + r and sees the slots up to its own.
            base: Tokens in the cache.
            wanted: Rows whose logits are wanted, the last ones; with 0 none are computed.
            positions: Position of each row in the sequence; its slot when None.
        """
        ...

    def window_picks(
        self,
        ids: Sequence[int],
        base: int,
        *,
        wanted: int,
        positions: Sequence[int] | None = None,
    ) -> tuple[list[int], F32]:
        """Return the most probable id of each of these rows and its entropy in nats."""
        ...

    def close(self) -> None:
        """Free what the model holds."""
        ...


@runtime_checkable
class StoringBackend(Protocol):
    """What a backend has whose cache can be taken out and put back."""

    def read_cache(self, slots: int) -> dict[str, npt.NDArray[np.uint8]]:
        """The first slots of all layers, by name, uint8 [kv_heads, slots, bytes of a slot].

        A type that keeps two slots in a word may give one slot more.
        """
        ...

    def write_cache(self, cache: Mapping[str, npt.NDArray[np.uint8]], slots: int) -> None:
        """Put back what `read_cache` gave.

        Raises:
            FormatError: Names or shapes of another model.
        """
        ...


@runtime_checkable
class SamplingBackend(Protocol):
    """What a backend that samples on its device has besides; `HostSampling` serves the rest."""

    def begin(
        self,
        options: SamplingParams,
        seen: Sequence[int],
        *,
        masked: bool = False,
        logprobs: int | None = None,
    ) -> None:
        """Start a generation.

        Args:
            options: How tokens are chosen.
            seen: Ids that the penalties apply to, as often as they occurred.
            masked: Whether tokens come from `sample_masked`, and not from `sample`.
            logprobs: Record log-probabilities, for this many of the most probable tokens too;
                None to record nothing.
        """
        ...

    def sample(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        """Run `ids`, then feed back the sampled token; `count` new ids, as `Backend.greedy`."""
        ...

    def sample_masked(self, ids: Sequence[int], base: int, mask: Mask) -> list[int]:
        """Run `ids`, then sample one id among those that a mask allows.

        Args:
            ids: Token ids.
            base: Tokens already in the cache.
            mask: Gives the mask, bit i mod 32 of word i / 32 for token i; called while the device
                works on the pass.
        """
        ...

    def take_logprobs(self) -> list[TokenLogprobs]:
        """Return the log-probabilities recorded for the ids sampled since the last call."""
        ...


class Feed(Protocol):
    """A run of passes, each of which has its tokens from the one before, on the device.

    The first pass runs the ids that the feed begins with. Ids of a feed that is given up are never
    read; the passes after them leave nothing that a rewound cache shows.
    """

    def submit(self, count: int) -> None:
        """Submit the passes that give `count` further ids; it does not wait."""
        ...

    def fence(self) -> None:
        """End a group: the ids submitted since the last fence, at least one, come together."""
        ...

    def collect(self) -> list[list[int]]:
        """Wait for the ids of the oldest fence, not for later passes; return those of each row."""
        ...


@runtime_checkable
class FeedingBackend(Protocol):
    """What a backend has besides that takes passes before their tokens are known to the host.

    Attributes:
        ahead: Passes that are worth submitting before the ids before them are read; few where a
            pass takes long, since those after an end of text are wasted.
    """

    ahead: int

    def feed(self, ids: Sequence[int], base: int, *, sampled: bool = False) -> Feed:
        """Return a feed of one row that begins with `ids`; one at a time.

        Args:
            ids: Token ids, at least one.
            base: Tokens already in the cache.
            sampled: Tokens are sampled as the last `SamplingBackend.begin` says, which may also
                record log-probabilities; else they are the most probable.
        """
        ...


class Row(NamedTuple):
    """A token of a sequence: its id, the sequence that it belongs to, and its slot in it."""

    token: int
    sequence: int
    slot: int


class BatchBackend(Protocol):
    """What runs rows of several sequences in one pass."""

    sequences: int
    context: int

    def fill(self, rows: Sequence[Row]) -> None:
        """Run rows for their keys and values alone: of a sequence one slot after the other."""
        ...

    def greedy(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        """Run a row of each of some sequences, then feed back the most probable tokens.

        Returns:
            For each row its `count` new ids, of which the last has not been run.
        """
        ...

    def begin(self, sequence: int, options: SamplingParams, seen: Sequence[int]) -> None:
        """Start a generation in a sequence; `seen` are ids that the penalties apply to."""
        ...

    def sample(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        """Do as `greedy` with the tokens that are sampled for each sequence."""
        ...


@runtime_checkable
class BatchingBackend(Protocol):
    """A backend that has sequences of a batch besides its own."""

    def batch(self, sequences: int, context: int) -> BatchBackend:
        """Return caches of at least as many sequences of at least as many slots."""
        ...
