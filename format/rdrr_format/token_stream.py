"""Decoding token ids one at a time to the text that all of them have when decoded at once.

The decoder of a `tokenizer.json` is a list of steps that see all tokens of a text. The first token
may lose its space, bytes that are not UTF-8 change the text of other bytes, and a step may look at
the last token. So a token's text is returned once no later token can change it:

    ByteLevel                       when its characters are complete
    steps that see single tokens    at once
    ByteFallback                    at the end of a run of byte tokens
    edits of the whole text         at a character that no pattern begins with or reaches
    any other step                  at the end of the text
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Join = Callable[[Sequence[str]], str]
"""Function that decodes the tokens of a whole text."""

_ANCHOR = "a"
"""A token before those to decode, so that none of them is the first of a text."""

_TOKENWISE = ("ByteFallback", "Fuse", "Metaspace", "WordPiece")
"""Steps that decode a token without those after it, but for runs of byte tokens."""


class Segment(NamedTuple):
    """A part of a text.

    Attributes:
        text: The characters.
        special: Whether they are a special token, which is not shown.
    """

    text: str
    special: bool = False


def visible(segments: Sequence[Segment]) -> str:
    """Return the text of segments without special tokens."""
    return "".join(segment.text for segment in segments if not segment.special)


class TokenDecoder(Protocol):
    """The text of tokens that arrive one at a time."""

    def push(self, token: str) -> str:
        """Take a token and return the text that can no longer change."""

    def held(self) -> str:
        """Return the text that would follow if no more tokens came, incomplete characters aside."""

    def rest(self) -> str:
        """Return all the text that follows if no more tokens come."""


class SegmentStream:
    """A streaming decoder of tokens, some of which are special and have no text of their own.

    A special token is put where it arrived, between the texts of the tokens around it.

    Args:
        decoder: Decodes the tokens that are not special.
    """

    def __init__(self, decoder: TokenDecoder) -> None:
        self._decoder = decoder
        self._waiting: list[tuple[int, str]] = []

    def push(self, token: str, *, special: bool) -> list[Segment]:
        """Take a token and return the segments that can no longer change."""
        if not special:
            return self._segments(self._decoder.push(token))
        before = self._decoder.held()
        if not before:
            return [Segment(token, special=True)]
        self._waiting.append((len(before), token))
        return []

    def held(self) -> list[Segment]:
        """Return the segments that would follow if no more tokens came."""
        return self._placed(self._decoder.held())

    def rest(self) -> list[Segment]:
        """Return the segments that follow if no more tokens come."""
        return self._segments(self._decoder.rest())

    def _segments(self, text: str) -> list[Segment]:
        if not text:
            return []
        segments, self._waiting = self._placed(text), []
        return segments

    def _placed(self, text: str) -> list[Segment]:
        """Return a text cut where special tokens arrived, with these tokens."""
        segments, begin = [], 0
        for length, token in self._waiting:
            end = max(begin, length)  # later tokens may have shortened the text
            segments += [Segment(text[begin:end]), Segment(token, special=True)]
            begin = end
        segments.append(Segment(text[begin:]))
        return [segment for segment in segments if segment.text]


class Edit(NamedTuple):
    """A replacement in a whole text, such as that of the space before a full stop."""

    pattern: str
    content: str


def split_edits(description: Any) -> tuple[Any, tuple[Edit, ...]]:
    """Return the description of a decoder without the edits at its end, and these.

    Args:
        description: The library's JSON description of the decoder; None where there is none.
    """
    steps = list(_flat(description))
    kinds = [step.get("type") for step in steps]
    patterns = [_pattern(step) for step in steps]
    first = kinds.index("Fuse") if "Fuse" in kinds else len(steps)
    while first < len(steps) and not (all(patterns[first:]) and len(patterns[first] or "") > 1):
        first += 1
    edits = (Edit(str(_pattern(step)), str(step["content"])) for step in steps[first:])
    if first == len(steps):
        return description, ()
    return {"type": "Sequence", "decoders": steps[:first]}, tuple(edits)


def token_decoder(
    description: Any, join: Join, prompt: Sequence[str] = (), edits: Sequence[Edit] = ()
) -> TokenDecoder:
    """Return the streaming decoder of a tokenizer.

    Args:
        description: The library's JSON description of the decoder without edits; None where there
            is none.
        join: Decodes the tokens of a whole text, without edits.
        prompt: Tokens that come before, without special ones. Their text is not returned.
        edits: What `split_edits` returns.
    """
    if edits:
        inner = token_decoder(description, join, prompt)
        return _EditedDecoder(inner, edits, join(prompt) if prompt else "")
    steps = list(_flat(description))
    if [step.get("type") for step in steps] == ["ByteLevel"]:
        return _ByteLevelDecoder(prompt)
    if not all(map(_sees_single_tokens, steps)):
        return _TokenwiseDecoder(join, prompt, lambda _: False)
    has_bytes = any(step.get("type") == "ByteFallback" for step in steps)
    return _TokenwiseDecoder(join, prompt, lambda token: not (has_bytes and _is_byte(token)))


class _TokenwiseDecoder:
    """Decodes tokens with the library, each time those whose text is not final yet.

    Args:
        join: Decodes the tokens of a whole text.
        prompt: Tokens that come before.
        is_final: Returns whether no token after this one changes its text.
    """

    def __init__(self, join: Join, prompt: Sequence[str], is_final: Callable[[str], bool]) -> None:
        self._join, self._is_final = join, is_final
        self._anchor = len(join([_ANCHOR]))
        cut = len(prompt)
        while cut and not is_final(prompt[cut - 1]):
            cut -= 1
        # Until some text has appeared, a token may still lose a space at the beginning.
        self._has_begun = bool(cut) and _has_text(join, prompt[:cut])
        self._tokens = list(prompt if not self._has_begun else prompt[cut:])
        self._shown = self._text() if self._tokens else ""

    def push(self, token: str) -> str:
        self._tokens.append(token)
        if not self._is_final(token):
            return ""
        text = self.held()
        if self._has_begun or self._text():
            self._has_begun, self._tokens, self._shown = True, [], ""
        return text

    def held(self) -> str:
        text = self._text() if self._tokens else ""
        return text[_common(text, self._shown) :]

    def rest(self) -> str:
        text = self.held()
        self._shown = self._text() if self._tokens else ""
        return text

    def _text(self) -> str:
        if not self._has_begun:
            return self._join(self._tokens)
        return self._join([_ANCHOR, *self._tokens])[self._anchor :]


class _EditedDecoder:
    """Edits the text of another decoder up to where later text can no longer change it.

    What an edit changes begins with the first character of a pattern, and reaches no character that
    is in no pattern.

    Args:
        decoder: Decodes tokens without the edits.
        edits: The edits, in their order.
        prompt: The text before, not edited.
    """

    def __init__(self, decoder: TokenDecoder, edits: Sequence[Edit], prompt: str) -> None:
        self._decoder, self._edits = decoder, edits
        self._characters = frozenset("".join(edit.pattern for edit in edits))
        self._starts = frozenset(edit.pattern[0] for edit in edits)
        self._open = prompt[self._cut(prompt) :]
        self._shown = self._edited(self._open)

    def push(self, token: str) -> str:
        self._open += self._decoder.push(token)
        cut = self._cut(self._open)
        text = self._new(self._open[:cut])
        if cut:
            self._open, self._shown = self._open[cut:], ""
        return text

    def held(self) -> str:
        return self._new(self._open + self._decoder.held())

    def rest(self) -> str:
        text = self._new(self._open + self._decoder.rest())
        self._open = self._shown = ""
        return text

    def _new(self, text: str) -> str:
        """Return the edited text without what the prompt has shown of it."""
        edited = self._edited(text)
        return edited[_common(edited, self._shown) :]

    def _edited(self, text: str) -> str:
        for pattern, content in self._edits:
            text = text.replace(pattern, content)
        return text

    def _cut(self, text: str) -> int:
        """Return how many characters of a text are not changed by what follows it."""
        end = len(text)
        while end and text[end - 1] in self._characters:
            end -= 1
        later = range(end, len(text))
        return next((at for at in later if text[at] in self._starts), len(text))


class _ByteLevelDecoder:
    """Decodes tokens whose characters stand for bytes."""

    def __init__(self, prompt: Sequence[str]) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._utf8.decode(b"".join(map(_byte_level, prompt[-_LONGEST:]))[-_LONGEST:])
        # The text of the prompt ends with a replacement for an incomplete character.
        self._shown = REPLACEMENT if self._utf8.getstate()[0] else ""

    def push(self, token: str) -> str:
        return self._new(self._utf8.decode(_byte_level(token)))

    def held(self) -> str:
        return ""

    def rest(self) -> str:
        return self._new(self._utf8.decode(b"", final=True))

    def _new(self, text: str) -> str:
        if text:
            text, self._shown = text.removeprefix(self._shown), ""
        return text


REPLACEMENT = "\ufffd"
"""What stands for bytes that are not UTF-8."""


_LONGEST = 4
"""Bytes of the longest character in UTF-8."""


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of a byte-level token."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTES: Mapping[str, int] = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    """Return the bytes of a token; one with characters that stand for no byte is text."""
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:
        return token.encode("utf-8")


def bytes_of(token: str) -> bytes:
    """Return the bytes that a token stands for whose text is no whole character.

    Args:
        token: The token, as a vocabulary of bytes has it.
    """
    return bytes.fromhex(token[3:5]) if _is_byte(token) else _byte_level(token)


def _has_text(join: Join, tokens: Sequence[str]) -> bool:
    """Return whether tokens at the beginning of a text have any, looking at few of them."""
    ends = (*range(64, len(tokens), 64 * 64), len(tokens))
    return any(join(tokens[:end]) for end in ends)


def _common(text: str, other: str) -> int:
    """Return how many characters two texts have in common at the beginning."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(text), len(other)))


def _is_byte(token: str) -> bool:
    return len(token) == len("<0x00>") and token.startswith("<0x") and token.endswith(">")


def _sees_single_tokens(step: Mapping[str, Any]) -> bool:
    """Return whether a step decodes a token without looking at those after it."""
    kind = step.get("type")
    if kind == "Strip":
        return step.get("stop") == 0
    if kind == "Replace":
        # A longer pattern could span tokens, and other contents could be read as bytes.
        return len(_pattern(step) or "") == 1 and "<" not in str(step["content"])
    return kind in _TOKENWISE


def _pattern(step: Mapping[str, Any]) -> str | None:
    """Return the text that a step replaces; None if it does something else."""
    pattern = (step.get("pattern") or {}).get("String") if step.get("type") == "Replace" else None
    return pattern if isinstance(pattern, str) else None


def _flat(description: Any) -> list[Mapping[str, Any]]:
    """Return the steps of a decoder; sequences can be nested."""
    if not isinstance(description, Mapping):
        return []
    inner = description.get("decoders")
    if not isinstance(inner, list):
        return [description]
    return [step for each in inner for step in _flat(each)]
