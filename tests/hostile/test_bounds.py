"""Bounds on the cost of reading a file: one just within a bound is read, one beyond is refused.

The memory and the CPU time of each refusal are measured.
"""

from __future__ import annotations

import json
import struct
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdrr_converter.checkpoint.files import CHECKPOINT_JSON, parse_json_object, read_json_object
from rdrr_converter.gguf import file as gguf_file
from rdrr_converter.gguf import imatrix
from rdrr_converter.gguf.file import read_gguf
from rdrr_converter.gguf.imatrix import read_imatrix
from rdrr_converter.lora._config import ADAPTER, read_adapter_config
from rdrr_converter.sources import safetensors
from rdrr_converter.sources._directories import INDEX_BOUNDS
from rdrr_format import bounded_json, safetensors_file
from rdrr_format.bounded_json import JsonBounds, check_bounds, parse_json
from rdrr_format.errors import FormatError, ManifestError, SourceError
from rdrr_manifests.models.conversion_report import REPORT, parse_report
from rdrr_manifests.reading import MANIFEST, read_manifest
from rdrr_manifests.validation import validate
from support.costs import MIB, refused
from support.examples import examples
from support.manifests import valid_manifest, write_package
from support.safetensor_files import write_raw


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def with_values(count: int, inside: bytes = b"0") -> bytes:
    """Return the JSON text of a list that counts as `count` values, its elements included."""
    return b"[" + b",".join([inside] * (count - 1)) + b"]"


class TestJson:
    BOUNDS = JsonBounds(size=4 * MIB, values=MIB, depth=8, digits=20)

    @pytest.mark.parametrize(
        ("inside", "outside", "words"),
        [
            (nested(8), nested(9), "nested too deeply.*at most 8 levels, found 9"),
            (b"9" * 20, b"9" * 21, "too many digits.*found 21"),
            (b'"' + b"x" * (4 * MIB - 2) + b'"', b'"' + b"x" * (4 * MIB - 1) + b'"', "too long"),
            (with_values(MIB), with_values(MIB + 1), "too many values"),
            (b'{"a": [1, 2]}', b'{"a": [1, 2', "not JSON"),
            (b'["\\ud83d\\ude00"]', b'["\\ud83d"]', "half of a surrogate pair"),
            ('"ä"'.encode(), '"ä"'.encode("latin-1"), "not UTF-8"),
        ],
    )
    def test_each_bound_of_json_is_exact(self, inside, outside, words):
        assert parse_json(inside, self.BOUNDS) == json.loads(inside)
        refused(FormatError, words, 24 * MIB, lambda: parse_json(outside, self.BOUNDS))

    @pytest.mark.parametrize(
        "text", [r'"[[[[[[[[["', r'"\"[[[[[[[[["', r'"\\"', r'["\\\"[", "{{{{{{{{{"]']
    )
    def test_brackets_in_strings_are_not_counted(self, text):
        assert parse_json(text.encode(), self.BOUNDS) == json.loads(text)

    @pytest.mark.parametrize("text", [rb'["\\", [[[[[[[[[]]]]]]]]]]', rb'["", [[[[[[[[[]]]]]]]]]]'])
    def test_brackets_after_strings_are_counted(self, text):
        with pytest.raises(FormatError, match="nested"):
            parse_json(text, self.BOUNDS)

    @pytest.mark.parametrize(
        "unclosed", [b'"' * (4 * MIB - 1), b'"\\' * (2 * MIB), b"\\" * (4 * MIB)]
    )
    def test_text_that_is_all_quotes_is_refused_just_as_quickly(self, unclosed):
        refused(FormatError, "not JSON", 24 * MIB, lambda: parse_json(unclosed, self.BOUNDS))


def manifest_with(extra: bytes) -> bytes:
    return json.dumps(valid_manifest()).encode()[:-1] + b', "extra": ' + extra + b"}"


class TestManifest:
    @pytest.mark.parametrize(
        ("extra", "words"),
        [
            (nested(MANIFEST.depth), "nested too deeply"),
            (nested(900), "nested too deeply"),
            (with_values(MANIFEST.values, b"[]"), "too many values"),
            (b'"' + b" " * MANIFEST.size + b'"', "too long"),
            (b"1" * 21, "too many digits"),
        ],
    )
    def test_a_manifest_beyond_a_bound_is_refused(self, extra, words):
        text = manifest_with(extra)
        refused(ManifestError, words, 4 * len(text) + MIB, lambda: read_manifest(text, "m"))

    def test_an_extra_field_of_the_maximum_depth_is_examined(self, tmp_path, rng):
        write_package(tmp_path, rng)
        path = tmp_path / "manifest.json"
        manifest = path.read_bytes().rstrip()[:-1]
        for depth, ok in ((MANIFEST.depth - 1, True), (MANIFEST.depth, False), (900, False)):
            path.write_bytes(manifest + b', "extra": ' + nested(depth) + b"}")
            assert validate(tmp_path, deep=True).ok() == ok

    def test_a_file_too_large_for_a_manifest_is_not_read(self, tmp_path):
        path = tmp_path / "manifest.json"
        with path.open("wb") as file:
            file.truncate(1 << 40)
        report = validate(tmp_path)
        assert [fault.rule for fault in report.faults] == ["not-rdrr"]


