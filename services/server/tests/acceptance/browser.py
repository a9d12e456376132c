"""Finds and starts Chromium, and records errors, requests and policy violations of a page."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Runs before any script of the page. Records violations of the content security policy and the longest task of the thread.
WATCH = """
window.violations = [];
document.addEventListener('securitypolicyviolation', (event) =>
    window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
window.longest = 0;
new PerformanceObserver((list) => {
    for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
}).observe({ type: 'longtask', buffered: true });
"""


def of_this_machine() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for path in map(shutil.which, names) if path), None)


@contextlib.contextmanager
def launched(fallback: Path) -> Iterator[Browser]:
    """Starts the machine's browser, or the one in the folder `fallback` with its libraries and fonts."""
    from playwright.sync_api import sync_playwright

    # Without a language in the environment, Chromium selects one that its own scripts reject.
    path, env = of_this_machine(), {**os.environ, "LANG": "en_US.UTF-8", "LANGUAGE": "en_US", "LC_ALL": "en_US.UTF-8"}
    if path is None:
        path = str(fallback / "chromium")
        env |= {"LD_LIBRARY_PATH": str(fallback / "lib"), "FONTCONFIG_FILE": str(fallback / "fonts.conf")}
    with sync_playwright() as playwright:
        # Containers allow neither the browser's sandbox nor much shared memory.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments, env=env)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page with the errors, hosts and changing requests recorded since it was opened."""

    page: Page
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    changes: list[str] = field(default_factory=list)

    def text(self, test_id: str) -> str:
        return self.page.get_by_test_id(test_id).inner_text()

    def violations(self) -> list[str]:
        return self.page.evaluate("window.violations")


@contextlib.contextmanager
def opened(browser: Browser, url: str, width: int = 1280, theme: str = "light", **context: Any) -> Iterator[Opened]:
    """Opens a page in its own profile and waits until it has drawn its first state."""
    window = {"width": width, "height": 900}
    profile = browser.new_context(viewport=window, color_scheme=theme, locale="en-US", **context)
    profile.add_init_script(WATCH)
    seen = Opened(profile.new_page())
    seen.page.set_default_timeout(60_000)
    seen.page.on("console", lambda message: message.type in ("error", "warning") and seen.errors.append(message.text))
    seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))

    def asked(request: Any) -> None:
        # A URL without a host (`data:`) causes no request to another server.
        seen.hosts.add(urlsplit(request.url).netloc)
        if request.method != "GET":
            seen.changes.append(f"{request.method} {request.url}")

    seen.page.on("request", asked)
    seen.page.goto(url, wait_until="domcontentloaded")
    seen.page.wait_for_selector("html[data-ready]")
    yield seen
    profile.close()
