"""The prompts of an embedding model: the default one is the name of one of them, or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.reading.sentence_modules import PROMPTS, read_modules
from rdrr_format.errors import SourceError

KINDS = ("Transformer", "Pooling", "Normalize")
FILES = {
    "modules.json": [
        {"type": f"sentence_transformers.models.{kind}", "path": kind.lower()} for kind in KINDS
    ],
    "pooling/config.json": {"pooling_mode": "mean"},
}
TEXTS = {"query": "Find: ", "document": ""}


def block(**prompts: object):
    """Return the block of the manifest for a file of prompts with this content."""
    files = {
        name: json.dumps(value).encode() for name, value in (FILES | {PROMPTS: prompts}).items()
    }
    modules = read_modules(Source(Path("model"), "safetensors", {}, {}, generated=files), 64)
    return modules.block


@pytest.mark.parametrize("name", [*TEXTS, None])
def test_a_default_prompt_is_written_by_its_name(name):
    written = block(prompts=TEXTS, default_prompt_name=name)
    assert (written.prompts, written.default_prompt_name) == (TEXTS, name)


@pytest.mark.parametrize("prompts", [None, {}])
def test_a_model_may_have_no_prompts(prompts):
    assert block(prompts=prompts).prompts == {}
    assert block().default_prompt_name is None


@pytest.mark.parametrize("name", ["answer", "", 0, 1, True, ["query"], {"query": 1}, 1.5])
def test_a_default_prompt_that_is_no_name_of_a_prompt_is_refused(name):
    with pytest.raises(
        SourceError, match=rf"{PROMPTS}: .*expected query, document, found"
    ) as caught:
        block(prompts=TEXTS, default_prompt_name=name)
    assert caught.value.found == str(name)


@pytest.mark.parametrize("prompts", [["query"], "query", 1, {"query": 1}, {"query": None}])
def test_prompts_that_are_no_texts_are_refused(prompts):
    with pytest.raises(SourceError, match=f"{PROMPTS}: the prompts are no texts"):
        block(prompts=prompts)
    with pytest.raises(SourceError, match="the default prompt is unknown"):
        block(default_prompt_name="query")
