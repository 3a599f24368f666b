"""The page's routes, and the page itself in headless Chromium."""

import time
from urllib.parse import urlencode

import numpy as np
import pytest

import elmo_fast
from elmo_fast import ConfigurationError
from elmo_fast.embed.api import LoadedElmo
from elmo_fast.explore.comparison import compare
from elmo_fast.explore.contexts import ContextIndex
from tests.support.browser import chromium
from tests.support.files import TINY
from tests.support.models import bilm
from tests.support.serving import Running, httpx, router

pytestmark = pytest.mark.long

CORPUS = ["the play began", "They Play <b>outside</b> &amp; play", "no such word", "an apple and a play", "apple pie"]
FIRST, SECOND = "I ate an apple", "Apple sold <i>a</i> phone today"
WEIGHTS = [1.5, -2.0, 0.3]


@pytest.fixture(scope="module")
def elmo():
    return LoadedElmo(bilm(elmo_fast.Options.from_dict(TINY), state="warm"))


@pytest.fixture(scope="module")
def index(elmo):
    return ContextIndex.build(elmo, CORPUS, layers="top")


@pytest.fixture(scope="module")
def server(index):
    with Running(bilm(elmo_fast.Options.from_dict(TINY), state="warm"), index=index) as running:
        yield running


@pytest.fixture(scope="module")
def address(server):
    return f"{server.url}/"


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server.url) as opened:
        yield opened


def mixture(raw):
    powers = np.exp(np.array(raw) - max(raw))
    return powers / powers.sum()


def test_products_give_the_cosines_of_every_mixture(client, elmo):
    answer = client.post("/v1/compare", json={"first": FIRST, "second": SECOND}).json()
    expected = compare(elmo, FIRST, SECOND)
    assert (answer["first_tokens"], answer["second_tokens"]) == (FIRST.split(), SECOND.split())
    cross, first, second = (np.array(answer[name]) for name in ("cross", "first", "second"))
    for w in (mixture([0, 0, 0]), mixture(WEIGHTS), np.array([0, 1, 0])):
        norms = np.sqrt(np.einsum("k,klt,l->t", w, first, w)[:, None] * np.einsum("k,klt,l->t", w, second, w))
        np.testing.assert_allclose(np.einsum("k,klst,l->st", w, cross, w) / norms, expected.mixed(w), atol=1e-6)
    mixed, first, second = np.array(answer["means"]).mean((1, 2))
    assert mixed / np.sqrt(first * second) == pytest.approx(elmo.similarity(FIRST, SECOND), abs=1e-6)


def test_raw_sentences_are_tokenized(client, elmo):
    answer = client.post("/v1/compare", json={"first": "They don't play.", "second": "a play ."}).json()
    assert [answer[f"{name}_tokens"] for name in ("first", "second")] == [
        ["They", "do", "n't", "play", "."], ["a", "play", "."]]
    assert client.get("/v1/page").json()["index"] == {"tokens": 18, "texts": 5, "layers": "top layer"}


@pytest.mark.parametrize("any_word", [False, True])
def test_nearest_contexts_of_a_word(client, elmo, index, any_word):
    tokens = FIRST.split()
    answer = client.post("/v1/nearest", json={"tokens": tokens, "position": 3, "any_word": any_word, "top": 4}).json()
    among = None if any_word else index.occurrences("apple")
    expected = index.nearest(elmo.embed([tokens], "top")[0][3], 4, among=among)
    assert answer["occurrences"] == 2 and len(answer["neighbours"]) == (4 if any_word else 2)
    for context, near in zip(answer["neighbours"], expected, strict=True):
        assert context["similarity"] == pytest.approx(near.similarity, abs=1e-6) and context["line"] == near.text + 1
        assert context["tokens"] == CORPUS[near.text].split() and context["word"] == context["tokens"][near.position]


def test_a_word_outside_the_corpus(client):
    answer = client.post("/v1/nearest", json={"tokens": ["unseen"], "position": 0})
    assert answer.json() == {"occurrences": 0, "neighbours": []}


