"""READMEs of components name only files and folders that exist, and leave out no package."""

from __future__ import annotations

import pytest
from support.readmes import readme_faults
from support.snippets import ROOT

READMES = sorted(ROOT.glob("[!.]*/README.md"))
TEXT = """
The rules are in `rules/`, `rdrr_store.reading` reads, and `tests/` has the tests. `org/name` and
`.NAME.partial/` are no files of ours.

```
reading.py, cache.py   read a file, and keep it
graph/       ops in two packages: dense
             and sparse
  build.py   the graph
rules/       one function for each rule
```
"""
FILES = (
    "reading.py",
    "cache.py",
    "graph/build.py",
    "graph/dense/ops.py",
    "graph/sparse/ops.py",
    "rules/all.py",
    "rules/snippets/all.wgsl",
    "__pycache__/reading.pyc",
)


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_a_readme_names_what_is_in_its_component(readme):
    faults = readme_faults(readme.read_text(encoding="utf-8"), readme.parent)
    assert not faults, "\n".join(faults)


def test_every_component_has_a_readme():
    packages = {path.parent.name for path in ROOT.glob("*/rdrr*") if path.is_dir()}
    assert packages | {"benchmarks", "web"} == {readme.parent.name for readme in READMES}


def test_the_readme_of_the_benchmarks_lists_every_script():
    scripts = {path.name for path in ROOT.glob("benchmarks/[!_]*.py")}
    text = ROOT.joinpath("benchmarks/README.md").read_text(encoding="utf-8")
    assert not [name for name in sorted(scripts) if f"`{name}" not in text]


@pytest.fixture
def component(tmp_path):
    for name in FILES:
        path = tmp_path / "store/rdrr_store" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "tests").mkdir()
    return tmp_path / "store"


def test_a_readme_that_names_every_package_has_no_fault(component):
    assert readme_faults(TEXT, component) == []


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("`rules/`", "`rule/`", "names rule, which does not exist"),
        ("`rules/`", "`rules/some.py`", "names rules/some.py, which does not exist"),
        ("`rules/`", "`rules/a*.wgsl`", "names rules/a*.wgsl, which does not exist"),
        ("`rules/`", "`graph/thin`", "names graph/thin, which does not exist"),
        ("`tests/`", "`tests/store`", "names tests/store, which does not exist"),
        ("_store.reading", "_store.writing", "names rdrr_store.writing, which does not exist"),
        ("  build.py", "  lower.py", "names graph/lower.py, which does not exist"),
        ("  build.py", "  reading.py", "names graph/reading.py, which does not exist"),
        ("cache.py", "caches.py", "names caches.py, which does not exist"),
        ("and sparse", "", "does not name the folder store/rdrr_store/graph/sparse"),
        ("dense\n", "\n", "does not name the folder store/rdrr_store/graph/dense"),
    ],
)
def test_a_name_that_does_not_exist_and_a_package_left_out_are_reported(
    component, before, after, fault
):
    assert before in TEXT
    assert readme_faults(TEXT.replace(before, after), component) == [fault]


def test_a_new_package_is_reported_until_the_readme_names_it(component):
    (component / "rdrr_store/remote").mkdir()
    assert readme_faults(TEXT, component) == []
    (component / "rdrr_store/remote/web.py").touch()
    assert readme_faults(TEXT, component) == ["does not name the folder store/rdrr_store/remote"]
    assert readme_faults(TEXT + "\n`remote/web.py` fetches.", component) == []
