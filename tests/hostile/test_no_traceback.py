"""Input that used to end in a traceback gives one line, and a control next to it still works."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rdrr
from rdrr._chat import Conversation
from rdrr._chat_template import open_template
from rdrr._report_view import read_report
from rdrr._texts import read_text
from rdrr.importance import measure_importance
from rdrr_converter.sources import open_source
from rdrr_converter.sources.safetensors import read_file
from rdrr_format.errors import (
    ConversionError,
    FormatError,
    RdrrError,
    SourceError,
    StoreError,
    UsageError,
)
from rdrr_format.file_names import is_plain_name
from rdrr_format.opening import open_store
from rdrr_format.safetensors_file import MAX_NAME
from rdrr_manifests.editing import set_hints
from rdrr_manifests.models.conversion_report import parse_report
from support.checkpoints import write_tokenizer
from support.commands import error_line
from support.commands import rdrr as run
from support.manifests import write_package
from support.safetensor_files import llama_tensors, write_llama, write_safetensors
from support.seeds import generator_of

LONG = "x" * 400
WIDE = "é" * 200
"""Names that no file system accepts: of 400 characters, and of 400 bytes."""


@pytest.fixture
def source(tmp_path: Path, rng) -> Path:
    return write_llama(tmp_path / "source", llama_tensors(rng))


@pytest.fixture
def package(tmp_path: Path, rng) -> Path:
    (tmp_path / "package").mkdir()
    write_package(tmp_path / "package", rng)
    return tmp_path / "package"


@pytest.fixture(scope="module")
def reported(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reported")
    rdrr.convert(write_llama(folder / "source", llama_tensors(generator_of(request))), folder / "a")
    assert run("report", folder / "a", "--html", folder / "control.html").code == 0
    return folder / "a"


@pytest.fixture
def converted(reported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(reported, tmp_path / "converted"))


def edited(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def test_a_field_of_900_nested_lists_is_refused_in_one_line(package):
    path = package / "manifest.json"
    text = path.read_text(encoding="utf-8").rstrip().removesuffix("}")
    for depth, code in ((60, 0), (900, 1)):
        path.write_text(f'{text}, "extra": {"[" * depth + "]" * depth}}}', encoding="utf-8")
        for command in ("validate", "inspect"):
            done = run(command, package)
            assert done.code == code
            assert "Traceback" not in done.err
    assert "nested too deeply" in error_line(run("inspect", package))


CALLS: dict[str, Callable[[Path, Path, str], object]] = {
    "validate": lambda _source, _package, name: rdrr.validate(name),
    "open_package": lambda _source, _package, name: rdrr.open_package(name),
    "load": lambda _source, _package, name: rdrr.load(name),
    "read_report": lambda _source, _package, name: read_report(name),
    "read_text": lambda _source, _package, name: read_text(name),
    "set_hints": lambda _source, _package, name: set_hints(name, {}),
    "open_source": lambda _source, _package, name: open_source(name),
    "open_store": lambda _source, _package, name: open_store(name),
    "write an importance matrix": lambda _source, package, name: measure_importance(
        package, "text", name
    ),
    "push": lambda _source, _package, name: rdrr.push(name, "hf://org/name", dry_run=True),
    "convert from": lambda _source, _package, name: rdrr.convert(name, "out"),
    "convert to": lambda source, _package, name: rdrr.convert(source, name),
    "imatrix": lambda source, _package, name: rdrr.convert(
        source, source.parent / "out", imatrix=name
    ),
    "lora": lambda source, _package, name: rdrr.convert(source, source.parent / "out", lora=name),
    "export from": lambda _source, _package, name: rdrr.export(name, "out", to="gguf"),
    "export to": lambda _source, package, name: rdrr.export(package, name, to="safetensors"),
    "export to a file": lambda _source, package, name: rdrr.export(package, name, to="gguf"),
}


IMPOSSIBLE = {
    "too long": LONG,
    "too many bytes": WIDE,
    "too deep": "deep/" * 900,
    "with a NUL": "a\0b",
    "with half of a surrogate pair": "a\ud800b",
    "empty": "",
}
"""Paths that no file system accepts, and the empty one, which would mean the current folder."""


@pytest.mark.cover
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_a_path_that_no_file_system_accepts_is_refused(source, package, call, kind, monkeypatch):
    monkeypatch.chdir(package)  # a package, so that an accepted empty path would be noticed
    before = sorted(package.parent.rglob("*"))
    words = "the path is empty" if kind == "empty" else "not valid on any file system"
    words += r" \(found File name too long" if kind.startswith("too ") else ""
    with pytest.raises(UsageError, match=words) as caught:
        CALLS[call](source, package, IMPOSSIBLE[kind])
    assert caught.value.line().isprintable()
    assert sorted(package.parent.rglob("*")) == before


def test_a_session_and_a_chat_are_saved_only_to_a_possible_path(source, tmp_path):
    write_tokenizer(source)
    rdrr.convert(source, tmp_path / "made")
    with rdrr.load(tmp_path / "made", backend="cpu", context=16) as model:
        session, chat = model.session("It came"), Conversation(model)
        for name in IMPOSSIBLE.values():
            for use in (session.save, model.restore, chat.save, chat.load):
                with pytest.raises(UsageError, match=r"path is empty|not valid on any file system"):
                    use(name)
        list(session.generate(max_tokens=2))
        session.save(tmp_path / "session")
        chat.save(tmp_path / "chat")
        assert model.restore(tmp_path / "session").ids == session.ids
        chat.load(tmp_path / "chat")


@pytest.mark.parametrize("path", ["{}", "file://{}", "file://{}/", "{}/../package"])
def test_a_path_that_a_file_system_accepts_is_opened(package, path):
    """The control of the test above."""
    assert rdrr.validate(path.format(package)).ok()
    accented = ["é" * 127] if sys.getfilesystemencoding() == "utf-8" else []
    for name in ("x" * 255, *accented, "\udcff", "deep/" * 100):
        with pytest.raises(StoreError, match="no such path"):
            rdrr.validate(package / name)


@pytest.mark.parametrize("name", [LONG, WIDE, "a\0b"])
@pytest.mark.parametrize("field", ["tokenizer", "shard", "tensorsFile"])
def test_a_file_name_in_a_manifest_that_no_file_system_accepts_is_refused(package, name, field):
    def change(manifest: Any) -> None:
        if field == "tokenizer":
            manifest["tokenizer"]["file"] = name
        elif field == "shard":
            manifest["shards"][0]["filename"] = name
        else:
            manifest |= {"tensorsFile": name, "tensors": {}}

    assert rdrr.validate(package, deep=True).ok()
    edited(package / "manifest.json", change)
    assert not rdrr.validate(package, deep=True).ok()
    with pytest.raises(RdrrError):
        rdrr.open_package(package)


def test_a_plain_file_name_has_at_most_255_bytes():
    assert is_plain_name("x" * 255)
    assert is_plain_name("é" * 127)
    assert not is_plain_name("x" * 256)
    assert not is_plain_name("é" * 128)


@pytest.mark.parametrize("name", [LONG, WIDE, "a\0b"])
def test_a_file_name_in_an_index_that_no_file_system_accepts_is_refused(source, name):
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": name}}), encoding="utf-8"
    )
    with pytest.raises(SourceError, match="a shard is missing"):
        rdrr.convert(source, source.parent / "out")


def test_the_length_of_a_tensor_name_is_bounded(tmp_path):
    path = tmp_path / "model.safetensors"
    for length, ok in ((MAX_NAME, True), (MAX_NAME + 1, False)):
        write_safetensors(path, {"n" * length: np.zeros(2, np.float32)})
        if ok:
            assert len(read_file(path)) == 1
        else:
            with pytest.raises(SourceError, match="name is too long"):
                read_file(path)


def rename(name: str) -> Callable[[Any], None]:
    return lambda report: report["tensors"][0].update(name=name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda report: report["byDtype"].popitem(), "byDtype lacks"),
        (lambda report: report["tensors"][0].update(dtype="Q9"), "byDtype lacks Q9"),
        (rename("layers." + "9" * 5000 + ".a.weight"), "4096 characters"),
        (lambda report: report["tensors"][0].update(shape=[10**300]), "less than"),
        (lambda report: report["tensors"][0].update(shape=[2**40] * 9), "impossible shape"),
        (lambda report: report["tensors"][0].update(shape=[1] * 65), "64 items"),
        (lambda report: report["tensors"][0].update(relativeRmse=1e308), "less than"),
        (lambda report: report.update(totalSize=10**30), "less than"),
    ],
)
def test_an_impossible_report_is_refused_in_one_line(converted, change, words):
    edited(converted / "conversion-report.json", change)
    for more in ((), ("--html", converted.parent / "page.html"), ("--json",)):
        done = run("report", converted, *more)
        assert done.code == 1
        assert words in (done.err or done.out)
        assert "Traceback" not in done.err
    assert not (converted.parent / "page.html").exists()


def test_a_number_of_thousands_of_digits_is_not_read_as_a_layer_index(converted):
    for digits in (6, 7, 4000):
        edited(converted / "conversion-report.json", rename(f"layers.{'9' * digits}.a.weight"))
        page = converted.parent / f"{digits}.html"
        assert run("report", converted, "--html", page).code == 0
        assert page.is_file()


def test_bytes_that_are_not_a_report_are_refused():
    for raw in (b"", b"[]", b"{}", b"\xff", b"{" * 10_000, b"1" * 5000):
        with pytest.raises(FormatError):
            parse_report(raw, "report")


@pytest.mark.parametrize(
    "processor",
    [
        5,
        [],
        {"processors": 5},
        {"processors": [5, {"single": 5}, {"single": []}]},
        {"processors": [{"single": [1]}]},
        {"single": ["SpecialToken"]},
        {"single": [None]},
    ],
)
def test_a_tokenizer_with_an_invalid_post_processor_does_not_break_a_conversion(source, processor):
    use_post_processor(source, processor)
    with pytest.raises(ConversionError, match="cannot be read as a tokenizer"):
        rdrr.convert(source, source.parent / "out")


def use_post_processor(source: Path, content: Any) -> None:
    edited(source / "tokenizer.json", lambda document: document.update(post_processor=content))


def test_a_tokenizer_with_a_valid_post_processor_is_converted(source):
    """The control of the test above."""
    begins = {"id": "<s>", "type_id": 0}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    for single, adds in (([text], False), ([{"SpecialToken": begins}, text], True)):
        token = {"id": "<s>", "ids": [1], "tokens": ["t1"]}
        use_post_processor(
            source,
            {
                "type": "TemplateProcessing",
                "single": single,
                "pair": [text, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {"<s>": token},
            },
        )
        rdrr.convert(source, source.parent / "out", overwrite=True)
        assert rdrr.open_package(source.parent / "out").manifest.tokenizer.add_bos_token is adds


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"chat_template": [{"name": ["x"], "template": "y"}, 5]}', "no chat template"),
        ('{"chat_template": 5}', "no chat template"),
        ('{"chat_template": %s}' % ("[" * 900 + "]" * 900), "nested too deeply"),
        ('{"bos_token": %s}' % ("9" * 5000), "too many digits"),
        ("{", "not JSON"),
    ],
)
def test_tokenizer_settings_without_a_usable_template_are_refused(package, content, words):
    path = package / "tokenizer_config.json"
    path.write_text('{"chat_template": "{{ messages }}"}', encoding="utf-8")
    assert open_template(rdrr.open_package(package))
    path.write_text(content, encoding="utf-8")
    with pytest.raises(RdrrError, match=words):
        open_template(rdrr.open_package(package))


def test_endless_tokenizer_settings_are_not_read(package):
    path = package / "tokenizer_config.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RdrrError, match="too large"):
        open_template(rdrr.open_package(package))


@pytest.mark.parametrize("dtype", [["F32"], {"F32": 1}, 32, None, True])
def test_a_dtype_that_is_not_a_string_is_refused(source, dtype):
    path = source / "model.safetensors"
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header["lm_head.weight"]["dtype"] = dtype
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :])
    done = run("convert", source, source.parent / "out")
    assert "unknown dtype" in error_line(done, 1)
