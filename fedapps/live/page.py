"""A page that follows a run, or the runs of a sweep, while they write: what `fedapps
watch` serves.

It reads the files that a run writes anyway, in a process of its own, and only when a
page asks and something has changed. It listens on the loopback interface; who does not
know the token in the address, or asks under another name than this machine's own, gets
nothing. No path of a request is ever looked for on the disk.
"""

import hmac
import json
import os
import secrets
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedapps.charts import html
from fedapps.charts.chart_script import SCRIPT
from fedapps.charts.html import Html
from fedapps.errors import UserError
from fedapps.formats import seconds_text
from fedapps.live.files import (
    QUIET,
    is_quiet,
    is_watchable,
    runs_of,
    seconds_left,
    stamp_of,
)
from fedapps.live.sweep import Sweep
from fedapps.records.reader import RunFolder, read_run
from fedapps.results.report import report_body, report_title

SHARE = 0.03  # of a core, that making the page anew may take
_GRACE = 5.0  # seconds in which a page may still fetch the end of a run

_LIVE = r"""
(() => {
"use strict";
let stamp = document.querySelector("main").dataset.stamp, failed = 0;
const note = document.body.appendChild(document.createElement("p"));
note.id = "gone"; note.hidden = true; note.setAttribute("role", "status");
note.textContent = "No longer served: this is the last that was seen.";
function put(news) {
  const main = document.querySelector("main"), open = {};
  const at = document.activeElement, focus = at && at.dataset.name;
  const title = part => part.querySelector("summary").firstChild.textContent;
  for (const part of main.querySelectorAll("details")) open[title(part)] = part.open;
  main.innerHTML = news.body;
  for (const part of main.querySelectorAll("details")) {
    const before = open[title(part)];
    if (before !== undefined) part.open = before;
  }
  document.getElementById("palette").textContent = news.palette;
  document.title = news.title;
  stamp = news.stamp;
  document.dispatchEvent(new Event("charts"));
  for (const one of main.querySelectorAll("figure.chart"))
    if (focus && one.dataset.name === focus) one.focus({preventScroll: true});
}
async function look() {
  if (!document.hidden) try {
    const answer = await fetch("news?after=" + encodeURIComponent(stamp), {cache: "no-store"});
    if (!answer.ok) throw new Error(answer.status);
    const news = await answer.json();
    failed = 0; note.hidden = true;
    if (news.stamp !== stamp) put(news);
  } catch (error) {
    note.hidden = ++failed < 2;
  }
  setTimeout(look, failed > 5 ? 10000 : 2000);
}
setTimeout(look, 1000);
})();
"""


def admitted(path: str, host: str | None, token: str, port: int) -> str | None:
    """Return what a request asks for behind the token; ``None`` if it must get nothing.

    ``host``: its Host header. Only this machine's own names count, so that no page
    elsewhere reaches the server under its own name.
    """
    if host not in (f"127.0.0.1:{port}", f"localhost:{port}"):
        return None
    root, _, rest = urlsplit(path).path.removeprefix("/").partition("/")
    return rest if hmac.compare_digest(root.encode(), token.encode()) else None


def news(folder: Path, now: float, sweep: Sweep | None = None) -> dict[str, str]:
    """Return title, body and palette of the page of a run or a sweep as it is now;
    ``sweep``: what is known of it from before.
    """
    if (folder / "cells").is_dir():
        title, body = folder.name, (sweep or Sweep(folder)).body(now)
    elif any(
        (folder / name).is_file() for name in ("settings.toml", "rounds.jsonl", "summary.json")
    ):
        run = read_run(folder)
        title, body = f"{run.state}: {report_title(run)}", report_body(run, hope=_hope(run, now))
    else:
        title, body = folder.name, [html.paragraph("The run has not begun yet.")]
    return {"title": title, "body": "\n".join(body), "palette": html.palette(body)}


def _hope(run: RunFolder, now: float) -> str:
    if run.state != "running":
        return ""
    if is_quiet(run, now):
        return "Nothing has been written for a while: the run may have been killed."
    left = seconds_left(run)
    return "" if left is None else f"About {seconds_text(left)} left."


