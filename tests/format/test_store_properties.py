"""Every writable store behaves like a dictionary of bytes."""

from __future__ import annotations

import sys
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rdrr_format.errors import StoreError
from rdrr_format.remote_stores import FsspecStore
from rdrr_format.stores import LocalStore, MemoryStore

ACCENTED = ["ümlaut.json"] if sys.getfilesystemencoding() == "utf-8" else []
NAMES = st.sampled_from(["a.bin", "b.bin", "name with spaces", "100%.txt", *ACCENTED])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, st.lists(st.binary(max_size=40), max_size=3)),
        st.tuples(
            st.just("read"), NAMES, st.tuples(st.integers(0, 130), st.none() | st.integers(0, 130))
        ),
    ),
    max_size=25,
)


def stores(folder):
    return LocalStore(folder), MemoryStore(), FsspecStore(f"memory://{uuid4().hex}")


def apply(store, model, actions):
    for action, name, detail in actions:
        if action == "write":
            with store.open_write(name) as file:
                for piece in detail:
                    file.write(piece)
            model[name] = b"".join(detail)
        elif name in model:
            offset, size = detail
            end = None if size is None else offset + size
            assert store.read(name, offset, size).tobytes() == model[name][offset:end]
        else:
            with pytest.raises(StoreError):
                store.read(name, *detail)
        assert store.exists(name) == (name in model)


@settings(max_examples=40, deadline=None)
@given(actions=ACTIONS)
def test_a_store_gives_back_what_was_last_written_under_a_name(actions):
    with TemporaryDirectory() as folder:
        for store in stores(folder):
            model = {}
            apply(store, model, actions)
            if model:
                assert store.list() == sorted(model)
            for name, content in model.items():
                assert store.size(name) == len(content)
                assert store.read(name).tobytes() == content
