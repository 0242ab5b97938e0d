"""A page that follows a run, or the runs of a sweep, while they write: what `fedapps watch` serves.

It reads the files that a run writes anyway, in a process of its own, and only when a page asks and something has changed. It listens on
the loopback interface; who does not know the token in the address, or asks under another name than this machine's own, gets nothing.
No path of a request is ever looked for on the disk.
"""

import hmac
import json
import os
import secrets
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedapps.errors import UserError
from fedapps.results import html
from fedapps.results.chart_script import SCRIPT
from fedapps.results.charts import palette
from fedapps.results.formats import metric_name, metric_text, seconds_text
from fedapps.results.html import Html
from fedapps.results.reader import RunFolder, is_number, read_run
from fedapps.results.report import report_body, report_title
from fedapps.results.run_plots import run_figures
from fedapps.results.theme import DARK, LIGHT

_FILES = ("settings.toml", "rounds.jsonl", "clients.csv", "weights.csv", "curves.json", "summary.json")
_WINDOW = 10  # rounds whose seconds tell the time left
_QUIET = 60.0  # seconds without a change after which a run may have been killed, and at least so many rounds' time:
_QUIET_ROUNDS = 20
_GRACE = 5.0  # seconds in which a page may still fetch the end of a run

_LIVE = r"""
(() => {
"use strict";
let stamp = document.querySelector("main").dataset.stamp, failed = 0;
const note = document.body.appendChild(document.createElement("p"));
note.id = "gone"; note.hidden = true; note.setAttribute("role", "status");
note.textContent = "No longer served: this is the last that was seen.";
function put(news) {
  const main = document.querySelector("main"), open = {}, at = document.activeElement, focus = at && at.dataset.name;
  for (const part of main.querySelectorAll("details")) open[part.querySelector("summary").firstChild.textContent] = part.open;
  main.innerHTML = news.body;
  for (const part of main.querySelectorAll("details")) {
    const before = open[part.querySelector("summary").firstChild.textContent];
    if (before !== undefined) part.open = before;
  }
  document.getElementById("palette").textContent = news.palette;
  document.title = news.title;
  stamp = news.stamp;
  document.dispatchEvent(new Event("charts"));
  if (focus) for (const one of main.querySelectorAll("figure.chart")) if (one.dataset.name === focus) one.focus({preventScroll: true});
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

    ``host``: its Host header. Only this machine's own names count, so that no page elsewhere reaches the server under its own name.
    """
    if host not in (f"127.0.0.1:{port}", f"localhost:{port}"):
        return None
    root, _, rest = urlsplit(path).path.removeprefix("/").partition("/")
    return rest if hmac.compare_digest(root.encode(), token.encode()) else None


def runs_of(folder: Path) -> dict[str, Path]:
    """Return the folders of a sweep's runs by name; none if ``folder`` is no sweep's."""
    cells = folder / "cells"
    found = sorted(path for path in cells.iterdir() if path.is_dir()) if cells.is_dir() else []
    return {path.name: path for path in found}


def is_watchable(folder: Path) -> bool:
    """Return whether a folder holds a run or a sweep, perhaps one that has just begun."""
    return (folder / "cells").is_dir() or any((folder / name).is_file() for name in (*_FILES, "run.log"))


def seconds_left(run: RunFolder) -> float | None:
    """Return about how long a run still takes, by its last rounds; ``None`` if nothing is known of it."""
    times = [record["seconds"] for record in run.rounds[-_WINDOW:] if is_number(record.get("seconds"))]
    if not times or run.num_rounds is None:
        return None
    return float(sum(times) / len(times) * max(0, run.num_rounds - run.rounds_completed))


def is_quiet(run: RunFolder, now: float) -> bool:
    """Return whether a run that has not ended has written nothing for longer than its rounds explain, at ``now`` (seconds, Unix)."""
    if run.state != "running":
        return False
    times = [path.stat().st_mtime for name in _FILES if (path := run.path / name).is_file()]
    rounds = [record["seconds"] for record in run.rounds[-_WINDOW:] if is_number(record.get("seconds"))]
    return bool(times) and now - max(times) > max(_QUIET, _QUIET_ROUNDS * max(rounds, default=0.0))


def stamp_of(folder: Path) -> str:
    """Return a text that changes whenever the files of a run or of a sweep do."""
    parts = []
    for one in (folder, *runs_of(folder).values()):
        for name in _FILES:
            try:
                status = (one / name).stat()
            except OSError:
                continue
            parts.append((one.name, name, status.st_mtime_ns, status.st_size))
    return f"{hash(tuple(parts)) & 0xFFFFFFFFFFFFFFFF:016x}"


