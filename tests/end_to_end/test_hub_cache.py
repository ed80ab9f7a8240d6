"""`rdrr pull`, `list` and `rm`: packages in the hub's cache."""

from __future__ import annotations

import json

from support.commands import rdrr
from support.object_store import files

NAME = "org/model"


def test_packages_are_fetched_listed_and_removed_and_nothing_else(hub_here, shallow_package):
    content = files(shallow_package)
    hub_here.add(NAME, content)
    hub_here.add("org/other", {"config.json": b"{}"})
    words = [("list",), ("pull", NAME), ("list",), ("rm", NAME), ("list",), ("rm", NAME)]
    words += [("pull", "org/other"), ("rm", "org/other"), ("list",)]
    done = [rdrr(*each, "--json") for each in words]
    assert [each.code for each in done] == [0, 0, 0, 0, 0, 1, 1, 1, 0], done[1].err
    before, fetched, listed, removed, after, *_, last = (
        json.loads(each.out) if each.code == 0 else None for each in done
    )
    assert before == after == last == {"packages": []}
    assert fetched["size"] == sum(map(len, content.values()))
    assert sorted(set(hub_here.downloads())) == sorted(content)
    assert [(each["name"], each["revision"]) for each in listed["packages"]] == [
        (NAME, fetched["revision"])
    ]
    assert removed["freed"] == fetched["size"]
    assert "no such package" in json.loads(done[5].out)["message"]
    assert "manifest.json" in json.loads(done[6].out)["message"]
