"""Regression tests of faults that `make fuzz` found, each next to a nearly identical sound file."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fuzz import gguf_files, text_files, weight_files
from rdrr._report_html import render
from rdrr._report_view import view
from rdrr_converter.sources import open_source
from rdrr_format.errors import SourceError
from rdrr_manifests.models.conversion_report import parse_report


def with_shape(name: str, dimensions: tuple[int, ...]) -> bytes:
    file = weight_files.GGUF_FILES[0]
    tensors = [
        replace(tensor, dimensions=dimensions) if tensor.name == name.encode() else tensor
        for tensor in file.tensors
    ]
    return gguf_files.encode(replace(file, tensors=tuple(tensors)))


@pytest.mark.parametrize(
    ("name", "sound", "dimensions"),
    [
        ("token_embd.weight", (32, 8), ()),
        ("token_embd.weight", (32, 8), (32,)),
        ("token_embd.weight", (32, 8), (32, 2, 2)),
        ("rope_freqs.weight", (8,), (0,)),
        ("rope_freqs.weight", (8,), (8, 0)),
        ("rope_freqs.weight", (8,), (4, 2)),
    ],
)
def test_a_gguf_tensor_of_the_wrong_rank_is_refused(tmp_path, name, sound, dimensions):
    path = tmp_path / "model.gguf"
    path.write_bytes(with_shape(name, sound))
    assert open_source(path).tensors
    path.write_bytes(with_shape(name, dimensions))
    with pytest.raises(SourceError, match=rf"{name}: .*(impossible shape|row length is not)"):
        open_source(path)


def with_numbers(**numbers: int | None) -> bytes:
    file = weight_files.GGUF_FILES[0]
    values = {f"llama.{key.replace('__', '.')}".encode(): value for key, value in numbers.items()}
    entries = [replace(entry, value=values.get(entry.key, entry.value)) for entry in file.entries]
    kept = [entry for entry in entries if entry.value is not None]
    return gguf_files.encode(replace(file, entries=tuple(kept)))


@pytest.mark.parametrize("key_length", [1, 3, None])
def test_a_gguf_with_an_odd_head_dimension_is_refused(tmp_path, key_length):
    path = tmp_path / "model.gguf"
    path.write_bytes(with_numbers(attention__key_length=16))
    assert open_source(path).tensors
    heads = 64 if key_length is None else 2
    path.write_bytes(with_numbers(attention__key_length=key_length, attention__head_count=heads))
    with pytest.raises(SourceError, match="impossible head dimension"):
        open_source(path)


@pytest.mark.parametrize("options", [{}, {"other": 1}, {"quantize": None}, {"quantize": "Q8_0"}])
def test_the_page_of_a_report_renders_whatever_options_it_records(options):
    report = {**text_files.REPORT, "options": options}
    page = render(view(parse_report(json.dumps(report).encode(), "report")))
    assert ("from safetensors, Q8_0" in page) == (options.get("quantize") == "Q8_0")
