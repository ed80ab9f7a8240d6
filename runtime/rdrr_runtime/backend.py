"""The interfaces between the engine and what runs a model: the GPU backend or the torch reference.

Positions are slots of the key-value cache. `base` is the number of tokens already in the cache, and
a pass over n tokens fills the slots base to base + n - 1. A smaller `base` than before rewinds the
cache: entries beyond it are never read, and later passes overwrite them. Models with recurrent
states can be rewound only to some positions, see `resumable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rdrr_runtime.sampling.logprobs import TokenLogprobs
from rdrr_runtime.sampling.masks import FilledTokens, MaskRules
from rdrr_runtime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from rdrr_runtime.compile.choice.decision import Decision
    from rdrr_runtime.images.rows import SeenImages, SequencePositions
    from rdrr_runtime.packing import EncodedText

F32 = npt.NDArray[np.float32]
Mask = Callable[[], npt.NDArray[np.uint32]]


@dataclass(frozen=True)
class BackendInfo:
    """Facts about a backend and its memory.

    Attributes:
        name: `wgpu` or `cpu`.
        adapter: Name of the GPU adapter; None on the CPU.
        context: Slots of the key-value cache.
        weights_bytes: Bytes that the weights take in the backend's memory.
        kv_bytes: Bytes of the key-value cache.
        decisions: Which kernel serves each op, and why, see `rdrr_runtime.compile.choice.decision`.
        kv_dtype: Type of the cache's elements.
        waits_for_ids: Whether the host must know each token before the next pass, because it reads
            rows of a table for it. Then no pass can run ahead.
    """

    name: str
    adapter: str | None
    context: int
    weights_bytes: int
    kv_bytes: int
    decisions: tuple[Decision, ...] = field(default=())
    kv_dtype: str = "f32"
    waits_for_ids: bool = False


class Backend(Protocol):
    """A loaded model that turns token ids into logits or, greedily, into further ids."""

    @property
    def info(self) -> BackendInfo:
        """Facts about the backend."""

    def logits(self, ids: Sequence[int], base: int, *, all_rows: bool = False) -> F32:
        """Return the logits after the last of `ids`, f32 [1, vocab].

        With `all_rows` return those after each of `ids`, f32 [len(ids), vocab].
        """

    def hidden(self, texts: Sequence[EncodedText]) -> Iterator[F32]:
        """Yield the hidden states of each text that the head would read, f32 [tokens, width].

        Texts of a model whose attention is not causal share passes, several in one.
        """

    def means(self, texts: Sequence[EncodedText], part: slice) -> Iterator[F32]:
        """Yield the mean of some of the hidden states of each text, f32 [width].

        Args:
            texts: The texts.
            part: Which tokens of each text; zeros are yielded for a text that has none of them.
        """

    def greedy(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        """Run `ids`, feed back the most probable token of each pass, and return `count` new ids.

        The last new id is not run. The cache then holds base + len(ids) + count - 1 tokens.
        """

    def fill(self, ids: Sequence[int], base: int) -> None:
        """Run `ids` only to store their keys and values."""

    def window_logits(
        self,
        ids: Sequence[int],
        base: int,
        *,
        last_n: int,
        positions: Sequence[int] | None = None,
    ) -> F32:
        """Return the logits of the last `last_n` rows, f32 [last_n, vocab].

        Up to 32 rows run in one pass, which reads each weight once.

        Args:
            ids: Token ids; row r is stored in slot base + r and attends to the slots up to it.
            base: Tokens already in the cache.
            last_n: Number of last rows to compute logits for; 0 computes none.
            positions: Position of each row in the sequence, for rope; its slot when None.
        """

    def window_picks(
        self,
        ids: Sequence[int],
        base: int,
        *,
        last_n: int,
        positions: Sequence[int] | None = None,
    ) -> tuple[list[int], F32]:
        """Return the most probable id and the entropy in nats of each of the last `last_n` rows.

        The arguments are those of `window_logits`.
        """

    def batch(self, sequences: int, context: int) -> BatchBackend:
        """Return a batch of at least `sequences` sequences with at least `context` slots each.

        Raises:
            UsageError: There are too many sequences, or the cache type does not support batches.
        """

    def close(self) -> None:
        """Free the memory of the model."""


@runtime_checkable
class StoringBackend(Protocol):
    """A backend whose key-value cache can be read and restored."""

    def read_cache(self, slots: int) -> dict[str, npt.NDArray[np.uint8]]:
        """Return the first `slots` slots of all layers.

        Returns:
            By name, uint8 [kv_heads, slots, bytes per slot]. A cache type that packs two slots into
            a word may return one slot more.
        """

    def write_cache(self, cache: Mapping[str, npt.NDArray[np.uint8]], slots: int) -> None:
        """Restore what `read_cache` returned.

        Raises:
            FormatError: The names or shapes are those of another model.
        """


@runtime_checkable
class ResumingBackend(Protocol):
    """A backend that may not be able to rewind to every position, because the model has states."""

    def resumable(self, base: int) -> int:
        """Return the last position up to `base` at which a pass may begin."""


def resumable(backend: Backend, base: int) -> int:
    """Return the last position up to `base` at which a pass of a backend may begin."""
    return backend.resumable(base) if isinstance(backend, ResumingBackend) else base


@runtime_checkable
class SeeingBackend(Protocol):
    """A backend whose sequences may have images: ids behind the vocabulary, see `SeenImages`."""

    @property
    def images(self) -> SeenImages | None:
        """The images that the model has seen; None if it sees none."""

    @property
    def positions(self) -> SequencePositions | None:
        """The positions of the single sequence; None if the model sees no images."""


def images_of(backend: Backend) -> SeenImages | None:
    """Return the images that a model has seen; None if it sees none."""
    return backend.images if isinstance(backend, SeeingBackend) else None


@runtime_checkable
class SamplingBackend(Protocol):
    """A backend that samples on its device; `HostSampling` does it for other backends."""

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
            seen: Ids that the penalties apply to, once for each occurrence.
            masked: Whether the generation uses `sample_masked` rather than `sample`.
            logprobs: Number of most probable tokens to record besides the sampled token; None to
                record no log-probabilities.
        """

    def sample(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        """Run `ids`, feed back each sampled token, and return `count` new ids.

        The last new id is not run, as with `Backend.greedy`.
        """

    def sample_masked(self, ids: Sequence[int], base: int, mask: Mask) -> list[int]:
        """Run `ids`, then sample one of the ids that a mask allows.

        Args:
            ids: Token ids.
            base: Tokens already in the cache.
            mask: Returns the mask, in which token i has bit i mod 32 of word i / 32; called while
                the device works on the pass.
        """

    def take_logprobs(self) -> list[TokenLogprobs]:
        """Return the log-probabilities recorded for the ids sampled since the last call."""


class Feed(Protocol):
    """A chain of passes on the device, each of which takes its input token from the one before.

    The first pass runs the ids that the feed begins with. A feed may be abandoned: its remaining
    ids are never read back, and what its passes left in the cache is overwritten after a rewind.
    """

    def submit(self, count: int) -> None:
        """Submit the passes for `count` further ids, without waiting for them."""

    def fence(self) -> None:
        """End a group: the ids submitted since the last fence, at least one, are read together."""

    def collect(self) -> list[list[int]]:
        """Wait for the oldest fence, but not for later passes, and return the ids of each row."""


@runtime_checkable
class FeedingBackend(Protocol):
    """A backend that accepts passes whose input tokens the host does not know yet.

    Attributes:
        ahead: Recommended number of passes to submit before earlier ids are read back. It is small
            where a pass takes long, since the passes after an end-of-text token are wasted.
    """

    ahead: int

    def feed(self, ids: Sequence[int], base: int, *, sampled: bool = False) -> Feed:
        """Return a feed of one sequence that begins with `ids`; only one may be in use at a time.

        Args:
            ids: Token ids, at least one.
            base: Tokens already in the cache.
            sampled: Whether tokens are sampled as the last `SamplingBackend.begin` says, which may
                also record log-probabilities; otherwise the most probable tokens are taken.
        """


class MaskFeed(Protocol):
    """A chain of passes over a window of masks, in which each pass fills masks for the next one.

    Like a `Feed`, it may be abandoned.

    Attributes:
        ahead: Recommended number of passes to submit before earlier ones are collected.
    """

    ahead: int

    def submit(self) -> None:
        """Submit one more pass, without waiting for it."""

    def collect(self) -> FilledTokens:
        """Wait for the oldest pass that was not collected, and return what it has added."""


@runtime_checkable
class MaskFillingBackend(Protocol):
    """A backend that can fill masks on its device, so that passes need not wait for the host."""

    def mask_feed(self, base: int, rules: MaskRules, count: int) -> MaskFeed | None:
        """Return a feed that fills masks after the sequence; only one may be in use at a time.

        Args:
            base: Tokens already in the cache, which are the whole sequence.
            rules: The window, and which masks a pass fills.
            count: Number of tokens that the sequence may still get.

        Returns:
            The feed; None if the window needs more than one pass.
        """


class Row(NamedTuple):
    """A token row of a pass: its token id, the sequence it belongs to, and its slot there."""

    token: int
    sequence: int
    slot: int


class BatchBackend(Protocol):
    """A backend for several sequences, whose rows share a pass.

    Attributes:
        sequences: Number of sequences.
        context: Slots of each sequence.
    """

    sequences: int
    context: int

    def build_ahead(self) -> None:
        """Start to compile what decoding needs, so that the first texts do not wait for it."""

    def resumable(self, sequence: int, base: int) -> int:
        """Return the last slot up to `base` at which a sequence that has filled it can go on.

        It is `base` unless the sequence has recurrent states.
        """

    def border(self, ids: Sequence[int], begin: int, end: int) -> int:
        """Return where a part of a prompt from `begin` on may end, at `end` if it can.

        A part may have to end before an image or behind it, see `SeenImages.border`.
        """

    def copy(self, source: int, target: int, slots: int) -> None:
        """Copy the first `slots` slots of a sequence, which is resumable there, to another one."""

    def fill(self, rows: Sequence[Row]) -> None:
        """Run rows only to store their keys and values; a sequence's rows are in slot order."""

    def greedy(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        """Run one row of each of several sequences, feeding back the most probable tokens.

        Returns:
            For each row its `count` new ids, the last of which has not been run.
        """

    def feed_rows(self, rows: Sequence[Row], *, sampled: bool) -> Feed | None:
        """Return the feed in use from now on; None if the host must know each id before its pass.

        It begins with a row of each sequence. Tokens are `sampled` as `begin` says.
        """

    def begin(self, sequence: int, options: SamplingParams, seen: Sequence[int]) -> None:
        """Start a generation in a sequence; `seen` are ids that the penalties apply to."""

    def sample(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        """Run rows like `greedy`, feeding back tokens sampled for each sequence."""
