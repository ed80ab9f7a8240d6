"""docs/SECURITY.md: each test that it names exists, and each bound that it states is the code's."""

from __future__ import annotations

import re

import pytest
from fuzz import worker
from rdrr_converter.checkpoint.files import CHECKPOINT_JSON
from rdrr_converter.gguf import file as gguf
from rdrr_converter.gguf import imatrix
from rdrr_converter.lora import _config, _patterns, _regex
from rdrr_converter.sources import _inert_pickle, torch_pickle
from rdrr_converter.sources._directories import INDEX_BOUNDS
from rdrr_format import (
    bounded_tokenizer,
    decompression,
    errors,
    file_names,
    options,
    remote_stores,
    safetensors_file,
    seek_table,
    shard_reader,
    tokenizer_bounds,
    verified_files,
)
from rdrr_manifests.models.conversion_report import REPORT
from rdrr_manifests.reading import MANIFEST
from rdrr_manifests.rules import files
from rdrr_runtime.sampling.params import MAX_SEED
from rdrr_runtime.text import grammar, session_file
from rdrr_runtime.text import template_budget as budget
from rdrr_runtime.text.template_sandbox import MAX_SOURCE
from support.commands import ROOT

PAGE = ROOT / "docs" / "SECURITY.md"
TEXT = " ".join(PAGE.read_text("utf-8").split())

JSON = {
    "manifest, and its table of tensors": MANIFEST,
    "conversion report": REPORT,
    "header of a safetensors file": safetensors_file.HEADER,
    "index of shards": INDEX_BOUNDS,
    "configuration, tokenizer and other JSON of a checkpoint": CHECKPOINT_JSON,
    "configuration of a LoRA adapter": _config.ADAPTER,
}

BOUNDS: list[tuple[str, float]] = [
    ("A GGUF file has at most {} tensors", gguf.MAX_TENSORS),
    ("tensors, {} entries of metadata", gguf.MAX_ENTRIES),
    ("{} values in all of their lists", gguf.MAX_ARRAY_ELEMENTS),
    ("and {} MiB before its data", gguf.MAX_HEADER / 2**20),
    ("An importance matrix has at most {} GiB", imatrix.MAX_BYTES / 2**30),
    ("in the older form {} entries of different names", imatrix.MAX_ENTRIES),
    ("and {} bytes for each byte of their files", decompression.MAX_EXPANSION),
    ("a frame at most {} MiB", seek_table.MAX_FRAME / 2**20),
    ("a shard at most {} frames", seek_table.MAX_FRAMES),
    ("`validate --deep` decodes {} MiB of stored weights at a time", files.CHUNK_BYTES / 2**20),
    ("in parts of at most {} MiB", shard_reader._CHUNK_BYTES / 2**20),
    ("The pickle has at most {} MiB", _inert_pickle.MAX_BYTES / 2**20),
    ("MiB and {} operations", _inert_pickle.MAX_OPERATIONS),
    ("have together at most {} bytes for each byte of the file", torch_pickle.MAX_TIMES),
    ("its sampling parameters have at most {} MiB", session_file._SAMPLING.size / 2**20),
    ("MiB and {} levels", session_file._SAMPLING.depth),
    ("A table has at most {} of them", _patterns.MAX_PATTERNS),
    ("a pattern at most {} characters", _regex.MAX_PATTERN),
    ("characters, {} nested groups", _regex.MAX_DEPTH),
    ("nested groups and {} instructions", _regex.MAX_INSTRUCTIONS),
    ("matching takes at most {} steps for a table", _patterns.MAX_STEPS),
    ("a module's name has at most {} characters", _patterns.MAX_NAME),
    ("manifests and indices have at most {} bytes", file_names._MAX_BYTES),
    ("names of tensors at most {} characters", safetensors_file.MAX_NAME),
    ("characters, in a GGUF file {}.", gguf.MAX_NAME),
    ("at most {} MiB of one that states no length", remote_stores._MAX_UNKNOWN_LENGTH / 2**20),
    ("A template has at most {} characters", MAX_SOURCE),
    ("Rendering takes at most {} steps", budget.MAX_STEPS),
    ("for every {} characters that it reads", budget.CHARACTERS_PER_STEP),
    ("for every {} characters that a search may compare", budget.COMPARISONS_PER_STEP),
    ("for every {} nodes of a loop's body", budget.NODES_PER_STEP),
    ("A value has at most {} characters", budget.MAX_TEXT),
    ("and {} levels of nesting", budget.MAX_DEPTH),
    ("have at most {} characters together", budget.MAX_WRITTEN),
    ("integers have at most {} bits", budget.MAX_BITS),
    ("recursive loops are nested at most {} deep", budget.MAX_NESTED_CALLS),
    ("Messages have at most {} characters as JSON", budget.MAX_TEXT),
    ("decoder have at most {} steps", tokenizer_bounds.MAX_STEPS),
    ("multiply the bytes of a text by at most {}", tokenizer_bounds.MAX_GROWTH),
    ("the post-processor adds at most {} ids", tokenizer_bounds.MAX_ADDED),
    ("encoded or decoded has at most {} MiB", tokenizer_bounds.MAX_TEXT / 2**20),
    ("and {} MiB after it has grown", tokenizer_bounds.MAX_GROWN / 2**20),
    ("a token has at most {} characters", bounded_tokenizer.MAX_TOKEN),
    ("Encoding may take {} seconds", bounded_tokenizer.SECONDS),
    ("one more for every {} bytes", bounded_tokenizer.BYTES_PER_SECOND),
    ("A JSON schema or a regular expression has at most {} characters", grammar.MAX_GRAMMAR),
    ("At most {} files are remembered", verified_files.MAX_FILES),
    ("within {} seconds of processor time", worker.CPU_SECONDS),
    ("processor time and {} GiB", worker.MEMORY / 2**30),
]


