"""Web servers that lie about what they send, or never stop sending."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler

import pytest
from rdrr_converter.sources.staging import stage_locally
from rdrr_format.errors import RdrrError, StoreError
from rdrr_format.remote_stores import HttpStore
from rdrr_format.stores import MemoryStore, read_bounded
from rdrr_manifests.validation import validate
from support.range_server import running

MIB = 1 << 20


def server(
    head: dict[str, str], answer: dict[str, str], status: int = 200
) -> AbstractContextManager[str]:
    """Run a server that sends these headers, and then zeros until the client disconnects."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self, headers: dict[str, str], status: int) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()

        def do_HEAD(self) -> None:
            self._answer(head, 200)

        def do_GET(self) -> None:
            self._answer(answer, status)
            for _ in range(1024):  # 1 GiB
                try:
                    self.wfile.write(bytes(MIB))
                except OSError:
                    return

    return running(Handler)


@contextmanager
def cheap(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("answer", "status"),
    [({"Content-Range": "bytes 8-15/16"}, 206), ({}, 200), ({"Content-Length": str(1 << 40)}, 200)],
)
def test_no_more_bytes_are_read_than_were_requested(answer, status):
    with server({}, answer, status) as url, cheap(4 * MIB):
        assert HttpStore(url).read("file", 8, 8).tobytes() == bytes(8)


def test_an_endless_response_is_cut_off():
    with server({}, {}) as url, cheap(200 * MIB), pytest.raises(StoreError, match="too much"):
        HttpStore(url).read("file")
    with server({}, {"Content-Length": "16"}) as url:  # the control
        assert HttpStore(url).read("file").size == 16


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 5000, "x", ""])
def test_an_invalid_content_length_is_refused(length):
    with server({"Content-Length": length}, {}) as url, pytest.raises(StoreError, match="size"):
        HttpStore(url).size("file")
    with server({"Content-Length": "12"}, {}) as url:
        assert HttpStore(url).size("file") == 12


@pytest.mark.parametrize("stated", [16, 1 << 40])
def test_an_endless_manifest_costs_no_more_than_its_stated_size(stated):
    with server({"Content-Length": str(stated)}, {}) as url, cheap(8 * MIB):
        assert [fault.rule for fault in validate(url).faults] == ["not-rdrr"]


def test_a_checkpoint_of_endless_files_is_refused():
    stated = {"Content-Length": str(1 << 40), "Accept-Ranges": "bytes"}
    with server(stated, {}) as url, cheap(8 * MIB), pytest.raises(RdrrError, match="too large"):
        stage_locally(f"{url}/model").__enter__()


def test_files_of_every_store_are_read_up_to_a_bound():
    store = MemoryStore({"file": bytes(16)})
    assert len(read_bounded(store, "file", 16)) == 16
    with pytest.raises(StoreError, match="too large"):
        read_bounded(store, "file", 15)
