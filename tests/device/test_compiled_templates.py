"""Compiled templates are kept for later processes, and no folder or file can do harm."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import jinja2
import pytest
from rdrr_device import compiled_templates as module
from rdrr_device.compiled_templates import CompiledTemplates, compiled_templates


def rendered(folder: Path, text: str = "{{ x + 1 }}") -> str:
    """Render a template in an environment of its own, as a later process does."""
    loader = jinja2.DictLoader({"t.wgsl": text})
    environment = jinja2.Environment(loader=loader, bytecode_cache=CompiledTemplates(folder))
    return environment.get_template("t.wgsl").render(x=4)


def test_a_later_process_does_not_compile_a_template_again(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "new" / "folder"
    assert rendered(folder) == "5"
    assert len(list(folder.iterdir())) == 1

    refuse = Mock(side_effect=AssertionError("compiled again"))
    monkeypatch.setattr(jinja2.Environment, "compile", refuse)
    assert rendered(folder) == "5"
    with pytest.raises(AssertionError, match="compiled again"):  # the control: another text
        rendered(folder, "{{ x + 2 }}")


def test_a_changed_template_is_compiled_again(tmp_path) -> None:
    assert rendered(tmp_path) == "5"
    assert rendered(tmp_path, "{{ x + 2 }}") == "6"
    assert rendered(tmp_path) == "5"


def test_a_broken_file_is_compiled_again(tmp_path) -> None:
    rendered(tmp_path)
    (kept,) = tmp_path.iterdir()
    for content in (b"", kept.read_bytes()[:-5], b"no template"):
        kept.write_bytes(content)
        assert rendered(tmp_path) == "5"


def test_a_folder_that_cannot_be_made_or_written_is_no_error(tmp_path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert rendered(tmp_path / "file") == "5"
    assert rendered(tmp_path / "file" / "below") == "5"


def test_other_options_have_another_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    environments = [jinja2.Environment(trim_blocks=trims) for trims in (True, False, True)]
    caches = [compiled_templates("p", environment) for environment in environments]
    folders = [None if cache is None else cache.directory for cache in caches]
    assert folders[0] == folders[2] != folders[1]


def test_a_user_without_a_home_keeps_nothing(monkeypatch) -> None:
    no_home = Mock(side_effect=RuntimeError("could not determine home directory"))
    monkeypatch.setattr(module, "cache_folder", no_home)
    assert compiled_templates("p", jinja2.Environment()) is None
