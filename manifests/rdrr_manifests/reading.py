"""Parse the bytes of a manifest as a JSON object, or report what the file is instead.

This module only decides whether a file is an RDRR manifest at all; generations and rules come
after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rdrr_format.bounded_json import JsonBounds, parse_json
from rdrr_format.errors import FormatError, ManifestError

from rdrr_manifests.faults import Fault, shown

MANIFEST = JsonBounds(size=64 << 20, values=1 << 21, depth=64, digits=20)
"""Bounds on parsing a manifest.

Published manifests have at most a few megabytes, and one with 50,000 experts has half as many
values. Sizes have at most 16 digits, as JSON's safe integers do.
"""

_MAGIC: Mapping[bytes, str] = {
    b"GGUF": "a GGUF file",
    b"PK\x03\x04": "a zip archive (a torch checkpoint?)",
    b"\x80\x02": "a pickle",
    b"\x1f\x8b": "a gzip file",
}
_BEGINNING, _UTF_16 = 1024, (b"\xff\xfe", b"\xfe\xff")
"""Bytes in which a zero tells a binary file from text, and how text in UTF-16 begins."""
_OTHER_JSON: Mapping[str, str] = {
    "weight_map": "an index of safetensors shards",
    "model_type": "a Hugging Face config.json",
    "added_tokens": "a tokenizer.json",
    "chat_template": "a tokenizer_config.json",
}
_CHECKPOINT_HINT = "convert the checkpoint first: rdrr convert SRC DST"
_OWN_KEYS = ("modelId", "shards", "tensors", "tensorsFile", "totalSize")


@dataclass(frozen=True)
class RawManifest:
    """A JSON object that has at least some of a manifest's keys.

    Attributes:
        data: The object as it was written.
        faults: One fault for each key that is given twice; JSON parsers silently keep the last.
    """

    data: dict[str, Any]
    faults: tuple[Fault, ...]


def read_manifest(raw: bytes, where: object) -> RawManifest:
    """Parse a manifest's bytes.

    Raises:
        ManifestError: It is not an RDRR manifest; the message says what the file looks like, and
            `faults` contains the same as a fault.
    """
    data, repeated = read_object(raw, where)
    if sum(key in data for key in _OWN_KEYS) < 2:
        kinds = [kind for key, kind in _OTHER_JSON.items() if key in data]
        other = (
            f"a JSON object with keys {shown(', '.join(data))}" if data else "an empty JSON object"
        )
        actual = kinds[0] if kinds else other
        raise not_rdrr(where, actual, _CHECKPOINT_HINT if kinds else None)
    return RawManifest(data, repeated)


def read_object(raw: bytes, where: object) -> tuple[dict[str, Any], tuple[Fault, ...]]:
    """Parse the bytes of one JSON object, and return it with a fault for each key given twice.

    Raises:
        ManifestError: The bytes are not a JSON object.
    """
    if not raw.strip():
        raise not_rdrr(where, "an empty file")
    for magic, kind in _MAGIC.items():
        if raw.startswith(magic):
            raise not_rdrr(where, kind, _CHECKPOINT_HINT)
    if raw[8:9] == b"{" and raw[0:1] != b"{":
        raise not_rdrr(where, "a safetensors file", _CHECKPOINT_HINT)
    if b"\0" in raw[:_BEGINNING] and not raw.startswith(_UTF_16):
        raise not_rdrr(where, "a binary file, perhaps a shard")
    repeated: list[str] = []
    try:
        data = parse_json(raw, MANIFEST, pairs=_collector(repeated), constants=False)
    except FormatError as error:
        actual = f": {shown(error.found)}" if error.found else ""
        expected = f" instead of {error.expected}" if error.expected else ""
        raise not_rdrr(where, f"{error.message}{actual}{expected}") from error
    if not isinstance(data, dict):
        raise not_rdrr(where, f"JSON of another kind ({type(data).__name__})")
    faults = tuple(
        Fault("duplicate-key", "error", shown(key), "the key is given twice in one object")
        for key in repeated
    )
    return data, faults


def not_rdrr(where: object, actual: str, hint: str | None = None) -> ManifestError:
    """Return the error for a file that is not an RDRR manifest."""
    message, expected = "not an RDRR manifest", "a manifest.json"
    advice = f"{message}; {hint}" if hint else message
    fault = Fault("not-rdrr", "error", "", advice, expected, actual)
    return ManifestError(
        message, faults=(fault,), where=where, expected=expected, found=actual, hint=hint
    )


def _collector(repeated: list[str]) -> Any:
    """Return a hook for the JSON parser that makes objects and records keys given twice."""

    def collect(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) < len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    repeated.append(key)
                seen.add(key)
        return data

    return collect
