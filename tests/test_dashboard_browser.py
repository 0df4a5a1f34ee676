"""The dashboard in a real browser, as a process of its own serves it: Debian's Chromium, headless."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from s3queue import LocalBackend, PermanentError, QueueOptions, WorkQueue

T = TypeVar("T")

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
ATTACK = "<script>alert(1)</script>"
TOKEN = "a-token-of-some-length"
OPTIONS = QueueOptions(check_store=False)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests; each opens a context of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which no script may fail, none be blocked, and no dialog open."""
    context = browser.new_context(viewport={"width": 1200, "height": 800}, color_scheme="light")
    page = context.new_page()
    wrong = watched(page)
    yield page
    context.close()
    assert wrong == []


def watched(page: Page) -> list[str]:
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss())[0])
    page.on(
        "console",
        lambda message: wrong.append(message.text) if "Content Security Policy" in message.text else None,
    )
    return wrong


def run_aside(main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine in a thread: in this one playwright has a loop of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(anyio.run, main).result()


def fill(workspace: Path) -> None:
    """40 groups done, the one with an attack for a name dead, one leased, two free."""

    async def main() -> None:
        def handle(path: str) -> None:
            if path == ATTACK:
                raise PermanentError(f"<img src=x onerror=alert(2)> {ATTACK}")

        queue = WorkQueue(LocalBackend(str(workspace)), options=OPTIONS)
        await queue.populate_queue([f"/scans/{i}.pdf" for i in range(40)] + [ATTACK])
        await queue.run(handle, per="path", handle_signals=False)
        await queue.populate_queue(["late", "later", "latest"])
        assert await queue.get_work()  # a bare queue holds it until it expires

    run_aside(main)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    fill(tmp_path / "ws")
    return tmp_path / "ws"


@contextmanager
def served(workspace: Path, *arguments: str) -> Iterator[str]:
    """The address of a dashboard that a process of its own serves; it ends by SIGTERM, at once and quietly."""
    command = [sys.executable, "-m", "s3queue", "dashboard", str(workspace), "--port", "0", *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=workspace.parent
    )
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.send_signal(signal.SIGTERM)
        _, complaints = process.communicate(timeout=20)
    assert complaints == ""


def open_page(page: Page, url: str) -> None:
    page.goto(url)
    expect(page.locator("#count-done")).to_have_text("40")
    expect(page.locator("article.failure")).to_have_count(1)


def test_it_shows_the_workspace(page: Page, workspace: Path) -> None:
    """Counts, the chart, who holds what; and what failed, with its traceback."""
    with served(workspace) as url:
        open_page(page, url)

        expect(page.locator("#count-dead")).to_have_text("1")
        expect(page.locator("#count-leased")).to_have_text("1")
        expect(page.locator("#count-free")).to_have_text("2")
        expect(page.locator("#percent")).to_have_text("93.2 %")
        expect(page.locator("#workspace")).to_have_text(str(workspace))
        expect(page.locator("#rate .column")).not_to_have_count(0)
        expect(page.locator("#owners tr")).to_have_count(1)
        expect(page.locator("#freshness")).to_have_class("live")
        page.get_by_text("all attempts").click()
        expect(page.locator("article pre")).to_contain_text("Traceback (most recent call last)")
        page.get_by_role("button", name="all", exact=True).click()
        expect(page.get_by_role("button", name="all", exact=True)).to_have_attribute("aria-pressed", "true")


def test_what_the_store_says_is_text(page: Page, workspace: Path) -> None:
    """A path, and an error, that are markup are shown letter by letter; nothing of theirs runs."""
    with served(workspace) as url:
        open_page(page, url)
        page.get_by_text("all attempts").click()

        expect(page.locator("article .paths")).to_contain_text(ATTACK)
        expect(page.locator("article > .error")).to_contain_text("<img src=x onerror=alert(2)>")
        expect(page.locator("article pre")).to_contain_text(ATTACK)
        assert page.locator("article img, article script").count() == 0


def test_without_permission_there_is_no_button(page: Page, workspace: Path) -> None:
    """Looking is all that it lets anybody do."""
    with served(workspace) as url:
        open_page(page, url)
        assert page.locator("button.retry").count() == 0


def test_the_retry_button_retries(page: Page, workspace: Path) -> None:
    """One click, and the group is no failure any more: the page shows it, and a worker may claim it."""
    with served(workspace, "--allow-actions") as url:
        open_page(page, url)
        page.get_by_role("button", name="retry group").click()

        expect(page.locator("article.failure")).to_have_count(0)
        expect(page.locator("#count-dead")).to_have_text("0")
        expect(page.locator("#failures-none")).to_be_visible()

    async def claimable() -> int:
        return (await WorkQueue(LocalBackend(str(workspace)), options=OPTIONS).status()).dead

    assert run_aside(claimable) == 0


def test_it_keeps_up(page: Page, workspace: Path) -> None:
    """What happens afterwards shows without a reload; a traceback that somebody reads stays open."""
    with served(workspace) as url:
        open_page(page, url)
        page.get_by_text("all attempts").click()

        async def more() -> None:
            queue = WorkQueue(LocalBackend(str(workspace)), options=OPTIONS)
            await queue.run(lambda path: None, per="path", wait=False, handle_signals=False)

        run_aside(more)
        expect(page.locator("#count-done")).to_have_text("42", timeout=20_000)
        expect(page.locator("article pre")).to_be_visible()


@pytest.mark.parametrize("width", [320, 375, 820])
def test_it_fits_a_phone(page: Page, workspace: Path, width: int) -> None:
    """Nothing sticks out sideways, and buttons are large enough for a thumb."""
    page.set_viewport_size({"width": width, "height": 700})
    with served(workspace, "--allow-actions") as url:
        open_page(page, url)
        page.get_by_text("all attempts").click()
        expect(page.locator("article pre")).to_be_visible()

        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width < 800:
            box = page.get_by_role("button", name="retry group").bounding_box()
            assert box is not None
            assert box["height"] >= 40


def contrast(page: Page, selector: str) -> float:
    """WCAG's contrast between an element's text and the card that it is on."""
    value: float = page.locator(selector).first.evaluate(
        """element => {
            const level = colour => {
                const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255)
                    .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const card = element.closest(".card");
            const [a, b] = [getComputedStyle(element).color, getComputedStyle(card).backgroundColor].map(level);
            return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        }"""
    )
    return value


def test_light_and_dark(browser: Browser, workspace: Path) -> None:
    """It follows the reader's system, and can be read either way."""
    grounds = []
    with served(workspace) as url:
        for scheme in ("light", "dark"):
            context = browser.new_context(color_scheme=scheme)
            page = context.new_page()
            open_page(page, url)
            grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            for selector in ("#percent", "#states dt", "#states dd", "figcaption", "article .error", "article .paths",
                             "summary", ".failure .top"):  # fmt: skip
                assert contrast(page, selector) >= 4.5, (scheme, selector)
            context.close()

    assert grounds == ["rgb(244, 245, 247)", "rgb(15, 17, 22)"]


def test_signing_in(page: Page, workspace: Path) -> None:
    """With a token the page asks for it, says no to a wrong one, and lets the right one in."""
    with served(workspace, "--token", TOKEN) as url:
        page.goto(url)
        expect(page).to_have_url(re.compile("/login$"))
        page.get_by_label("token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_have_text("That is not the token.")
        page.get_by_label("token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#count-done")).to_have_text("40")


def test_a_hidden_page_asks_for_nothing(page: Page, workspace: Path, asked: Callable[[Page], list[str]]) -> None:
    """Nobody looks, so nobody is asked; and once somebody does, at once."""
    with served(workspace) as url:
        open_page(page, url)
        page.evaluate(
            "Object.defineProperty(document, 'hidden', {get: () => window.isAway, configurable: true});"
            "window.isAway = true; document.dispatchEvent(new Event('visibilitychange'))"
        )
        requests = asked(page)
        page.wait_for_timeout(6500)  # more than one interval
        assert requests == []
        with page.expect_request("**/api/state*"):
            page.evaluate("window.isAway = false; document.dispatchEvent(new Event('visibilitychange'))")


@pytest.fixture
def asked() -> Callable[[Page], list[str]]:
    """Collects what a page requests from now on."""

    def collect(page: Page) -> list[str]:
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        return requests

    return collect


def test_it_says_when_the_dashboard_is_gone(page: Page, workspace: Path) -> None:
    """Old numbers are not passed off as new ones."""
    with served(workspace) as url:
        open_page(page, url)
    expect(page.locator("#freshness")).to_have_class("late", timeout=15_000)
    expect(page.locator("#banner")).to_be_visible()
