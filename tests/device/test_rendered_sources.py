"""Rendered shaders are kept for later processes, and no folder or file can do harm."""

from __future__ import annotations

import os
import sys
from itertools import count
from unittest.mock import Mock

import pytest
from rdrr_device import rendered_sources as module
from rdrr_device import shaders
from rdrr_device.rendered_sources import STATES, RenderedSources, rendered_sources
from rdrr_device.shaders import ShaderFolder

NUMBERS = count()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(module, "cache_folder", lambda: folder)
    return folder


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A Python package with a template, which includes a snippet of a folder below."""
    root = tmp_path / f"templates{next(NUMBERS)}"
    (root / "snippets").mkdir(parents=True)
    (root / "__init__.py").write_text("", encoding="utf-8")
    (root / "sum.wgsl").write_text('{% include "snippets/x.wgsl" %} + {{ X }}', encoding="utf-8")
    (root / "snippets" / "x.wgsl").write_text("a", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield root
    sys.modules.pop(root.name, None)


def rendered(package, **variables) -> str:
    """Render the template as a later process does."""
    for function in (shaders._render, shaders._kept, shaders._environment):
        function.cache_clear()
    return ShaderFolder(package.name).render("sum.wgsl", **variables)


@pytest.mark.usefixtures("cache")
def test_a_later_process_does_not_render_a_shader_again(package, monkeypatch):
    assert rendered(package, X=1) == "a + 1"
    monkeypatch.setattr(shaders, "_environment", Mock(side_effect=AssertionError("rendered again")))
    for function in (shaders._render, shaders._kept):
        function.cache_clear()
    folder = ShaderFolder(package.name)
    assert folder.render("sum.wgsl", X=1) == "a + 1"
    for variables in ({"X": 2}, {"X": "1"}, {"X": 1, "VALUE": "f16"}):  # the controls
        with pytest.raises(AssertionError, match="rendered again"):
            folder.render("sum.wgsl", **variables)


@pytest.mark.parametrize("name", ["sum.wgsl", "snippets/x.wgsl", "__init__.py"])
def test_a_shader_is_rendered_again_after_a_change_of_any_file(cache, package, name):
    rendered(package, X=1)
    stat = (package / name).stat()
    os.utime(package / name, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    rendered(package, X=1)
    assert len(list((cache / "shaders").iterdir())) == 2
    rendered(package, X=1)  # the control: nothing has changed
    assert len(list((cache / "shaders").iterdir())) == 2


@pytest.mark.usefixtures("cache")
def test_a_changed_snippet_is_seen(package):
    rendered(package, X=1)
    (package / "snippets" / "x.wgsl").write_text("other", encoding="utf-8")
    assert rendered(package, X=1) == "other + 1"


def test_a_broken_file_is_written_again(tmp_path):
    sources = RenderedSources(tmp_path / "kept")
    assert sources.of("key", lambda: "é\r\nb\n") == "é\r\nb\n"
    (path,) = (tmp_path / "kept").iterdir()
    whole = path.read_bytes()
    for content in (b"", whole[:-1], whole + b"\n", b"\xff", b"no source"):
        path.write_bytes(content)
        assert sources.of("key", lambda: "é\r\nb\n") == "é\r\nb\n"
        assert path.read_bytes() == whole


def test_a_folder_that_cannot_be_made_or_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", None):
        assert RenderedSources(folder).of("key", lambda: "source") == "source"


def test_sources_of_old_states_are_removed(cache, package):
    for number in range(STATES + 3):
        (package / f"{number}.wgsl").write_text("", encoding="utf-8")
        rendered(package, X=1)
    other = RenderedSources(cache / "shaders" / "other-state")
    other.of("key", lambda: "source")
    left = sorted(path.name.rpartition("-")[0] for path in (cache / "shaders").iterdir())
    assert left == ["other"] + [package.name] * STATES


def test_a_user_without_a_home_keeps_nothing(package, monkeypatch):
    no_home = Mock(side_effect=RuntimeError("could not determine home directory"))
    monkeypatch.setattr(module, "cache_folder", no_home)
    assert rendered_sources(package.name).of("key", lambda: "source") == "source"