def news(folder: Path, now: float) -> dict[str, str]:
    """Return title, body and palette of the page of a run or a sweep as it is now."""
    if (folder / "cells").is_dir():
        title, body = folder.name, _sweep_body(folder, now)
    elif any((folder / name).is_file() for name in ("settings.toml", "rounds.jsonl", "summary.json")):
        run = read_run(folder)
        title, body = report_title(run), report_body(run, run_figures(run, LIGHT), run_figures(run, DARK))
        title, body = f"{run.state}: {title}", [*body[:3], html.paragraph(_hope(run, now), "quiet"), *body[3:]]
    else:
        title, body = folder.name, [html.paragraph("The run has not begun yet.")]
    return {"title": title, "body": "\n".join(body), "palette": palette(body)}


def _hope(run: RunFolder, now: float) -> str:
    if run.state != "running":
        return ""
    if is_quiet(run, now):
        return "Nothing has been written for a while: the run may have been killed."
    left = seconds_left(run)
    return "" if left is None else f"About {seconds_text(left)} left."


def _sweep_body(folder: Path, now: float) -> list[Html]:
    rows, states = [], []
    for name, path in runs_of(folder).items():
        try:
            run = read_run(path)
        except UserError:  # just begun
            continue
        state = "quiet" if is_quiet(run, now) else run.state
        states.append(state)
        key = next((k for k in ("accuracy-mean", *run.evaluation) if k in run.evaluation), "")
        link = Html(f'<a href="{html.text(name)}/">{html.text(name)}</a>')
        tag = Html(f'<span class="tag {html.text(run.state)}">{html.text(state)}</span>')
        measure = f"{metric_name(key)} {metric_text(key, run.evaluation[key])}" if key else "-"
        rows.append((link, tag, f"{run.rounds_completed} of {run.num_rounds or '?'}", measure, len(run.failures)))
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    look = "failed" if "failed" in states else "running" if set(states) - {"completed"} or not states else "completed"
    return [
        Html(f"<header><h1>{html.text(folder.name)}</h1>"),
        Html(f'<div class="state {look}">{html.text(counts or "no run has begun yet")}</div></header>'),
        Html(f'<div class="panel">{html.table(["run", "state", "rounds", "last measure", "failed replies"], rows, 4)}</div>'),
    ]


class Pages(ThreadingHTTPServer):
    """Serves the page of ``folder`` at ``address`` until ``shutdown``. ``port``: 0 for a free one. Raises ``OSError``."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.folder = folder
        self.token = secrets.token_urlsafe(32)
        self.told: dict[Path, str] = {}  # the last stamp that a page has had
        self.asked = 0.0
        self._known: dict[Path, dict[str, str]] = {}
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def current(self, folder: Path) -> dict[str, str]:
        """Return the news of a folder, made anew if its files have changed."""
        with self._lock:
            now = time.time()
            stamp = stamp_of(folder)
            known = self._known.get(folder)
            if known is None or known["files"] != stamp or now - float(known["made"]) > _QUIET:
                made = news(folder, now)
                digest = f"{stamp}-{hash(made['body']) & 0xFFFFFFFF:08x}"
                known = self._known[folder] = {**made, "files": stamp, "made": str(now), "stamp": digest}
            return known

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that goes away while it is answered is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: Pages
    timeout = 20

    def do_GET(self) -> None:
        rest = admitted(self.path, self.headers.get("Host"), self.server.token, self.server.server_port)
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
            return self._answer(200, "application/json", json.dumps({key: found[key] for key in keys}))
        page = html.page(found["title"], [Html(found["body"])], found["palette"], (SCRIPT, _LIVE), "'self'")
        return self._answer(200, "text/html; charset=utf-8", page.replace("<main>", f'<main data-stamp="{found["stamp"]}">', 1))

    def _answer(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        for key, value in (
            ("Content-Type", kind), ("Content-Length", str(len(data))), ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"), ("X-Frame-Options", "DENY"), ("Cross-Origin-Resource-Policy", "same-origin"),
        ):  # fmt: skip
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is the run's."""


def watch(folder: Path, port: int = 0, until_end: bool = False) -> int:
    """Serve the page of a folder until Ctrl-C, or, with ``until_end``, until standard input ends. Raises ``UserError``."""
    folder = folder.expanduser().absolute()
    if not until_end and not is_watchable(folder):
        raise UserError(f"{folder} holds neither a run nor a sweep: name the results folder of one")
    try:
        pages = Pages(folder, port)
    except (OSError, OverflowError) as error:
        raise UserError(f"--port {port}: cannot be used ({error}): choose another one, or none to get a free one") from None
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
    """Wait for the end of standard input, and then until pages that are open have had the end of the run."""
    sys.stdin.buffer.read()
    until = time.monotonic() + _GRACE
    while time.monotonic() < until and time.monotonic() - pages.asked < 2 * _GRACE:
        if pages.told.get(pages.folder) == pages.current(pages.folder)["stamp"]:
            break
        time.sleep(0.2)
    pages.shutdown()
