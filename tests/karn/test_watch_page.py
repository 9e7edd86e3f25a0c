"""The live page in a real browser: Chromium, as Debian packages it. Where there is none, these tests are skipped."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect, sync_playwright

from esper.karn.watch.server import WatchServer
from esper.tolaria.storage.runs import RunFolder
from tests.karn.watch_runs import Story

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt install chromium, and the page is tested in it")

WAIT = 20_000
"""Milliseconds that a browser may take, at most; nothing is asserted about how long it does take."""
EVIL = "<img src=x onerror=\"document.title='taken'\">"
Open = Callable[..., "Page"]
expect.set_options(timeout=WAIT)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "runs"
    Story(folder / "done").begin().run(8).flag().finish()
    Story(folder / "many", hosts=40).begin().run(8).finish()
    evil = EVIL.replace("/", "")
    Story(folder / evil, task=EVIL, blueprint=EVIL).begin().run(8).flag().finish()
    return folder


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[WatchServer]:
    made = WatchServer(root)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.should_exit = True
    thread.join(timeout=10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Browser, server: WatchServer) -> Iterator[Open]:
    """Opens a page of the server; in the end, nothing may have gone wrong on any."""
    contexts: list[Any] = []
    faults: list[str] = []

    def go(where: str = "#/", *, width: int = 1300, dark: bool = False, vanishes: bool = False) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT)
        # Chromium tells of every 404, and a view may be asked for in the instant in which its run vanishes.
        told = [] if vanishes else faults
        page.on("console", lambda message: told.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(server.link.url.partition("#")[0] + where)
        page.wait_for_selector("h1")
        return page

    yield go
    for context in contexts:
        context.close()
    assert faults == []


def painted(page: Page) -> int:
    """Charts on which something is drawn, in more than one colour."""
    script = """() => [...document.querySelectorAll("canvas")].filter((canvas) => {
      const data = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
      return new Set(data).size > 3;
    }).length"""
    return int(page.evaluate(script))


def test_all_runs_are_shown_and_open_by_keyboard(open_page: Open):
    page = open_page()
    page.wait_for_selector(".card .spark")
    assert "token" not in page.url
    assert "token" not in page.evaluate("document.cookie")
    assert {"done", "many"} <= set(page.locator(".card .name").all_inner_texts())
    card = page.locator(".card", has_text="done")
    assert "1 red flag" in card.inner_text()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    for _ in range(20):
        page.keyboard.press("Tab")
        if "done" in page.evaluate("document.activeElement.innerText"):
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:text-is('done')")
    assert page.url.endswith("#/run/done")
    page.go_back()
    page.wait_for_selector("h1:text-is('Runs')")


def test_a_run_a_host_and_a_decision_are_rendered_with_data(open_page: Open):
    page = open_page("#/run/done")
    page.wait_for_selector("#lives .life")
    page.wait_for_selector("#actions canvas")
    page.wait_for_selector("#rewards canvas")
    page.wait_for_selector(".feed li")
    assert "reward hacking" in page.locator(".flag").inner_text()
    assert page.locator(".card.host").count() == 2
    assert page.locator(".card.host .chip.stage-fossilized").count() == 2
    assert page.locator(".card.host .spark .twin").count() == 2
    assert "conv_light" in page.locator("#blueprints tbody").inner_text()
    assert painted(page) == page.locator("canvas").count() > 1
    page.locator("#actions details summary").first.click()
    assert "germinate" in page.locator("#actions table").first.inner_text()
    page.select_option("#feed select", "gate_checked")
    expect(page.locator(".feed li")).to_have_count(2)
    page.fill("#feed input[type=search]", "no such words")
    page.wait_for_selector("text=No event is like that.")

    page.locator(".card.host").first.click()
    page.wait_for_selector("#network svg")
    assert page.locator("#network [data-slot=r0c0]").get_attribute("data-stage") == "FOSSILIZED"
    slider = page.locator("#network input[type=range]")
    slider.focus()
    page.keyboard.press("Home")
    assert page.locator("#network [data-slot=r0c0]").get_attribute("data-stage") == "DORMANT"
    opacity = []
    for _ in range(5):
        page.keyboard.press("ArrowRight")
        body = page.locator("#network .seed .body")
        opacity.append(float(body.get_attribute("fill-opacity") or 0) if body.count() else 0.0)
    assert page.locator("#network [data-slot=r0c0]").get_attribute("data-stage") == "BLENDING"
    assert opacity == sorted(opacity)
    assert opacity[-1] > opacity[0]
    assert "epoch 5 of 8" in page.locator("#network output").inner_text()
    page.keyboard.press("Home")
    page.locator("#network button").click()  # plays to the end
    expect(page.locator("#network output")).to_contain_text("epoch 8 of 8")

    page.locator("#decisions a", has_text="germinate").click()
    page.wait_for_selector("#legal .bars")
    assert "✓ GERMINATE" in page.locator("#legal").inner_text()
    assert "75.0 %" in page.locator("#legal").inner_text()
    assert "was fossilised after epoch 7" in page.locator("#after").inner_text()
    assert "val accuracy" in page.locator("#seen").inner_text()


def test_many_hosts_are_a_distribution_and_a_table_to_pick_from(open_page: Open):
    page = open_page("#/run/many")
    page.wait_for_selector("#hosts tbody tr")
    page.wait_for_selector("#hosts canvas")
    assert page.locator(".card.host").count() == 0
    page.locator("#hosts th button", has_text="val").click()
    values = [float(text) for text in page.locator("#hosts tbody tr td:nth-child(3)").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    page.fill("#hosts input[type=search]", "39")
    expect(page.locator("#hosts tbody tr")).to_have_count(1)
    assert page.locator("#lives .life").count() < 80
    page.locator("#hosts tbody a").click()
    page.wait_for_selector("h1:text-is('Host 39')")
    assert "--telemetry debug" in page.locator(".notice").inner_text()


def test_a_live_run_is_followed_without_reload_and_told_when_it_is_killed(open_page: Open, root: Path):
    program = "import sys\nfrom pathlib import Path\nfrom esper.tolaria.storage.runs import RunFolder\n"
    program += "run = RunFolder.open(Path(sys.argv[1]))\nprint('locked', flush=True)\nsys.stdin.read()"
    story = Story(root / "live").begin().run(1)
    process = subprocess.Popen([sys.executable, "-c", program, str(story.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        page = open_page("#/run/live", vanishes=True)
        page.evaluate("window.unchanged = true")
        page.wait_for_selector(".status.running")
        page.wait_for_selector(".chip.stage-germinated")
        for _ in range(3):
            story.run(1)
            page.wait_for_selector(f".feed li[data-seq='{story.seq - 1}']")
        page.wait_for_selector("text=4 of 8 epochs")
        page.wait_for_selector(".chip.stage-blending")
        numbers = [int(text) for text in page.locator(".feed li").evaluate_all("items => items.map((item) => item.dataset.seq)")]
        assert numbers == list(range(story.seq - 1, -1, -1))  # none missed, none doubled
        process.send_signal(signal.SIGKILL)
        process.wait()
        page.wait_for_selector(".status.interrupted")
        assert re.search(r"esper train --resume \S*live", page.locator(".notice.stopped code").inner_text())
        with RunFolder.open(story.path) as lock:
            page.wait_for_selector(".status.running")
            story.run(4).finish()
            lock.finish({"hosts": []})
        page.wait_for_selector(".status.finished")
        shutil.rmtree(story.path)
        page.wait_for_selector(".gone")
        assert page.locator("#hosts .card").count() == 2  # what was shown stays
        assert page.evaluate("window.unchanged")
        page.locator(".brand").click()
        page.wait_for_selector(".card >> text=done")
        assert page.locator(".card .name", has_text="live").count() == 0
    finally:
        process.kill()
        process.communicate()


def test_names_are_never_html(open_page: Open):
    name = EVIL.replace("/", "")
    page = open_page()
    page.wait_for_selector(f".card .name:has-text({name!r})")
    for where, there in (("", "#blueprints td"), ("/host/0", "#network .seed"), ("/host/0/decision/1", "#legal .bars")):
        page.evaluate("where => { location.hash = where; }", f"#/run/{quote(name, safe='')}{where}")
        page.wait_for_selector(there)
        page.wait_for_timeout(100)  # an image that was made would have failed to load by then
        assert page.locator("img").count() == 0
        assert page.title() != "taken"
        assert EVIL in page.locator("main").inner_text()


def test_a_phone_needs_no_scrolling_sideways_and_night_is_dark(open_page: Open):
    page = open_page(width=380, dark=True)
    places = {"#/": ".card .spark", "#/run/done": "#blueprints td", "#/run/many": "#hosts td", "#/run/done/host/0": "#decisions a"}
    for where, there in {**places, "#/run/done/host/0/decision/1": "#legal .bars"}.items():
        page.evaluate("where => { location.hash = where; }", where)
        page.wait_for_selector(there)
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, where

    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert background() == "rgb(22, 24, 27)"
    page.locator("#theme").click()
    assert background() == "rgb(255, 255, 255)"
    page.reload()
    page.wait_for_selector("h1")
    assert background() == "rgb(255, 255, 255)"


def test_an_address_that_leads_nowhere_says_so(open_page: Open, server: WatchServer, browser: Browser):
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.link.url.partition("?")[0])
    assert "Open the link that esper watch printed" in page.inner_text("body")
    page.goto(server.link.url.partition("#")[0] + "#/run/nothing/host/x")
    page.wait_for_selector(".notice.problem >> text=unknown run 'nothing'")
    context.close()
