"""People talk with a model on the page, in Debian's Chromium, through the API of a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest
from support.chromium import NOT_INSTALLED, find_chromium
from support.chromium_page import Chromium, Page, open_chromium
from support.page_server import FENCED, MODEL, SCRIPT, PageServer, page_server

pytestmark = pytest.mark.skipif(find_chromium() is None, reason=NOT_INSTALLED)

LAST = ".message.assistant:last-child"
IDLE = "!document.querySelector('#send').hidden && !document.querySelector('#send').disabled"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    with open_chromium() as opened:
        yield opened


@pytest.fixture
def server() -> Iterator[PageServer]:
    with page_server() as running:
        yield running


def opened(chromium: Chromium, server: PageServer, **options: Any) -> Page:
    page = chromium.page(server.url, **options)
    page.wait(IDLE)
    return page


def ask(page: Page, text: str) -> None:
    page.type("#text", text)
    page.press("Enter")


def answer(page: Page, text: str) -> str:
    ask(page, text)
    page.wait(f"document.querySelector('{LAST} .stats')?.textContent && {IDLE}")
    return page.text(f"{LAST} > .content")


def test_a_conversation_is_kept_over_a_reload_and_sent_whole(chromium, server):
    page = opened(chromium, server)
    assert page.text("#model") == MODEL
    assert answer(page, "hello") == "You said: hello"
    assert page.text("#used-text") == "24 of 4,096"
    page.reload()
    page.wait(IDLE)
    assert page.text(f"{LAST} > .content") == "You said: hello"
    answer(page, "more")
    roles = [(message["role"], message["content"]) for message in server.requests[-1]["messages"]]
    assert roles == [("user", "hello"), ("assistant", "You said: hello"), ("user", "more")]


def test_conversations_can_be_begun_chosen_and_deleted(chromium, server):
    page = opened(chromium, server)
    titles = "[...document.querySelectorAll('#conversations button:first-child')].map(b => b.title)"
    answer(page, "one")
    page.click("#new")
    assert page.evaluate("document.querySelectorAll('.message').length") == 0
    answer(page, "<b>two</b>")
    assert page.evaluate(titles) == ["<b>two</b>", "one"]
    page.click("#conversations li:last-child button")
    assert page.text(f"{LAST} > .content") == "You said: one"
    for agreed, left in (("false", 2), ("true", 1)):
        page.evaluate(f"window.confirm = () => {agreed}")
        page.click("#conversations li:last-child button:last-child")
        assert len(page.evaluate(titles)) == left
    assert page.text(f"{LAST} > .content") == "You said: <b>two</b>"


def test_text_of_a_model_is_never_html(chromium, server):
    page = opened(chromium, server)
    assert answer(page, "script") == SCRIPT
    assert page.evaluate("document.title") == f"{MODEL} · rdrr"
    assert page.evaluate("document.querySelectorAll('.content :is(script, b)').length") == 0
    answer(page, "code")
    assert page.text(f"{LAST} pre code") == "print('<i>')"
    assert page.text(f"{LAST} strong") == "really"
    assert FENCED.startswith(page.text(f"{LAST} .prose"))


def test_an_answer_can_be_stopped_and_the_server_learns_it(chromium, server):
    page = opened(chromium, server)
    ask(page, "slow")
    page.wait(f"document.querySelector('{LAST} > .content')?.textContent.includes('again again')")
    assert page.evaluate("document.querySelector('#log').ariaBusy") == "true"
    page.press("Escape")
    page.wait(IDLE)
    assert page.text(f"{LAST} .note") == "Stopped."
    assert server.gone.wait(30)
    assert page.evaluate("document.querySelector('#log').ariaBusy") == "false"


def test_an_answer_can_be_had_again_with_other_settings(chromium, server):
    page = opened(chromium, server)
    answer(page, "hello")
    page.click("#open-settings")
    page.evaluate("document.querySelector('[name=temperature]').value = '0'")
    page.evaluate("document.querySelector('[name=system]').value = 'Be brief.'")
    page.click("#settings .primary")
    page.wait(IDLE)
    page.evaluate("[...document.querySelectorAll('.actions button')].at(-1).click()")
    page.wait(f"document.querySelectorAll('.message').length === 2 && {IDLE}")
    page.wait("document.querySelector('.stats').textContent !== null")
    first, second = server.requests[-2:]
    assert (first["temperature"], second["temperature"]) == (0.7, 0)
    assert [message["role"] for message in second["messages"]] == ["system", "user"]
    page.evaluate("localStorage.clear()")


def test_a_server_that_dies_in_mid_stream_leaves_what_it_said_and_a_reason(chromium, server):
    page = opened(chromium, server)
    ask(page, "die")
    page.wait(f"document.querySelector('{LAST} .note')?.textContent && {IDLE}")
    assert page.text(f"{LAST} > .content") == "You said: die"
    assert "connection to the server was lost" in page.text(f"{LAST} .note")
    page.reload()
    page.wait(IDLE)
    assert page.text(f"{LAST} > .content") == "You said: die"
    assert answer(page, "and now?") == "You said: and now?"


def test_what_the_server_refuses_is_told_and_the_conversation_goes_on(chromium, server):
    page = opened(chromium, server)
    ask(page, "refuse")
    page.wait(f"document.querySelector('{LAST} .note')?.textContent && {IDLE}")
    assert "5,120 tokens" in page.text(f"{LAST} .note")
    assert answer(page, "shorter") == "You said: shorter"


def test_a_model_without_a_template_continues_a_text(chromium, server):
    server.chats = False
    page = opened(chromium, server)
    page.type("#draft-text", "Once")
    page.click("#send")
    page.wait(f"!document.querySelector('#again').hidden && {IDLE}")
    value = "document.querySelector('#draft-text').value"
    assert page.evaluate(value) == "OnceYou said: Once"
    page.click("#again")
    page.wait(f"{len(server.requests)} < 9 && {IDLE}")
    page.wait(f"{value} === 'OnceYou said: Once'")
    assert [request["prompt"] for request in server.requests] == ["Once", "Once"]


CHOOSE = """(async () => {
  const canvas = Object.assign(document.createElement('canvas'), {width: %d, height: 30});
  canvas.getContext('2d').fillRect(0, 0, 9, 9);
  const blob = await new Promise((done) => canvas.toBlob(done));
  const chosen = new DataTransfer();
  chosen.items.add(new File([blob], 'one.png', {type: 'image/png'}));
  chosen.items.add(new File(['no picture'], 'two.png', {type: 'image/png'}));
  const field = document.querySelector('#pictures');
  field.files = chosen.files;
  field.onchange();
})()"""
PICTURES = "document.querySelectorAll('#chosen img').length"


def test_pictures_go_with_a_message_where_the_model_sees(chromium, server):
    assert opened(chromium, server).evaluate("document.querySelector('#add-picture').hidden")
    server.sees = True
    page = opened(chromium, server)
    page.evaluate(CHOOSE % 20)
    page.wait(f"{PICTURES} === 1")
    page.wait("!document.querySelector('#notice').hidden")
    assert page.text("#notice-text") == "two.png is no picture that this browser reads."
    page.click("#chosen button")
    page.evaluate(CHOOSE % 2000)  # wider than what is kept of a picture
    page.wait(f"{PICTURES} === 1")
    answer(page, "look")
    (message,) = server.requests[-1]["messages"]
    image, said = message["content"]
    assert image["type"] == "image_url"
    assert image["image_url"]["url"].startswith("data:image/webp;base64,")
    assert said == {"type": "text", "text": "look"}
    page.reload()
    page.wait(IDLE)
    sizes = "[...document.querySelectorAll('.message.user img')].map((i) => i.naturalWidth)"
    page.wait(f"{sizes}[0] > 0")
    assert page.evaluate(sizes) == [1024]
    assert page.evaluate(PICTURES) == 0
    page.evaluate("localStorage.clear()")


MANIFEST = json.dumps(
    {
        "modelId": "small",
        "hashAlgorithm": "sha256",
        "shards": [{"filename": "shard_00000.bin", "size": 5_000_000, "hash": "0" * 64}],
        "tensors": {},
    }
).encode()
INDEX = {
    "format": "rdrr-web",
    "version": 1,
    "model": "small",
    "package": "../",
    "manifest": sha256(MANIFEST).hexdigest(),
    "size": 5_000_000,
    "text": {},
    "programs": [],
}
NO_WEBGPU = "Object.defineProperty(Navigator.prototype, 'gpu', {get: () => undefined})"


def test_a_browser_without_webgpu_says_what_to_do_and_the_server_still_answers(chromium, server):
    server.extra["/package/web/index.json"] = json.dumps(INDEX).encode()
    server.extra["/package/manifest.json"] = MANIFEST
    page = opened(chromium, server, before=NO_WEBGPU)
    page.click("input[value=browser]")
    page.wait("!document.querySelector('#notice').hidden")
    assert "WebGPU is missing in Chrome" in page.text("#notice-text")
    assert page.evaluate("document.querySelector('#send').disabled")
    page.click("input[value=server]")
    page.wait(IDLE)
    assert answer(page, "hello") == "You said: hello"


def test_a_server_without_files_for_browsers_offers_no_choice(chromium, server):
    assert opened(chromium, server).evaluate("document.querySelector('#engines').hidden")
    server.extra["/package/web/index.json"] = json.dumps(INDEX).encode()
    assert not opened(chromium, server).evaluate("document.querySelector('#engines').hidden")


def test_one_of_several_models_can_be_chosen(chromium, server):
    assert opened(chromium, server).evaluate("document.querySelector('#choice').hidden")
    server.models = [MODEL, "another"]
    page = opened(chromium, server)
    page.evaluate("document.querySelector('#models').value = 'another'")
    page.evaluate("document.querySelector('#models').dispatchEvent(new Event('change'))")
    page.wait(f"document.querySelector('#model').textContent === 'another' && {IDLE}")
    answer(page, "hello")
    assert server.requests[-1]["model"] == "another"
    assert page.text("#used-text").endswith(" of 4,097")


def test_a_narrow_window_shows_all_without_scrolling_sideways(chromium, server):
    page = opened(chromium, server, width=400)
    answer(page, "w" * 200)
    answer(page, "code")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.evaluate("document.querySelector('#side').getBoundingClientRect().right") <= 0
    page.click("#menu")
    page.wait("document.querySelector('#side').getBoundingClientRect().left === 0")
    page.press("Escape")
    page.wait("document.querySelector('#side').getBoundingClientRect().right <= 0")


def test_every_control_has_a_name(chromium, server):
    page = opened(chromium, server)
    answer(page, "hello")
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    named = {"button", "textbox", "radio", "combobox", "spinbutton", "log", "meter", "article"}
    roles = [node for node in tree if node.get("role", {}).get("value") in named]
    assert {"button", "textbox", "log", "article"} <= {node["role"]["value"] for node in roles}
    assert [node for node in roles if not node.get("name", {}).get("value")] == []


def test_the_page_opens_without_the_server_after_the_first_time(chromium):
    with page_server() as server:
        page = opened(chromium, server)
        page.wait("navigator.serviceWorker.ready.then(() => caches.has('rdrr-page'))")
        page.reload()
        page.wait(IDLE)
        answer(page, "hello")
    page.reload()
    page.wait("document.querySelector('#notice-text').textContent.includes('no model here')")
    assert page.text(f"{LAST} > .content") == "You said: hello"
