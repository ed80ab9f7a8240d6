"""People talk with a served model on its page; tests/web/test_page.py has the rest of the page."""

from __future__ import annotations

import pytest
from support.chromium import NOT_INSTALLED, find_chromium
from support.chromium_page import open_chromium

ANSWER = ".message.assistant:last-child"
IDLE = "!document.querySelector('#send').hidden && !document.querySelector('#send').disabled"


@pytest.mark.skipif(find_chromium() is None, reason=NOT_INSTALLED)
def test_a_served_model_answers_on_its_page(server):
    with open_chromium() as chromium:
        page = chromium.page(f"http://127.0.0.1:{server.port}/")
        page.wait(IDLE)
        assert "on the server" in page.text("#where")
        page.click("#open-settings")
        page.evaluate("document.querySelector('[name=max_tokens]').value = '8'")
        page.click("#settings .primary")
        for turn in (1, 2):
            page.type("#text", f"hello {turn}")
            page.press("Enter")
            page.wait(f"document.querySelector('{ANSWER} .stats')?.textContent && {IDLE}")
            assert page.text(f"{ANSWER} .stats").startswith("8 tokens")
            assert page.evaluate("document.querySelectorAll('.message').length") == 2 * turn
        assert " of " in page.text("#used-text")