def test_a_report_beyond_a_bound_is_refused():
    inside, outside = nested(REPORT.depth), nested(REPORT.depth + 1)
    with pytest.raises(FormatError, match="not a conversion report"):
        parse_report(inside, "r")
    refused(FormatError, "r: .*nested too deeply", MIB, lambda: parse_report(outside, "r"))


class TestSafetensors:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "model.safetensors"

    @pytest.mark.parametrize("size", [MIB, pytest.param(None, marks=pytest.mark.thorough)])
    def test_the_size_of_the_header_is_bounded(self, path, size, monkeypatch):
        if size is not None:  # 100 MB take a second
            bounds = replace(safetensors_file.HEADER, size=size)
            monkeypatch.setattr(safetensors_file, "HEADER", bounds)
        with path.open("wb") as file:
            file.write((safetensors_file.HEADER.size + 1).to_bytes(8, "little"))
            file.truncate(1 << 40)
        refused(SourceError, "truncated", MIB, lambda: safetensors.read_file(path))
        blank = b"{}" + b" " * (safetensors_file.HEADER.size - 2)
        write_raw(path, blank)
        assert safetensors.read_file(path) == {}

    def test_the_number_of_header_values_is_bounded(self, path):
        most = safetensors_file.HEADER.values
        entry = b'"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
        count = most // 7 + 1
        write_raw(path, b"{" + b",".join(entry % n for n in range(count)) + b"}")
        size = path.stat().st_size
        refused(SourceError, "too many values", 3 * size, lambda: safetensors.read_file(path))
        write_raw(path, b"{" + b",".join(entry % n for n in range(1000)) + b"}")
        assert len(safetensors.read_file(path)) == 1000

    @pytest.mark.parametrize("digits", [21, 4000, 5000])
    def test_the_number_of_digits_is_bounded(self, path, digits):
        entry = {"dtype": "F32", "shape": [1, 0], "data_offsets": [0, 0]}
        write_raw(path, json.dumps({"w": entry}).encode())
        assert list(safetensors.read_file(path)) == ["w"]
        write_raw(path, json.dumps({"w": entry}).replace("[1,", f"[{'9' * digits},").encode())
        refused(SourceError, "too many digits", MIB, lambda: safetensors.read_file(path))


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


class TestGguf:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "model.gguf"

    @staticmethod
    def write(path: Path, tensors: int, entries: int, rest: bytes, size: int = 0) -> None:
        head = struct.pack("<4sIQQ", b"GGUF", 3, tensors, entries)
        path.write_bytes(head + rest)
        if size:
            with path.open("r+b") as file:
                file.truncate(size)

    def test_the_numbers_of_tensors_and_entries_are_bounded(self, path):
        for tensors, entries, words in (
            (gguf_file.MAX_TENSORS + 1, 0, "too many tensors"),
            (0, gguf_file.MAX_ENTRIES + 1, "too many entries"),
        ):
            self.write(path, tensors, entries, b"", size=1 << 32)
            refused(SourceError, words, MIB, lambda: read_gguf(path))
        rest = b"".join(
            string(b"k%d" % n) + struct.pack("<IB", 0, 1) for n in range(gguf_file.MAX_ENTRIES)
        )
        self.write(path, 0, gguf_file.MAX_ENTRIES, rest)
        assert len(read_gguf(path).metadata) == gguf_file.MAX_ENTRIES

    def test_the_number_of_listed_values_is_bounded(self, path):
        def listed(count: int) -> bytes:
            half = string(b"a") + struct.pack("<IIQ", 9, 0, 8) + bytes(8)
            return half + string(b"b") + struct.pack("<IIQ", 9, 0, count - 8)

        most = gguf_file.MAX_ARRAY_ELEMENTS
        self.write(path, 0, 2, listed(most + 1), size=1 << 30)
        refused(SourceError, "too many array elements", MIB, lambda: read_gguf(path))
        self.write(path, 0, 2, listed(most) + bytes(most - 8))
        assert len(read_gguf(path).metadata["b"]) == most - 8

    def test_the_number_of_bytes_before_the_data_is_bounded(self, path):
        long = gguf_file.MAX_HEADER - 24 - 9 - 4 - 8
        for extra, ok in ((0, True), (1, False)):
            size = long + extra
            rest = string(b"k") + struct.pack("<IQ", 8, size)
            self.write(path, 0, 1, rest, size=24 + len(rest) + size)
            if ok:
                assert len(read_gguf(path).metadata["k"]) == size
            else:
                refused(SourceError, "bytes before the data", MIB, lambda: read_gguf(path))


