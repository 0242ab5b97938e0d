"""The page of `fedapps watch`, which follows a run or the runs of a sweep.

A separate process reads the files of the run when a page requests them and they have
changed. It listens on the loopback interface. It refuses requests that lack the token
in the address, or whose Host header is not a name of this machine. Paths in requests
are never opened as files.
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

from fedapps.errors import UserError
from fedapps.formats import seconds_text
from fedapps.lab.charts import html
from fedapps.lab.charts.chart_script import SCRIPT
from fedapps.lab.charts.html import Html
from fedapps.lab.live.files import (
    QUIET,
    is_quiet,
    is_watchable,
    runs_of,
    seconds_left,
    stamp_of,
)
from fedapps.lab.live.sweep import Sweep
from fedapps.lab.results.report import report_body, report_title
from fedapps.records.reader import RunFolder, read_run

SHARE = 0.03  # share of a core that updates of the page may use
_GRACE = 5.0  # seconds in which a page can still fetch the end of a run

_LIVE = r"""
(() => {
"use strict";
let stamp = document.querySelector("main").dataset.stamp, failed = 0;
const note = document.body.appendChild(document.createElement("p"));
note.id = "gone"; note.hidden = true; note.setAttribute("role", "status");
note.textContent = "Connection lost: this page is no longer updated.";
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
    """Return the part of a request's path after the token; ``None`` if the request must
    be refused.

    ``host``: its Host header. Only this machine's own names are accepted, so that
    foreign pages cannot reach the server through DNS rebinding.
    """
    if host not in (f"127.0.0.1:{port}", f"localhost:{port}"):
        return None
    root, _, rest = urlsplit(path).path.removeprefix("/").partition("/")
    return rest if hmac.compare_digest(root.encode(), token.encode()) else None


def news(folder: Path, now: float, sweep: Sweep | None = None) -> dict[str, str]:
    """Return title, body and palette of the current page of a run or a sweep.
    ``sweep``: its runs as read earlier.
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
        return "Nothing was written for a while: the run may have been stopped."
    left = seconds_left(run)
    return "" if left is None else f"About {seconds_text(left)} left."


@dataclass(frozen=True)
class Known:
    """The last page of a folder: the stamp of its ``files``, when it was made (Unix),
    and the CPU seconds that this took.
    """

    news: dict[str, str]
    files: str
    made: float
    cost: float


def is_due(known: Known, files: str, now: float, hurry: bool = False) -> bool:
    """Return whether a page must be made again. Large pages wait longer, so that
    updates use a bounded share of a core.
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
        self.sent: dict[Path, str] = {}  # the last stamp that was sent to a page
        self.requested_at = 0.0
        self.hurry = False  # whether the run has ended
        self._known: dict[Path, Known] = {}
        self._sweep = Sweep(folder)
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def current(self, folder: Path) -> dict[str, str]:
        """Return the page of a folder, made again if its files have changed, but not so
        often that it would slow the run.
        """
        with self._lock:
            now, files, known = time.time(), stamp_of(folder), self._known.get(folder)
            if known is None or is_due(known, files, now, self.hurry):
                began = time.thread_time()
                page = news(folder, now, self._sweep if folder == self.folder else None)
                digest = f"{files}-{hash(page['body']) & 0xFFFFFFFF:08x}"
                known = self._known[folder] = Known(
                    {**page, "stamp": digest}, files, now, time.thread_time() - began
                )
            return known.news

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore pages that are closed while they are answered."""


class _Handler(BaseHTTPRequestHandler):
    server: Pages
    timeout = 20

    def do_GET(self) -> None:
        rest = admitted(
            self.path, self.headers.get("Host"), self.server.token, self.server.server_port
        )
        if rest is None:
            return self._answer(404, "text/plain", "not found\n")
        name, _, part = rest.rpartition("/")
        folder = self.server.folder if not name else runs_of(self.server.folder).get(name)
        if folder is None or part not in ("", "news"):
            return self._answer(404, "text/plain", "not found\n")
        current = self.server.current(folder)
        after = parse_qs(urlsplit(self.path).query).get("after", [""])[0]
        self.server.sent[folder], self.server.requested_at = current["stamp"], time.monotonic()
        if part == "news":
            changed = after != current["stamp"]
            keys = ("stamp", "title", "body", "palette") if changed else ("stamp",)
            return self._answer(
                200, "application/json", json.dumps({key: current[key] for key in keys})
            )
        page = html.page(current["title"], [Html(current["body"])], (SCRIPT, _LIVE), "'self'")
        return self._answer(
            200,
            "text/html; charset=utf-8",
            page.replace("<main>", f'<main data-stamp="{current["stamp"]}">', 1),
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
        """Print nothing: the terminal belongs to the run."""


def watch(folder: Path, port: int = 0, until_end: bool = False) -> int:
    """Serve the page of a folder until Ctrl-C, or, with ``until_end``, until standard
    input ends. Raises ``UserError``.
    """
    folder = folder.expanduser().absolute()
    if not until_end and not is_watchable(folder):
        raise UserError(f"{folder} holds neither a run nor a sweep: give a results folder")
    try:
        pages = Pages(folder, port)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--port {port}: cannot be used ({error}). Choose another port, or omit the option for "
            "a free one."
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
            print("stopped watching", file=sys.stderr)
    return 0


def _end_after(pages: Pages) -> None:
    """Wait for the end of standard input, and then until open pages have fetched the
    end of the run.
    """
    sys.stdin.buffer.read()
    pages.hurry = True
    until = time.monotonic() + _GRACE
    while time.monotonic() < until and time.monotonic() - pages.requested_at < 2 * _GRACE:
        if pages.sent.get(pages.folder) == pages.current(pages.folder)["stamp"]:
            break
        time.sleep(0.2)
    pages.shutdown()
