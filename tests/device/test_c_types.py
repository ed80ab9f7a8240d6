"""C types parsed together are those that cffi parses one by one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cffi import FFI
from rdrr_device.implementations.c_types import ARRAYS, FUNCTIONS, TYPES, parse_types

HEADER = """
typedef struct Thing { int size; } Thing;
typedef struct HandleImpl *Handle;
typedef unsigned char byte;
"""
PLAIN, ARRAY, FUNCTION = ("Thing *", "byte *"), ("Handle[]", "char []"), ("void(Handle, void *)",)


def declared() -> FFI:
    ffi = FFI()
    ffi.cdef(HEADER)
    return ffi


def test_the_types_equal_those_that_are_parsed_one_by_one():
    together, alone = declared(), declared()
    assert parse_types(together, PLAIN, ARRAY, FUNCTION)
    together._parser = None  # nothing may be parsed from here on
    for name in (*PLAIN, *ARRAY):
        assert repr(together.typeof(name)) == repr(alone.typeof(name)), name
    assert together.new("Thing *", {"size": 7}).size == 7
    assert len(together.new("Handle[]", 3)) == 3
    assert bytes(together.buffer(together.new("char []", b"abc"))) == b"abc\0"
    called = []
    call = together.callback(FUNCTION[0], lambda *given: called.append(given))
    call(together.NULL, together.NULL)
    assert called == [(together.NULL, together.NULL)]
    with pytest.raises(Exception, match="function type"):
        together.typeof(FUNCTION[0])


def test_an_unknown_type_leaves_all_of_them_to_be_parsed_on_first_use():
    ffi = declared()
    assert not parse_types(ffi, ("Missing *", *PLAIN), ARRAY, FUNCTION)
    assert ffi.new("Thing *", {"size": 7}).size == 7


def test_without_the_internals_of_cffi_nothing_is_done():
    assert not parse_types(object())


OPENED = """
import cffi.api
import cffi.cparser
import wgpu.backends.wgpu_native
parsed = []
parse = cffi.cparser.Parser.parse_type_and_quals
def counting(self, name):
    parsed.append(name)
    return parse(self, name)
cffi.cparser.Parser.parse_type_and_quals = counting
from rdrr_device.arena import arena
from rdrr_device.device import open_device
device = open_device()
with arena(device) as owner:
    made = owner.upload("one", bytes(8))
    device.read(made)
device.close()
print(len(parsed))
"""


@pytest.mark.usefixtures("device")
def test_opening_a_device_parses_types_once():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", OPENED], env=environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == 1


def test_each_type_is_listed_once():
    names = (*TYPES, *ARRAYS, *FUNCTIONS)
    assert len(set(names)) == len(names)
