"""Text from files on a terminal: control characters are shown escaped, never interpreted."""

from __future__ import annotations

import io
import json
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import rdrr
from hypothesis import given
from hypothesis import strategies as st
from rdrr.cli import _console
from rdrr_format.errors import MAX_LINE, RdrrError
from rdrr_format.printing import printable, shortened
from support.commands import rdrr as run
from support.examples import examples
from support.manifests import write_package
from support.safetensor_files import llama_tensors, write_llama

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\x08\r\x00\x7f"
"""Sets the window title, clears the screen, sets a colour by a C1 byte, reverses the text."""


def assert_harmless(text: str) -> None:
    bad = {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs")} - {"\n"}
    assert not bad, ascii(text)


def assert_escaped(text: str) -> None:
    """Fail unless the hostile text appears and is escaped."""
    assert_harmless(text)
    assert "\\x1b" in text or "\\u001b" in text
    assert "owned" in text


@pytest.fixture
def folder(tmp_path: Path, rng) -> Path:
    """Write a valid package in which every text that a writer may choose is hostile."""
    write_package(tmp_path, rng)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    entry = manifest["tensors"]["model.norm.weight"]
    manifest["tensors"][f"x{HOSTILE}"] = {**entry, "dtype": f"Q{HOSTILE}", "group": HOSTILE}
    manifest["quantization"] = HOSTILE
    manifest["inference"]["chatTemplate"] = {"type": "jinja", "template": HOSTILE}
    manifest["optimizations"] = {"kernelHints": {HOSTILE: HOSTILE, "tunedDevice": HOSTILE}}
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("validate",),
        ("validate", "--json"),
        ("inspect",),
        ("inspect", "--tensors"),
        ("inspect", "--tensors", "--json"),
        ("hints",),
        ("explain", "--backend", "cpu"),
        ("generate", "--prompt", "x", "--backend", "cpu"),
    ],
)
def test_commands_on_a_hostile_package_print_no_control_characters(folder, words):
    done = run(words[0], folder, *words[1:])
    assert_harmless(done.out)
    assert_harmless(done.err)
    assert "Traceback" not in done.err


def test_hostile_text_is_shown_escaped(folder):
    assert_escaped(run("validate", folder).out)
    printed = run("validate", folder, "--json").out
    assert_escaped(printed)
    assert any(HOSTILE[:3] in json.dumps(error, ensure_ascii=False) or "owned" in str(error)
               for error in json.loads(printed)["errors"])  # fmt: skip


def test_a_conversion_names_hostile_tensors_harmlessly(tmp_path, rng):
    tensors = llama_tensors(rng)
    source = write_llama(tmp_path / "model", tensors)
    assert run("convert", source, tmp_path / "control", "--dry-run").code == 0
    name = f"model.layers.0.{HOSTILE}"
    write_llama(source, {**tensors, name: np.zeros(4, np.float32)})
    for words in ((), ("--json",)):
        done = run("convert", source, tmp_path / "out", *words)
        assert done.code == 1
        assert_escaped(done.out + done.err)


def test_a_report_prints_hostile_names_harmlessly(tmp_path, rng):
    source = write_llama(tmp_path / "model", llama_tensors(rng))
    rdrr.convert(source, tmp_path / "package")
    path = tmp_path / "package" / "conversion-report.json"
    report = json.loads(path.read_text(encoding="utf-8"))
    report["tensors"][0]["name"] = f"x{HOSTILE}"
    report["notes"] = [f"note {HOSTILE}"]
    path.write_text(json.dumps(report), encoding="utf-8")
    for words in (("report",), ("report", "--json"), ("push",)):
        more = ("hf://org/name", "--dry-run") if words[0] == "push" else words[1:]
        done = run(words[0], tmp_path / "package", *more, code=0)
        assert_harmless(done.out + done.err)


@examples(100)
@given(st.text(max_size=40))
def test_a_printed_cell_is_harmless_and_a_printable_one_is_as_it_was(text):
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        _console.console().print(_console.table(["name"], [[text]]))
        _console.console().print(_console.facts([("name", text)]))
        _console.print_json({"name": text})
    assert_harmless(out.getvalue())
    assert json.loads(out.getvalue().splitlines()[-1]) == {"name": text}
    if text.isprintable() and text == text.strip() and "  " not in text:
        assert text in out.getvalue()


@examples(100)
@given(st.text(max_size=200))
def test_escaping_keeps_printable_characters(text):
    assert printable(text).isprintable()
    if text.isprintable():
        assert printable(text) == text


@pytest.mark.parametrize("part", ["message", "where", "expected", "found", "hint"])
def test_a_message_is_one_harmless_line_of_less_than_2000_characters(part):
    whole = {"message": "wrong", part: HOSTILE + "x" * 100_000}
    error = RdrrError(whole.pop("message"), **whole)
    line = str(error)
    assert line.isprintable()
    assert MAX_LINE // 8 < len(line) <= MAX_LINE < 2000
    assert max(map(len, error.as_dict().values())) < 2000
    assert str(RdrrError("wrong", **{part: "short"} if part != "message" else {}))


def test_a_number_too_long_for_python_to_print_does_not_break_a_message():
    assert "too long to show" in str(RdrrError("wrong", found=10**5000))
    assert "found 1000" in str(RdrrError("wrong", found=10**3))


@pytest.mark.parametrize("length", [0, 10, 99, 100])
def test_a_text_is_shortened_only_where_it_is_too_long(length):
    text = "".join(chr(97 + number % 26) for number in range(length))
    assert shortened(text, 100) == text
    longer = "a" * 80 + "b" * 80
    assert len(shortened(longer, 100)) == 100
    assert shortened(longer, 100).endswith("b" * 25)
