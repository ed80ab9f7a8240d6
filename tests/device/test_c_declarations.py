"""Parsed C declarations are kept for later processes, and no folder or file can do harm."""

from __future__ import annotations

import pytest
from cffi import FFI, cparser
from rdrr_device.implementations import c_declarations
from rdrr_device.implementations.c_declarations import KeptTrees, kept_declarations

VERSIONS = ("3.11", "2.0")


class Counting:
    """A parser that counts what it parses."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def parse(self, text):
        self.texts.append(text)
        return {"tree of": text}


@pytest.fixture
def parser():
    return Counting()


def test_a_text_is_parsed_once_for_later_processes(parser, tmp_path):
    for _ in range(2):
        kept = KeptTrees(parser, tmp_path / "new" / "folder", VERSIONS)
        assert kept.parse("int x;") == {"tree of": "int x;"}
    assert parser.texts == ["int x;"]
    kept.parse("int y;")
    assert parser.texts == ["int x;", "int y;"]


def test_a_text_is_parsed_again_by_another_version(parser, tmp_path):
    for versions in (VERSIONS, ("3.12", "2.0"), ("3.11", "2.1")):
        KeptTrees(parser, tmp_path, versions).parse("int x;")
    assert len(parser.texts) == 3


@pytest.mark.parametrize("damage", [b"", b"cnothing\nmissing\n.", b"\x80\x05X"])
def test_a_damaged_file_is_parsed_again_and_replaced(parser, tmp_path, damage):
    kept = KeptTrees(parser, tmp_path, VERSIONS)
    kept.parse("int x;")
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    assert kept.parse("int x;") == {"tree of": "int x;"}
    assert len(parser.texts) == 2
    assert kept.parse("int x;") == {"tree of": "int x;"}
    assert len(parser.texts) == 2


def test_a_folder_that_cannot_be_written_is_no_error(parser, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    kept = KeptTrees(parser, tmp_path / "file" / "folder", VERSIONS)
    assert kept.parse("int x;") == {"tree of": "int x;"}


def declared() -> FFI:
    ffi = FFI()
    with kept_declarations():
        ffi.cdef("typedef struct Pair { int low; int high; } Pair; enum Kind { A, B = 7 };")
    return ffi


def test_declarations_that_were_kept_are_those_that_are_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(c_declarations, "cache_folder", lambda: tmp_path)
    parser = cparser._get_parser()
    parsed = declared()
    with monkeypatch.context() as without:
        without.setattr(parser, "parse", lambda *_: pytest.fail("parsed again"))
        kept = declared()
    assert cparser._get_parser() is parser
    for ffi in (parsed, kept):
        assert ffi.sizeof("Pair[3]") == 24
        assert ffi.typeof("enum Kind").relements == {"A": 0, "B": 7}


def test_without_the_internals_of_cffi_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(c_declarations, "cache_folder", lambda: tmp_path)
    monkeypatch.delattr(cparser, "_get_parser")
    with kept_declarations():
        pass
    assert not list(tmp_path.iterdir())