@dataclass(frozen=True)
class Known:
    """The page of a folder as it was: of which ``files``, when it was made (Unix), and
    the CPU seconds that this took.
    """

    news: dict[str, str]
    files: str
    made: float
    cost: float


def is_due(known: Known, files: str, now: float, hurry: bool = False) -> bool:
    """Return whether a page is to be made anew: large ones wait, so that following a
    run takes a bounded share of a core.
    """
    since = now - known.made
    return since > QUIET or (files != known.files and (hurry or since >= known.cost / SHARE))


class Pages(ThreadingHTTPServer):
    """Serves the page of ``folder`` at ``address`` until ``shutdown``. ``port``: 0 for
    a free one. Raises ``OSError``.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.folder = folder
        self.token = secrets.token_urlsafe(32)
        self.told: dict[Path, str] = {}  # the last stamp that a page has had
        self.asked = 0.0
        self.hurry = False  # whether the run has ended
        self._known: dict[Path, Known] = {}
        self._sweep = Sweep(folder)
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def current(self, folder: Path) -> dict[str, str]:
        """Return the news of a folder, made anew if its files have changed, though not
        more often than the run can bear.
        """
        with self._lock:
            now, files, known = time.time(), stamp_of(folder), self._known.get(folder)
            if known is None or is_due(known, files, now, self.hurry):
                began = time.thread_time()
                made = news(folder, now, self._sweep if folder == self.folder else None)
                digest = f"{files}-{hash(made['body']) & 0xFFFFFFFF:08x}"
                known = self._known[folder] = Known(
                    {**made, "stamp": digest}, files, now, time.thread_time() - began
                )
            return known.news

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that goes away while it is answered is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: Pages
    timeout = 20

    def do_GET(self) -> None:
        rest = admitted(
            self.path, self.headers.get("Host"), self.server.token, self.server.server_port
        )
        if rest is None:
            return self._answer(404, "text/plain", "not found\n")
        name, _, what = rest.rpartition("/")
        folder = self.server.folder if not name else runs_of(self.server.folder).get(name)
        if folder is None or what not in ("", "news"):
            return self._answer(404, "text/plain", "not found\n")
        found = self.server.current(folder)
        after = parse_qs(urlsplit(self.path).query).get("after", [""])[0]
        self.server.told[folder], self.server.asked = found["stamp"], time.monotonic()
        if what == "news":
            keys = ("stamp",) if after == found["stamp"] else ("stamp", "title", "body", "palette")
            return self._answer(
                200, "application/json", json.dumps({key: found[key] for key in keys})
            )
        page = html.page(found["title"], [Html(found["body"])], (SCRIPT, _LIVE), "'self'")
        return self._answer(
            200,
            "text/html; charset=utf-8",
            page.replace("<main>", f'<main data-stamp="{found["stamp"]}">', 1),
        )

    def _answer(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        for key, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(data))),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is the run's."""


def watch(folder: Path, port: int = 0, until_end: bool = False) -> int:
    """Serve the page of a folder until Ctrl-C, or, with ``until_end``, until standard
    input ends. Raises ``UserError``.
    """
    folder = folder.expanduser().absolute()
    if not until_end and not is_watchable(folder):
        raise UserError(f"{folder} holds neither a run nor a sweep: name the results folder of one")
    try:
        pages = Pages(folder, port)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--port {port}: cannot be used ({error}): choose another one, or none to get a free "
            "one"
        ) from None
    if hasattr(os, "nice"):
        os.nice(10)  # the run comes first
    print(f"watch:   {pages.address}", file=sys.stderr, flush=True)
    with pages:
        if until_end:
            threading.Thread(target=_end_after, args=(pages,), daemon=True).start()
        try:
            pages.serve_forever(poll_interval=0.5)
        except KeyboardInterrupt:
            print("no longer watched", file=sys.stderr)
    return 0


def _end_after(pages: Pages) -> None:
    """Wait for the end of standard input, and then until pages that are open have had
    the end of the run.
    """
    sys.stdin.buffer.read()
    pages.hurry = True
    until = time.monotonic() + _GRACE
    while time.monotonic() < until and time.monotonic() - pages.asked < 2 * _GRACE:
        if pages.told.get(pages.folder) == pages.current(pages.folder)["stamp"]:
            break
        time.sleep(0.2)
    pages.shutdown()
