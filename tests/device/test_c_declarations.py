"""C declarations are compiled once for later processes, and no folder or file can do harm."""

from __future__ import annotations

import cffi
import pytest
from cffi.api import FFI
from rdrr_device.implementations import c_declarations
from rdrr_device.implementations.c_declarations import compiled_declarations, kept_declarations

TEXT = "typedef struct Pair { int low; int high; } Pair; enum Kind { A, B = 7 }; int abs(int);"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(c_declarations, "cache_folder", lambda: tmp_path / "new")
    return tmp_path / "new" / "declarations"


@pytest.fixture
def parsed(monkeypatch):
    """The texts that cffi parses."""
    texts, parse = [], FFI.cdef
    monkeypatch.setattr(FFI, "cdef", lambda ffi, text: [texts.append(text), parse(ffi, text)])
    return texts


def check(ffi) -> None:
    assert ffi.sizeof("Pair[3]") == 24
    assert ffi.new("Pair *", {"high": 7}).high == 7
    assert ffi.typeof("enum Kind").relements == {"A": 0, "B": 7}
    assert ffi.dlopen(None).abs(-7) == 7


@pytest.mark.usefixtures("folder")
def test_a_text_is_parsed_once_for_later_processes(parsed):
    for _ in range(2):
        check(compiled_declarations(TEXT))
    assert parsed == [TEXT]
    compiled_declarations("int labs(int);")
    assert len(parsed) == 2


@pytest.mark.parametrize("damage", ["", "import nothing_of_this_name", "ffi = (", "\0"])
def test_a_damaged_file_is_compiled_again_and_replaced(folder, parsed, damage):
    compiled_declarations(TEXT)
    (file,) = folder.glob("*.py")
    whole = file.read_text(encoding="utf-8")
    file.write_text(damage, encoding="utf-8")
    check(compiled_declarations(TEXT))
    assert len(parsed) == 2
    assert file.read_text(encoding="utf-8") == whole


def test_a_folder_that_cannot_be_written_is_no_error(folder):
    folder.parent.write_bytes(b"")
    check(compiled_declarations(TEXT))


def test_a_module_that_declares_a_library_gets_compiled_declarations_within_the_block(folder):
    plain = cffi.FFI
    with kept_declarations():
        ffi = cffi.FFI()
        ffi.cdef(TEXT)
        ffi.set_source("pairs.h", None)
    check(ffi)
    assert cffi.FFI is plain is FFI
    assert len(list(folder.glob("*.py"))) == 1


@pytest.mark.usefixtures("folder")
def test_the_class_is_given_back_after_an_error():
    with pytest.raises(cffi.CDefError), kept_declarations():
        cffi.FFI().cdef("nonsense")
    assert cffi.FFI is FFI
