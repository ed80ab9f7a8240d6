"""Folders of shaders: the digest of all that they contain."""

from __future__ import annotations

import pytest
from rdrr_device.shaders import ShaderFolder

FILES = ("kernel.wgsl", "kernel.py", "inner/kernel.wgsl", "inner/snippets/part.wgsl")


@pytest.mark.parametrize("changed", FILES)
def test_a_digest_depends_on_every_shader_and_module(tmp_path, monkeypatch, changed):
    monkeypatch.syspath_prepend(tmp_path)
    # Packages are imported and digests are kept, so each case has names of its own.
    before, same, after = (f"shaders_{FILES.index(changed)}_{number}" for number in range(3))
    for package in (before, same, after):
        for name in FILES:
            file = tmp_path / package / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"// {name} {package == after and name == changed}", encoding="utf-8")
    assert ShaderFolder(before).digest() == ShaderFolder(same).digest()
    assert ShaderFolder(before).digest() != ShaderFolder(after).digest()
