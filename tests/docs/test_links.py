"""Links of pages lead to files that are kept in the repository, where most readers follow them."""

from __future__ import annotations

import re

import pytest
from support.snippets import PAGES, ROOT

GENERATED = {ROOT / "docs/reference" / name for name in ("commands.md", "manifest.md", "python.md")}
"""Pages that `make docs` writes; only the first page of the site links to them, and says so."""


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in GENERATED], ids=lambda page: page.name
)
def test_relative_links_lead_to_files_of_the_repository(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" in target:
            continue
        path = (page.parent / target).resolve()
        if path in GENERATED:
            assert page == ROOT / "docs/index.md", target
        else:
            assert path.exists(), target