class TestImatrix:
    @staticmethod
    def legacy(entries: int) -> bytes:
        rows = (struct.pack("<i5siii", 5, b"%05x" % n, 1, 1, 0) for n in range(entries))
        return struct.pack("<i", entries) + b"".join(rows)

    def test_the_number_of_entries_is_bounded(self, tmp_path, monkeypatch):
        monkeypatch.setattr(imatrix, "MAX_ENTRIES", 1000)
        path = tmp_path / "m.dat"
        path.write_bytes(self.legacy(imatrix.MAX_ENTRIES))
        assert len(read_imatrix(path)) == imatrix.MAX_ENTRIES
        path.write_bytes(self.legacy(imatrix.MAX_ENTRIES + 1))
        refused(SourceError, "too many entries", MIB, lambda: read_imatrix(path))

    def test_a_duplicate_entry_is_refused(self, tmp_path):
        path = tmp_path / "m.dat"
        whole = self.legacy(2)
        path.write_bytes(whole)
        assert len(read_imatrix(path)) == 2
        path.write_bytes(whole.replace(b"00001", b"00000"))
        refused(SourceError, "occurs twice", MIB, lambda: read_imatrix(path))

    def test_nan_values_are_refused_without_a_warning(self, tmp_path):
        path = tmp_path / "m.dat"
        head = struct.pack("<ii1sii", 1, 1, b"w", 3, 1)
        path.write_bytes(head + struct.pack("<f", 6.0))
        assert read_imatrix(path)["w"].tolist() == [2.0]
        path.write_bytes(head + struct.pack("<I", 0x7F80_0001))  # a signalling NaN
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(SourceError, match="not a mean of squares"):
                read_imatrix(path)

    @pytest.mark.parametrize("magic", [b"GGUF", b"\x01\0\0\0"])
    def test_the_size_of_the_file_is_bounded(self, tmp_path, magic):
        path = tmp_path / "m.dat"
        with path.open("wb") as file:
            file.write(magic)
            file.truncate(imatrix.MAX_BYTES + 1)
        refused(SourceError, "too large", MIB, lambda: read_imatrix(path))
        with path.open("r+b") as file:
            file.truncate(64)
        if magic == b"GGUF":
            with pytest.raises(SourceError, match="unknown version of GGUF"):
                read_imatrix(path)
        else:
            assert list(read_imatrix(path)) == [""]


@pytest.mark.parametrize(
    ("bounds", "read"),
    [
        (CHECKPOINT_JSON, read_json_object),
        (INDEX_BOUNDS, lambda path: read_json_object(path, INDEX_BOUNDS)),
        (ADAPTER, lambda path: read_adapter_config(path.parent)),
    ],
)
def test_a_json_file_of_a_checkpoint_has_the_bounds_of_its_kind(tmp_path, bounds, read):
    path = tmp_path / "adapter_config.json"
    good = b'{"peft_type": "LORA", "x": %s}'
    path.write_bytes(good % nested(bounds.depth - 1))
    read(path)
    path.write_bytes(good % nested(bounds.depth))
    refused(SourceError, "nested too deeply", MIB, lambda: read(path))
    values = good % with_values(bounds.values)
    path.write_bytes(values)
    refused(SourceError, "too many values", 2 * len(values) + 4 * MIB, lambda: read(path))
    with path.open("wb") as file:
        file.truncate(1 << 40)
    refused(SourceError, "too large", MIB, lambda: read(path))


@pytest.mark.thorough
def test_a_tokenizer_as_large_as_published_ones_is_read():
    vocab = {f"token{number}": number for number in range(300_000)}
    merges = [[f"a{number}", "b"] for number in range(600_000)]
    text = json.dumps({"model": {"vocab": vocab, "merges": merges}}).encode()
    assert len(parse_json_object(text, "t")["model"]["vocab"]) == 300_000


@examples(200)
@given(
    st.recursive(
        st.text(st.sampled_from('a"\\[]{},:'), max_size=6) | st.integers(0, 9),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text(st.sampled_from('"\\[,'), max_size=3), inner, max_size=3)
        ),
        max_leaves=30,
    ),
    st.integers(1, 9),
)
def test_values_and_levels_are_counted_whatever_the_strings_hold(value, piece):
    def count(node: Any) -> tuple[int, int]:
        """Return the number of values, as the bound counts them, and the nesting depth."""
        inside = list(node.values()) if isinstance(node, dict) else node
        if not isinstance(inside, list):
            return 0, 0
        counts = [count(part) for part in inside]
        below = max((depth for _, depth in counts), default=0)
        return sum(n for n, _ in counts) + max(1, len(inside)), below + 1

    values, depth = count(value)
    text = json.dumps(value).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_json, "_PIECE", piece)
        check_bounds(text, JsonBounds(len(text), values + 1, depth))
        with pytest.raises(FormatError, match="too many values"):
            check_bounds(text, JsonBounds(len(text), values, depth))
        if depth:
            with pytest.raises(FormatError, match="nested"):
                check_bounds(text, JsonBounds(len(text), values + 1, depth - 1))


def test_published_gguf_headers_are_well_within_the_bounds():
    assert gguf.GGUF_VERSION in gguf_file.VERSIONS
    assert gguf_file.MAX_ARRAY_ELEMENTS > 4 * 262_144 * 2
