"""Untrusted file names cannot lead out of their folder."""

from __future__ import annotations

import pytest
from rdrr_format.errors import FormatError
from rdrr_format.file_names import check_name, is_plain_name


@pytest.mark.parametrize(
    "name", ["shard_00000.bin", ".hidden", "a b", "model-00001-of-00002.safetensors", "x" * 255]
)
def test_a_plain_name_is_returned_unchanged(name):
    assert is_plain_name(name)
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc/passwd",
        "a\\b",
        "C:x",
        "~x",
        " x",
        "x\n",
        "\0",
        "x" * 256,
    ],
)
def test_a_name_that_could_lead_elsewhere_is_refused(name):
    assert not is_plain_name(name)
    with pytest.raises(FormatError, match=r"not a plain file name.*without folders"):
        check_name(name)