@pytest.mark.parametrize(("sentence", "bound"), BOUNDS, ids=lambda value: str(value)[:40])
def test_a_bound_of_the_page_is_that_of_the_code(sentence, bound):
    assert sentence.format(f"{int(bound):,}") in TEXT


@pytest.mark.parametrize("kind", JSON)
def test_the_bounds_of_json_are_those_of_the_code(kind):
    bounds = JSON[kind]
    sizes = f"{bounds.size >> 20} MiB", f"{bounds.size:,}"
    rest = f"{bounds.values:,} | {bounds.depth} | {bounds.digits} |"
    assert any(f"| {kind} | {size} | {rest}" in TEXT for size in sizes)


def test_numbers_that_the_page_writes_as_powers_are_those_of_the_code():
    assert options.MAX_COUNT == 2**31 - 1
    assert MAX_SEED == 2**64 - 1
    assert errors.MAX_LINE < 2000
    for text in ("at most 2^31 - 1", "seeds at most 2^64 - 1", "less than 2,000 characters"):
        assert text in TEXT
    assert safetensors_file.is_shape([2**60 - 1])
    assert not safetensors_file.is_shape([2**60])
    assert not safetensors_file.is_shape([2**60, 0])


def test_each_test_that_the_page_names_exists():
    named = re.findall(r"`(tests/[\w/.]+)`", TEXT)
    assert len(named) > 25
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_only_one_module_imports_the_library_of_tokenizers():
    pattern = re.compile(r"^\s*(?:from|import) tokenizers\b", re.MULTILINE)
    modules = [
        str(path.relative_to(ROOT))
        for component in ("format", "device", "manifests", "converter", "runtime", "api")
        for path in (ROOT / component).rglob("*.py")
        if pattern.search(path.read_text("utf-8"))
    ]
    assert modules == ["format/rdrr_format/bounded_tokenizer.py"]
