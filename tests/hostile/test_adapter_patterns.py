"""Patterns in a LoRA adapter's configuration match as Python's `re` does, in bounded time."""

from __future__ import annotations

import json
import re
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from rdrr_converter.lora import _patterns
from rdrr_converter.lora._config import read_adapter_config
from rdrr_converter.lora._patterns import PatternTable
from rdrr_converter.lora._regex import MAX_DEPTH, MAX_INSTRUCTIONS, MAX_PATTERN, compile_regex
from rdrr_format.errors import FormatError, SourceError
from support.examples import examples

SECONDS = 5.0
"""Limit of CPU time; with backtracking these patterns would take years."""
MODULE = "model.layers.11.self_attn.q_proj"


def as_peft(pattern: str, module: str) -> bool:
    """Return whether PEFT would apply a pattern to a module."""
    return re.match(rf"(.*\.)?({pattern})$", module) is not None


def ours(pattern: str, module: str) -> bool:
    return PatternTable({pattern: True}).find(module) is True


@pytest.mark.parametrize(
    "pattern",
    [
        "q_proj",
        "model.layers.11.self_attn.q_proj",
        "layers.1[0-9]?.*proj",
        r"model\.layers\.(\d+)\.self_attn\.(q|k|v)_proj",
        "^model.*",
        "^layers.*",
        "(?:self_attn|mlp).*_proj$",
        "(?P<part>q)_proj",
        "layers.{1,4}self_attn.q_proj",
        "layers.11.{3,}",
        "self.attn.q.proj",
        "....._proj",
        "(a*)*q_proj",
        "q_proj|",
        "",
        "[^q]_proj",
        "[]q]_proj",
        "[q-]_proj",
        r"[\w-]+",
        r"\w{6}",
        r"q\b_proj",
        r"\bq_proj\Z",
        "{q_proj}",
        "q_proj{",
        "q{1}_proj",
        "Q_PROJ",
    ],
)
def test_a_pattern_matches_as_in_python(pattern):
    for module in (MODULE, "q_proj", "x_proj", "lm_head", "model.embed_tokens", ""):
        assert ours(pattern, module) == as_peft(pattern, module), module


ATOMS = st.sampled_from(
    ["a", "b", ".", "_", r"\.", r"\w", r"\d", r"\W", "[ab]", "[^a]", "[a-b_]", "1", "^", "$", r"\b"]
)
COUNTS = st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{,2}", "{0,2}", "*?", "+?", "??", "{2}?"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map("".join),
        st.tuples(inner, COUNTS).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, COUNTS).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)


@examples(600)
@given(PATTERNS, st.text("ab._1", max_size=10))
@example("(a|b)*_1", "a.ab_1")
def test_random_patterns_match_as_in_python(pattern, module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = as_peft(pattern, module)
        except re.error:
            assume(False)
    try:
        assert ours(pattern, module) == expected
    except FormatError as error:  # Python repeats some assertions, which rdrr does not support
        assert "repetition" in str(error)  # noqa: PT017


@examples(300)
@given(
    st.lists(st.text("ab._", min_size=1, max_size=5), unique=True, max_size=8),
    st.text("ab._", max_size=8),
)
def test_the_first_matching_name_of_the_table_wins(names, module):
    expected = next((name for name in names if as_peft(name, module)), None)
    assert PatternTable({name: name for name in names}).find(module) == expected


def config(folder: Path, **values: object) -> Path:
    text = json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 16, **values})
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "pattern",
    [
        "([a-z_.0-9]+)+!",
        "(a|a)*b",
        "(.*)*x",
        "((a*)*)*!",
        "(.*.*.*.*.*.*.*)!",
        "(\\w+\\s?)*!",
        "(" * MAX_DEPTH + "a" + "*)" * MAX_DEPTH + "!",
    ],
)
def test_a_pattern_with_catastrophic_backtracking_is_matched_quickly(tmp_path, pattern):
    module = MODULE * 20
    began = time.process_time()
    read = read_adapter_config(config(tmp_path, rank_pattern={pattern: 4, "q_proj": 2}))
    assert read.rank_of(module) == 2
    assert read.rank_of("lm_head") == 8
    assert read.rank_of("a" * 100 + "!") in (4, 8)
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize(
    ("inside", "outside", "words"),
    [
        ("x" * MAX_PATTERN, "(" + "x" * MAX_PATTERN, "too long"),
        ("(" * MAX_DEPTH + ")" * MAX_DEPTH, "(" * 2000 + ")" * 2000, "nests groups more than"),
        ("(" * MAX_DEPTH + ")" * MAX_DEPTH, "(" * (MAX_DEPTH + 1), "nests groups more than"),
        (f"(a{{{MAX_INSTRUCTIONS // 2 - 1}}})", f"a{{{MAX_INSTRUCTIONS + 1}}}", "too large"),
        ("a{2}", "((a{99999}){99999}){99999}", "too large"),
        ("a{99999}{0}"[:4] + "}", "a{999999}", "count is too large"),
        ("(?:a)", "(?=a)", "not supported"),
        ("(?:a)", "(?<=a)", "not supported"),
        ("(?:a)", "(?>a)", "not supported"),
        ("(?:a)", "(?i)a", "not supported"),
        ("(a)", r"(a)\1", "not supported"),
        ("a*?", "a*+", "repetition"),
        ("a{2}", "a{2}{3}", "repetition"),
        ("a*", "*a", "nothing to repeat"),
        ("a{1,2}", "a{2,1}", "exceeds its maximum"),
        ("(a)", "(a", "not closed"),
        ("(a)", "a)", "unmatched"),
        ("[a]", "[a", "not closed"),
        ("[a-b]", "[b-a]", "range"),
        (r"\.", "a\\", "escape"),
    ],
)
def test_an_invalid_or_oversized_pattern_is_refused(tmp_path, inside, outside, words):
    read_adapter_config(config(tmp_path, rank_pattern={inside: 4}))
    for key in ("rank_pattern", "alpha_pattern"):
        with pytest.raises(SourceError, match=words) as caught:
            read_adapter_config(config(tmp_path, **{key: {outside: 4}}))
        assert key in str(caught.value)
        assert len(str(caught.value)) < 2000


def test_a_pattern_table_is_bounded_in_patterns_and_in_steps(monkeypatch):
    monkeypatch.setattr(_patterns, "MAX_PATTERNS", 3)
    PatternTable({"a": 1, "b": 2, "c": 3})
    with pytest.raises(FormatError, match="too many patterns"):
        PatternTable({"a": 1, "b": 2, "c": 3, "d": 4})
    monkeypatch.setattr(_patterns, "MAX_STEPS", 2000)
    table = PatternTable({"(.*)*x": 1})
    assert table.find("a") is None
    with pytest.raises(FormatError, match="too long to match"):
        table.find("a" * _patterns.MAX_NAME)
    with pytest.raises(FormatError, match="name is too long"):
        table.find("a" * (_patterns.MAX_NAME + 1))


def test_the_names_of_a_large_adapter_are_looked_up_quickly():
    names = [f"model.layers.{n // 700}.mlp.experts.{n % 700}.up_proj" for n in range(50_000)]
    table = PatternTable({name: rank for rank, name in enumerate(names)})
    began = time.process_time()
    assert [table.find(f"base.{name}") for name in names] == list(range(50_000))
    assert time.process_time() - began < SECONDS


def test_a_compiled_pattern_matches_the_whole_name():
    assert compile_regex("a").matches("a")
    assert not compile_regex("a").matches("aa")
