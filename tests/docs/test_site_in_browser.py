"""A browser opens every page of the built documentation."""

import json
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import sync_playwright

BROWSER = shutil.which("chromium")

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no executable `chromium`")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address(site):
    """Where the site is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site[0])) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield started
        started.close()


def test_every_page_loads_whole(site, address, browser):
    """No error on the console, no failed request, none to another host, no picture that is not there."""
    page, wrong = browser.new_page(), []
    page.on("console", lambda message: message.type != "error" or wrong.append((page.url, message.text)))
    page.on("pageerror", lambda error: wrong.append((page.url, str(error))))
    page.on("response", lambda response: response.status < 400 or wrong.append((page.url, response.url)))
    # every page would read the index of the search anew, which takes longer than all the rest
    empty_index = json.loads((site[0] / "search/search_index.json").read_text(encoding="utf-8")) | {"docs": []}
    page.route("**/search_index.json", lambda route: route.fulfill(json=empty_index))
    page.on("request", lambda one: one.url.startswith((address, "data:")) or wrong.append((page.url, one.url)))
    pages = [path.relative_to(site[0]).parent.as_posix() for path in site[0].rglob("index.html")]
    assert len(pages) > 100
    for place in pages:
        page.goto(f"{address}/{place}/", wait_until="load")
        missing = "[...document.images].filter(one => !one.naturalWidth).map(one => one.src)"
        wrong += [(page.url, picture) for picture in page.evaluate(missing)]
    page.close()
    assert wrong == []


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize(
    "place", ["", "quickstart/", "paper_index/", "results/fedem-table2/", "reference/algorithms/fedem/"]
)
def test_nothing_sticks_out(address, browser, place, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(f"{address}/{place}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_search_finds_an_algorithm(address, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}/")
    page.locator("input.md-search__input").fill("FedeRiCo")
    first = page.locator("a.md-search-result__link").first
    first.wait_for()
    assert "federico" in first.get_attribute("href").lower()
    page.close()


def test_a_click_on_a_heading_sorts_a_table(address, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}/results/synthetic/")
    rows = "[...document.querySelector('table').querySelectorAll('tbody tr')]"
    column = f"{rows}.map(one => parseFloat(one.cells[6].textContent))"
    for ascending in (True, False):
        page.locator("table").first.locator("thead th").nth(6).click()
        assert page.evaluate(column) == sorted(page.evaluate(column), reverse=not ascending)
    page.close()