@pytest.mark.parametrize("route, body, status, words", [
    ("compare", {"first": "", "second": "a"}, 422, "The first sentence has 0 tokens; expected 1 to 60."),
    ("compare", {"first": "a", "second": "a " * 61}, 422, "The second sentence has 61 tokens; expected 1 to 60."),
    ("compare", {"first": "a"}, 422, "second"), ("compare", {"first": 3, "second": "a"}, 422, "first"),
    ("compare", {"first": "a", "second": "b" * 1001}, 413, "second: expected at most 1,000 characters"),
    ("nearest", {"tokens": ["a"], "position": 1}, 422, "position: expected a number below 1, got 1"),
    ("nearest", {"tokens": [], "position": 0}, 422, "tokens"),
    ("nearest", {"tokens": ["b" * 1001], "position": 0}, 413, "tokens: expected at most 1,000 characters"),
    ("nearest", {"tokens": ["a"] * 61, "position": 0}, 422, "tokens"),
])
def test_refused_requests(client, route, body, status, words):
    answer = client.post(f"/v1/{route}", json=body)
    assert answer.status_code == status and words in answer.text


def test_the_page_in_another_application_without_an_index(elmo):
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    app = FastAPI()
    app.include_router(router(elmo))
    client = TestClient(app)
    assert "Words in context" in client.get("/").text
    assert client.get("/v1/page").json()["index"] is None
    answer = client.post("/v1/nearest", json={"tokens": ["a"], "position": 0})
    assert answer.status_code == 404 and "--index" in answer.text


def test_an_index_from_a_file(elmo, index, tmp_path):
    index.save(tmp_path / "index.h5")
    assert router(elmo, tmp_path / "index.h5").routes
    (tmp_path / "text.txt").write_text("a text")
    for name in ("none.h5", "text.txt"):
        with pytest.raises(ConfigurationError, match=f"index: expected a file of vectors.* got .*{name}"):
            router(elmo, tmp_path / name)
    with pytest.raises(ConfigurationError, match="expected vectors of this model"):
        router(LoadedElmo(bilm(elmo_fast.Options.from_dict(TINY), seed=1, state="warm")), index)
    with pytest.raises(ConfigurationError, match="expected vectors of the server's state warm, got zero"):
        router(elmo, ContextIndex.build(elmo, CORPUS, state="zero"))


def test_the_page_loads_nothing_from_other_hosts(client):
    answer = client.get("/")
    assert answer.status_code == 200 and "default-src 'none'" in answer.headers["content-security-policy"]
    assert "https://" not in answer.text and "innerHTML" not in answer.text and " src=" not in answer.text


def open_page(browser, address, **state):
    browser.get("about:blank")  # a new fragment alone does not reload the page
    browser.get(f"{address}#{urlencode(state)}" if state else address)
    wait(browser, "return document.querySelectorAll('#mixture td[data-row]').length > 0 || "
         "document.getElementById('error').textContent !== ''")


def wait(browser, script):
    until = time.monotonic() + 60
    while not browser.execute_script(script):
        assert time.monotonic() < until, script
        time.sleep(0.05)


def cells(browser, place):
    """The numbers of a heat map: [rows, columns] as computed and as shown."""
    rows = browser.execute_script(
        "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map(row => [...row.querySelectorAll('td')]"
        ".map(cell => [Number(cell.dataset.cosine), cell.textContent]))", place)
    return (np.array([[value for value, _ in row] for row in rows]),
            np.array([[float(text.replace("\u2212", "-")) for _, text in row] for row in rows]))


def set_slider(browser, number, value):
    browser.execute_script("const slider = document.getElementById('w' + arguments[0]); slider.value = arguments[1];"
                           "slider.dispatchEvent(new Event('input'))", number, value)


