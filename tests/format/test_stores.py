"""The contract of stores, as a class of tests that the tests of each kind of store inherit."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from uuid import uuid4

import pytest
from rdrr_format.errors import FormatError, StoreError
from rdrr_format.opening import open_store
from rdrr_format.remote_stores import FsspecStore, HttpStore
from rdrr_format.stores import LocalStore, MemoryStore, replace_file, store_errors
from support.commands import environment
from support.range_server import QuietHandler, RangeHandler, served

CONTENT = bytes(range(256)) * 4


class ReadTests:
    """Tests of reading a fixture `store` that holds a.bin (CONTENT) and empty.bin."""

    def test_it_reads_whole_files(self, store):
        assert bytes(store.read("a.bin")) == CONTENT

    def test_it_reads_parts(self, store):
        assert bytes(store.read("a.bin", 100, 50)) == CONTENT[100:150]

    def test_it_reads_from_an_offset_to_the_end(self, store):
        assert bytes(store.read("a.bin", 1000)) == CONTENT[1000:]

    def test_it_knows_sizes(self, store):
        assert (store.size("a.bin"), store.size("empty.bin")) == (len(CONTENT), 0)

    def test_it_reads_an_empty_file(self, store):
        assert store.read("empty.bin").size == 0

    def test_it_knows_what_exists(self, store):
        assert store.exists("a.bin")
        assert not store.exists("b.bin")

    def test_a_missing_file_is_a_store_error_of_one_line(self, store):
        for action in (store.read, store.size):
            with pytest.raises(StoreError, match=r"b\.bin") as caught:
                action("b.bin")
            assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("name", ["", ".", "..", "../a", "/etc/passwd", "a/b", "a\\b", "a\0"])
    def test_names_with_a_path_are_refused(self, store, name):
        for action in (store.read, store.size, store.exists):
            with pytest.raises(FormatError, match="plain file name"):
                action(name)

    def test_it_says_where_it_is(self, store):
        assert store.describe()


class StoreTests(ReadTests):
    """Tests of reading and writing."""

    def test_what_is_written_is_read_back(self, store):
        with store.open_write("new.bin") as file:
            file.write(b"one ")
            file.write(memoryview(b"two"))
        assert bytes(store.read("new.bin")) == b"one two"

    def test_writing_replaces(self, store):
        with store.open_write("a.bin") as file:
            file.write(b"short")
        assert bytes(store.read("a.bin")) == b"short"

    def test_it_lists_the_files(self, store):
        assert store.list() == ["a.bin", "empty.bin"]

    def test_writing_outside_is_refused(self, store):
        with pytest.raises(FormatError, match="plain file name"):
            store.open_write("../b.bin")


def fill(store):
    for name, content in (("a.bin", CONTENT), ("empty.bin", b"")):
        with store.open_write(name) as file:
            file.write(content)
    return store


class TestLocalStore(StoreTests):
    @pytest.fixture
    def store(self, tmp_path):
        return fill(LocalStore(tmp_path / "package"))

    def test_a_missing_folder_is_a_store_error(self, tmp_path):
        with pytest.raises(StoreError, match="no such file or folder"):
            LocalStore(tmp_path / "nowhere").list()

    def test_a_file_instead_of_the_folder_is_a_store_error(self, tmp_path):
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StoreError, match=r"file"):
            LocalStore(tmp_path / "file").open_write("a.bin")


class TestMemoryStore(StoreTests):
    @pytest.fixture
    def store(self):
        return fill(MemoryStore())


class TestFsspecMemory(StoreTests):
    @pytest.fixture
    def store(self):
        return fill(FsspecStore(f"memory://{uuid4().hex}"))


class TestHttp(ReadTests):
    handler = QuietHandler

    @pytest.fixture
    def store(self, tmp_path):
        fill(LocalStore(tmp_path))
        with served(tmp_path, self.handler) as url:
            yield open_store(url)

    def test_it_can_be_neither_written_nor_listed(self, store):
        with pytest.raises(StoreError, match="cannot be written"):
            store.open_write("a.bin")
        with pytest.raises(StoreError, match="does not list"):
            store.list()


class TestHttpWithRanges(TestHttp):
    handler = RangeHandler


def test_an_unreachable_server_is_a_store_error_of_one_line():
    store = open_store("http://127.0.0.1:9")
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:9") as caught:
        store.read("manifest.json")
    assert "\n" not in str(caught.value)


def test_an_unknown_protocol_is_a_store_error():
    with pytest.raises(StoreError, match="nosuch"):
        open_store("nosuch://folder")


def test_locations_choose_the_store(tmp_path):
    assert isinstance(open_store(tmp_path), LocalStore)
    assert isinstance(open_store(f"file://{tmp_path}"), LocalStore)
    assert isinstance(open_store("memory://x"), FsspecStore)
    assert isinstance(open_store("https://example.org/x"), HttpStore)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full.*free some space"),
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_operating_system_errors_become_one_line(number, words):
    with (
        pytest.raises(StoreError, match=f"^out/shard: .*{words}") as caught,
        store_errors("out/shard"),
    ):
        raise OSError(number, "Input/output error")
    assert "\n" not in str(caught.value)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_file(path, b"first")
    replace_file(path, b"second")
    assert path.read_bytes() == b"second"

    def refuse(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StoreError, match="the disk is full"):
        replace_file(path, b"third")
    assert path.read_bytes() == b"second"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    with pytest.raises(StoreError, match="no such file or folder"):
        replace_file(tmp_path / "nowhere" / "file", b"")


def test_replacing_keeps_links_and_devices(tmp_path):
    path, link, device = (tmp_path / name for name in ("file", "link", "device"))
    path.write_bytes(b"first")
    link.symlink_to(path)
    device.symlink_to(os.devnull)
    replace_file(link, b"second")
    replace_file(device, b"gone")
    assert path.read_bytes() == b"second"
    assert link.is_symlink()
    assert device.is_char_device()
    with pytest.raises(StoreError, match="a folder, where a file was expected"):
        replace_file(tmp_path, b"")


LOUD = """
import logging, sys
import fsspec
from rdrr_format.errors import StoreError
from rdrr_format.opening import open_store
class Loud(fsspec.AbstractFileSystem):
    protocol = "loud"
    def cat_file(self, path, **options):
        logging.getLogger(__name__ + ".retry").error("out of retries")
        raise OSError("no route")
fsspec.register_implementation("loud", Loud)
logging.getLogger("other").error("heard")
try:
    open_store("loud://there").read("manifest.json")
except StoreError as error:
    sys.stderr.write(str(error))
"""


def test_what_the_client_of_a_protocol_logs_does_not_reach_stderr():
    done = subprocess.run(
        [sys.executable, "-c", LOUD], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stderr == "heard\nloud://there/manifest.json: no route"


_ACCENTED = """
import sys
from rdrr_format.errors import StoreError
from rdrr_format.stores import LocalStore
try:
    LocalStore(sys.argv[1]).open_write("\\u00fc.bin").close()
    print("written")
except StoreError as error:
    print(ascii(error.message))
"""


@pytest.mark.parametrize(
    ("locale", "answer"),
    [("C", "cannot be written in the system's encoding"), ("C.UTF-8", "written")],
)
def test_a_name_that_the_locale_cannot_write_is_one_error(tmp_path, locale, answer):
    extra = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _ACCENTED, str(tmp_path)],
        env=environment(**extra),
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer in done.stdout
