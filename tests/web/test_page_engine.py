"""The page runs a package in the browser itself, from files that any static host serves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import rdrr
from support.chromium import NOT_INSTALLED, find_chromium
from support.chromium_page import open_chromium
from support.commands import EXAMPLE
from support.random_models import save_model
from support.range_server import QuietHandler, served

# Compiling the shaders of a model takes SwiftShader long.
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(find_chromium() is None, reason=NOT_INSTALLED),
]
IDLE = "!document.querySelector('#send').hidden && !document.querySelector('#send').disabled"
ANSWER = ".message.assistant:last-child"


@pytest.fixture
def site(tmp_path) -> Iterator[str]:
    rdrr.convert(save_model("qwen3", tmp_path / "source", tokenizer_from=EXAMPLE), tmp_path / "m")
    rdrr.web(tmp_path / "m", page=True, max_context=2048)
    with served(tmp_path / "m", QuietHandler) as url:
        yield f"{url}/web/"


def test_a_model_is_loaded_when_people_ask_and_answers_in_the_browser(site):
    with open_chromium() as chromium:
        page = chromium.page(site)
        page.wait("!document.querySelector('#load-start').closest('[hidden]')")
        assert "once; it is kept in this browser" in page.text("#load-facts")
        page.click("#load-start")
        page.wait(IDLE, seconds=600)
        assert "in this browser" in page.text("#where")
        page.click("#open-settings")
        page.evaluate("document.querySelector('[name=max_tokens]').value = '6'")
        page.click("#settings .primary")
        page.type("#text", "hello")
        page.press("Enter")
        page.wait(f"document.querySelector('{ANSWER} .stats')?.textContent && {IDLE}", seconds=600)
        assert "6 tokens" in page.text(f"{ANSWER} .stats")
        assert page.text("#used-text").endswith(" of 2,048")
        page.reload()
        page.wait("!document.querySelector('#load').hidden")
        assert "downloaded already" in page.text("#load-facts")
