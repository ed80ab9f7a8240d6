"""Tokenizers of strangers: the one place that calls the library `tokenizers`.

A `tokenizer.json` says how text is normalized, cut and put together again, by replacements and
regular expressions that can make a text grow without bound or take for ever. Steps that multiply a
text are refused when the tokenizer is read; what is encoded and decoded has a bound, and encoding
has a time limit, since regular expressions of the library backtrack.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from threading import Thread
from typing import Any

from rdrr_format.bounded_json import JsonBounds, check_bounds
from rdrr_format.errors import FormatError, GenerationError, ManifestError, RdrrError, UsageError
from rdrr_format.foreign import foreign_errors

JSON_BOUNDS = JsonBounds(size=64 << 20, values=1 << 22)
"""What a `tokenizer.json` may cost; the largest published ones have half of it."""

MAX_TEXT = 1 << 24
"""Bytes of a text that is encoded or decoded, in UTF-8."""

MAX_GROWN = 1 << 26
"""Bytes that a text may have in the library's hands."""

MAX_GROWTH = 64
"""Times that normalizing or decoding may multiply the bytes of a text."""

MAX_ADDED = 1 << 16
"""Bytes and ids that may be added to a text, whatever its length."""

MAX_TOKEN = 1 << 16
"""Characters of one token."""

MAX_STEPS = 256
"""Normalizers or decoders in a sequence."""

MAX_ID = (1 << 32) - 1

SECONDS, BYTES_PER_SECOND = 30, 20_000
"""Encoding may take so long, and a second more for so many bytes; it usually takes a hundredth."""

_HINT = "use the tokenizer.json that the model was published with"


