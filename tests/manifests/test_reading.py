"""Files that are not RDRR manifests are refused with a message that says what they are."""

from __future__ import annotations

import json
import struct

import pytest
from rdrr_format.errors import ManifestError
from rdrr_manifests.reading import MANIFEST, read_manifest
from support.manifests import valid_manifest

GOOD = json.dumps(valid_manifest()).encode()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "an empty file"),
        (b" \n", "an empty file"),
        (b"GGUF\x03\x00\x00\x00", "a GGUF file"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"\x1f\x8brest", "gzip"),
        (struct.pack("<Q", 64) + b'{"__metadata__": {}}', "a safetensors file"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"hello", "not JSON"),
        (GOOD[:-1], "not JSON"),
        (b"[]", "another kind (list)"),
        (b'"manifest"', "another kind (str)"),
        (b"{}", "an empty JSON object"),
        (b'{"name": 1}', "a JSON object with keys name"),
        (b"[" * 1000 + b"\0" * 9, "a binary file"),
        (b'{"weight_map": {}}', "index of safetensors"),
        (b'{"model_type": "llama"}', "config.json"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' * 100_000, "nested too deeply"),
        (b'{"modelId": "x", "totalSize": NaN}', "NaN"),
        (b'{"modelId": "x", "totalSize": Infinity}', "Infinity"),
        (b'{"modelId": "x", "totalSize": ' + b"9" * (MANIFEST.digits + 1) + b"}", "digits"),
    ],
)
def test_the_error_says_on_one_line_what_the_file_is(raw: bytes, words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read_manifest(raw, "here/manifest.json")
    text = str(caught.value)
    assert text.startswith("here/manifest.json: not an RDRR manifest")
    assert words in text
    assert text.count("found ") == text.count("expected ") == 1
    assert "\n" not in text
    assert [fault.rule for fault in caught.value.faults] == ["not-rdrr"]


def test_a_manifest_is_read_with_and_without_a_byte_order_mark() -> None:
    for prefix in (b"", b"\xef\xbb\xbf"):
        read = read_manifest(prefix + GOOD, "manifest.json")
        assert read.data == valid_manifest()
        assert read.faults == ()


def test_a_key_given_twice_is_a_fault() -> None:
    text = GOOD.replace(b'"version": 1', b'"version": 1, "version": 1', 1)
    assert [fault.rule for fault in read_manifest(text, "m").faults] == ["duplicate-key"]