def assert_map(browser, place, expected):
    computed, displayed = cells(browser, place)
    np.testing.assert_allclose(computed, expected, atol=1e-6)
    np.testing.assert_allclose(displayed, expected, atol=5.1e-3)


@pytest.fixture(scope="module")
def browser():
    with chromium(1280, 900) as opened:
        yield opened


def test_typed_sentences_become_maps(browser, address, elmo):
    open_page(browser, address)
    for name, text in (("first", FIRST), ("second", SECOND)):
        field = browser.find_element("id", name)
        field.clear()
        field.send_keys(text)
    field.send_keys("\n")
    wait(browser, "return document.querySelectorAll('#mixture td[data-row]').length === 20")
    expected = compare(elmo, FIRST, SECOND)
    assert_map(browser, "#mixture", expected.mixed([1 / 3] * 3))
    for layer, cosines in enumerate(expected.layers()):
        assert_map(browser, f"#layers figure:nth-child({layer + 1})", cosines)
    heads = browser.execute_script("return [...document.querySelectorAll('#mixture th')].map(th => th.textContent)")
    assert heads == [*SECOND.split(), *FIRST.split()]
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 1280
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_sliders_mix_the_layers_exactly(browser, address, elmo):
    open_page(browser, address, a=FIRST, b=SECOND)
    for number, value in enumerate(WEIGHTS):
        set_slider(browser, number, value)
    assert_map(browser, "#mixture", compare(elmo, FIRST, SECOND).mixed(mixture(WEIGHTS)))
    outputs = browser.execute_script("return [...document.querySelectorAll('#weights output')].map(o => o.textContent)")
    np.testing.assert_allclose([float(text.split()[0]) / 100 for text in outputs], mixture(WEIGHTS), atol=5.1e-3)
    browser.execute_script("arguments[0].click()", browser.find_element("id", "equal"))
    assert_map(browser, "#mixture", compare(elmo, FIRST, SECOND).mixed([1, 1, 1]))


def test_the_address_keeps_the_state(browser, address, elmo):
    open_page(browser, address, a=FIRST, b=SECOND)
    set_slider(browser, 1, 2.5)
    browser.execute_script("document.querySelector('#chips-a [data-token=a3]').click()")
    wait(browser, "return document.querySelectorAll('#found li').length === 2")
    url = browser.current_url
    browser.get("about:blank")
    browser.get(url)
    wait(browser, "return document.querySelectorAll('#found li').length === 2")
    assert_map(browser, "#mixture", compare(elmo, FIRST, SECOND).mixed(mixture([0, 2.5, 0])))
    assert browser.find_element("id", "second").get_attribute("value") == SECOND
    pressed = browser.execute_script(
        "return [...document.querySelectorAll('#chips-a [aria-pressed=true]')].map(button => button.textContent)")
    assert pressed == ["apple"]


def test_a_clicked_word_shows_its_nearest_contexts(browser, address, elmo, index):
    sentence = "we play"
    open_page(browser, address, a=sentence, b=SECOND)
    browser.execute_script("document.querySelector('#mixture [data-token=a1]').click()")
    wait(browser, "return document.querySelectorAll('#found li').length > 0")
    near = index.nearest(elmo.embed([sentence], "top")[0][1], among=index.occurrences("play"))
    items = browser.execute_script("return [...document.querySelectorAll('#found li')].map(item => "
                                   "[Number(item.dataset.similarity), item.querySelector('p').textContent])")
    np.testing.assert_allclose([value for value, _ in items], [context.similarity for context in near], atol=1e-6)
    assert [text.split() for _, text in items] == [CORPUS[context.text].split() for context in near]
    assert "“play” occurs 4 times" in browser.find_element("id", "searched").text
    browser.execute_script("document.getElementById('any').click()")
    wait(browser, "return document.querySelectorAll('#found li').length === 10")
    browser.execute_script("document.querySelector('#found li button').click()")
    wait(browser, "return !document.getElementById('result').classList.contains('busy')")
    assert browser.find_element("id", "second").get_attribute("value") in CORPUS