class BoundedTokenizer:
    """A tokenizer that was read and found harmless.

    Args:
        content: Contents of a `tokenizer.json`.
        where: Where they are from, for errors.

    Raises:
        ManifestError: Not a tokenizer, or one with steps that are refused.
    """

    def __init__(self, content: bytes, *, where: str = "tokenizer.json") -> None:
        # For batches of one text the library would keep a pool of threads, and 25 MiB for it.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from tokenizers import Tokenizer

        self._where = where
        try:
            check_bounds(content, JSON_BOUNDS)
        except FormatError as error:
            raise self._refusal(error.message, error.expected, error.found) from error
        with foreign_errors(self._unreadable):
            self._tokenizer = Tokenizer.from_buffer(content)
            # A text is neither cut off nor filled up here, whatever a file says.
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
            steps = [_state(one) for one in (self._tokenizer.normalizer, self._tokenizer.decoder)]
            after = _state(self._tokenizer.post_processor)
            added = self._tokenizer.num_special_tokens_to_add(False)
        growths = [self._growth(one, part) for one, part in zip(steps, _PARTS, strict=True)]
        self._encoding, self._decoding = growths
        if added > MAX_ADDED:
            raise self._refusal("too many ids are added to every text", MAX_ADDED, added)
        if (times := _repetitions(after)) > 1:
            raise self._refusal("the post-processor repeats the text", 1, times)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of a text.

        Args:
            text: The text.
            special: Whether the post-processor adds special tokens.

        Raises:
            UsageError: The text cannot be written in UTF-8, or is too long.
            GenerationError: The tokenizer fails at it, or takes too long.
        """
        size = _utf8_size(text)
        _check_size(size, self._encoding, "the text is too long to be encoded")
        found = self._in_time(text, special, SECONDS + size / BYTES_PER_SECOND)
        return list(found)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens.

        Raises:
            UsageError: Something is no id, or the text would be too long.
            GenerationError: The tokenizer fails at them.
        """
        checked = [checked_id(one) for one in ids]
        sizes = {one: self._token_size(one) for one in set(checked)}
        _check_size(
            sum(sizes[one] for one in checked), self._decoding, "the text would be too long"
        )
        with foreign_errors(self._failure):
            text: str = self._tokenizer.decode(checked)
        return text

    def stream(self) -> BoundedStream:
        """Return a decoder that is fed one id at a time."""
        return BoundedStream(self)

    def is_special(self, token_id: int) -> bool:
        """Whether an id is a special token."""
        added = self._tokenizer.get_added_tokens_decoder().get(token_id)
        return added is not None and bool(added.special)

    def vocabulary(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return the ids of the model's own tokens, and those of the tokens added to them."""
        with foreign_errors(self._unreadable):
            own: Mapping[str, int] = self._tokenizer.get_vocab(with_added_tokens=False)
            added = {
                str(token.content): token_id
                for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
            }
        return own, added

    def step(self, stream: Any, token_id: int) -> str:
        """Feed an id to a stream of the library, for `BoundedStream`."""
        self._token_size(checked_id(token_id))
        with foreign_errors(self._failure):
            piece: str | None = stream.step(self._tokenizer, token_id)
        return piece or ""

    def _token_size(self, token_id: int) -> int:
        size = len(self._tokenizer.id_to_token(token_id) or "")
        if size > MAX_TOKEN:
            raise GenerationError(
                "a token is too long",
                where=self._where,
                expected=f"at most {MAX_TOKEN} characters",
                found=f"{size}, of id {token_id}",
            )
        return size

    def _in_time(self, text: str, special: bool, seconds: float) -> Sequence[int]:
        """Encode in a thread, which is left alone where it takes too long.

        Of the library's calls only that for a batch lets other threads run meanwhile.
        """
        ids: list[Sequence[int]] = []
        errors: list[RdrrError] = []

        def run() -> None:
            try:
                with foreign_errors(self._failure):
                    made = self._tokenizer.encode_batch([text], add_special_tokens=special)
                    ids.append(made[0].ids)
            except RdrrError as error:
                errors.append(error)

        thread = Thread(target=run, name="rdrr-tokenizer", daemon=True)
        thread.start()
        thread.join(seconds)
        if errors:
            raise errors[0]
        if not ids:
            raise GenerationError(
                "the tokenizer takes too long",
                where=self._where,
                expected=f"at most {seconds:.0f} s",
                hint=_HINT,
            )
        return ids[0]

    def _growth(self, state: Any, part: str) -> int:
        """Return how often the steps of a part may multiply a text."""
        steps = list(_flattened(state))
        if len(steps) > MAX_STEPS:
            raise self._refusal(f"the {part} has too many steps", MAX_STEPS, len(steps))
        growth = 1.0
        for step in steps:
            if part == "decoder" and "Regex" in (step.get("pattern") or {}):
                raise self._refusal("a decoder has a regular expression", 0, step["pattern"])
            growth *= _multiplied(step)
            if growth > MAX_GROWTH or len(step.get("prepend") or "") > MAX_ADDED:
                raise self._refusal(f"the {part} makes texts too long", f"{MAX_GROWTH} times", None)
        return -int(-growth // 1)

    def _refusal(self, message: str, most: object, found: object) -> ManifestError:
        expected = most if isinstance(most, str) and "at most" in most else f"at most {most}"
        return ManifestError(message, where=self._where, expected=expected, found=found, hint=_HINT)

    def _unreadable(self, said: str) -> ManifestError:
        return ManifestError("cannot be read as a tokenizer", where=self._where, found=said)

    def _failure(self, said: str) -> GenerationError:
        return GenerationError("the tokenizer fails", where=self._where, found=said, hint=_HINT)


class BoundedStream:
    """Ids in, text out as soon as it is certain.

    Args:
        tokenizer: Whose ids.
    """

    def __init__(self, tokenizer: BoundedTokenizer) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def feed(self, token_id: int) -> str:
        """Return the text that became certain with this id.

        Raises:
            UsageError: It is no id.
            GenerationError: The tokenizer fails at it.
        """
        return self._tokenizer.step(self._stream, token_id)


_PARTS = ("normalizer", "decoder")


def checked_id(value: Any) -> int:
    """Return a token id as a plain integer.

    Raises:
        UsageError: It is none.
    """
    try:
        token_id = value.__index__() if not isinstance(value, bool) else -1
    except (AttributeError, TypeError):
        token_id = -1
    if not 0 <= token_id <= MAX_ID:
        raise UsageError("not a token id", expected=f"0 to {MAX_ID}", found=repr(value)[:100])
    return int(token_id)


def _state(part: Any) -> Any:
    """Return what the library says of a part of a tokenizer."""
    return None if part is None else json.loads(part.__getstate__())


def _flattened(state: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a normalizer, decoder or post-processor."""
    if not isinstance(state, Mapping):
        return
    inner = [state.get(key) for key in ("normalizers", "decoders", "processors")]
    if not any(inner):
        yield state
    for steps in inner:
        for step in steps or ():
            yield from _flattened(step)


def _multiplied(step: Mapping[str, Any]) -> float:
    """Return how often a step may multiply the bytes of a text."""
    content, pattern = step.get("content"), step.get("pattern")
    if not isinstance(content, str) or not isinstance(pattern, Mapping):
        return 1.0
    made, replaced = len(content.encode()), len(str(pattern.get("String", "")).encode())
    # A regular expression may match nothing, between any two bytes.
    return max(1.0, made / replaced) if replaced else 1.0 + made


def _repetitions(state: Any) -> int:
    """Return how often the steps of a post-processor put the text into its result."""
    times = 1
    for step in _flattened(state):
        pieces = step.get("single")
        if isinstance(pieces, list):
            times *= max(1, sum("Sequence" in one for one in pieces))
    return times


def _utf8_size(text: str) -> int:
    # Bytes of a command line or a pipe that are no UTF-8 become lone surrogates.
    if not isinstance(text, str):
        raise UsageError("not a text", expected="a string", found=type(text).__name__)
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise UsageError(
            "the text is not in UTF-8",
            expected="characters",
            found=f"{error.object[error.start]!a} at {error.start}",
        ) from None


def _check_size(size: int, growth: int, message: str) -> None:
    most = min(MAX_TEXT, MAX_GROWN // growth)
    if size > most:
        raise UsageError(message, expected=f"at most {most} bytes", found=size)