def test_errors_are_in_words_and_the_next_comparison_clears_them(browser, address):
    open_page(browser, address, a="", b="two words")
    assert browser.find_element("id", "error").text == "The first sentence has 0 tokens; expected 1 to 60."
    browser.find_element("id", "first").send_keys("one\n")
    wait(browser, "return document.querySelectorAll('#mixture td[data-row]').length === 2")
    assert browser.find_element("id", "error").text == ""
    browser.execute_script("window.fetch = () => Promise.reject(new TypeError('offline'))")
    browser.find_element("id", "first").send_keys(" more\n")
    wait(browser, "return document.getElementById('error').textContent === 'The server cannot be reached.'")


def test_arrow_keys_lead_through_a_map(browser, address, elmo):
    open_page(browser, address, a=FIRST, b=SECOND)
    stops = browser.find_elements("css selector", "#mixture td[tabindex='0']")
    assert len(stops) == 1
    browser.execute_script("arguments[0].focus()", stops[0])
    for key in ("\ue015", "\ue014", "\ue014", "\ue012", "\ue013", "\ue013"):  # down, right, right, left, up, up
        browser.switch_to.active_element.send_keys(key)
    assert browser.switch_to.active_element.get_attribute("data-column") == "1"
    assert browser.switch_to.active_element.get_attribute("data-row") == "0"
    text = browser.find_element("id", "pair").text
    expected = compare(elmo, FIRST, SECOND)
    numbers = [f"{value:z.3f}".replace("-", "\u2212")
               for value in (expected.mixed([1, 1, 1])[0, 1], *expected.layers()[:, 0, 1])]
    assert text.split("\n")[0] == "I · sold" and [line for line in text.split("\n") if line in numbers] == numbers


_EDGES = ("return [...document.querySelectorAll(arguments[0])].map(element => "
          "(({ left, right }) => [left, right])(element.getBoundingClientRect()))")


def test_tokens_of_every_script_stand_apart_in_their_order(browser, address):
    open_page(browser, address, a="\u05d0\u05d1\u05d2 \u05d3 ( \u05d4 ) 12 .", b="\u0645\u0631 \u0639 x")
    edges = np.array(browser.execute_script(_EDGES, "#tokens .tokens span"))
    assert len(edges) == 10 and (edges[1:, 0] > edges[:-1, 1] + 4).all()


@pytest.mark.parametrize("second", ["a b", SECOND, " ".join(["word"] * 50)])
def test_the_map_fills_its_room_beside_the_panel(browser, address, second):
    """The panel is at the map's side, and a map that is too wide for the page's remaining room scrolls inside it."""
    open_page(browser, address, a=FIRST, b=second)
    wait(browser, f"return document.querySelectorAll('#mixture td[data-row]').length === {4 * len(second.split())}")
    (_, end), (panel, panel_end), (_, page) = (browser.execute_script(_EDGES, place)[0]
                                               for place in ("#mixture", ".side", "#form"))
    assert panel - end == pytest.approx(40, abs=1) and panel_end < page + 1
    (_, table), = browser.execute_script(_EDGES, "#mixture table")
    assert table == pytest.approx(end, abs=1) or len(second.split()) > 40


@pytest.mark.parametrize("width", [320, 380])
def test_a_phone_needs_no_scrolling_sideways(address, width):
    with chromium(width, 700) as phone:
        open_page(phone, address, a=" ".join(["word"] * 30), b="Extraordinarily" * 9 + " play " + "long " * 40, t="b1")
        wait(phone, "return document.querySelectorAll('#found li').length > 0")
        assert phone.execute_script("return document.documentElement.scrollWidth") <= width
        open_page(phone, address, a=FIRST, b=SECOND)
        inside = phone.execute_script("const box = document.getElementById('mixture');"
                                      "return box.scrollWidth <= box.clientWidth")
        assert inside and phone.execute_script("return document.documentElement.scrollWidth") <= width
