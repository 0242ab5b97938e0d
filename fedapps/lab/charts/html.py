"""A self-contained HTML page: styles, pictures and the script of its charts are inline,
and it loads nothing.

It works offline, printed, on a phone, and in a light and a dark colour scheme. Every
function takes plain text and escapes it, because names of clients and error messages
come from outside. Only `Html` passes unchanged.
"""

import base64
import html
import re
from collections.abc import Iterable, Sequence

from fedapps.lab.charts.chart_script import SCRIPT, STYLE, fingerprint
from fedapps.lab.charts.theme import THEME, Colour

_COLOUR = re.compile(r"var\(--p-([0-9a-f]{6})-([0-9a-f]{6})\)")


class Html(str):
    """Text that is markup already and must not be escaped again."""

    __slots__ = ()


# Selectors of the cells with numbers, by the number of text columns before them. A
# class on every cell would double the size of a long table.
_NUMBERS = ", ".join(f"table.text{count} tr > :nth-child(n + {count + 1})" for count in range(5))

_CSS = f"""
:root {{
  color-scheme: light dark;
  --page: #f4f5f7;
  --card: {THEME.surface.light};
  --ink: {THEME.ink.light};
  --muted: {THEME.muted.light};
  --line: #dfe3e7;
  --accent: {THEME.series[0].light};
  --code: #eceff2;
  --good: #0b6b52;
  --good-bg: #dcf3ea;
  --bad: #a3281c;
  --bad-bg: #fbe3df;
  --warn: #7d5600;
  --warn-bg: #faefd2;
}}
@media (prefers-color-scheme: dark) {{
  :root {{
    --page: #121519;
    --card: {THEME.surface.dark};
    --ink: {THEME.ink.dark};
    --muted: {THEME.muted.dark};
    --line: #2f353d;
    --accent: {THEME.series[0].dark};
    --code: #262b32;
    --good: #7fe0bf;
    --good-bg: #12362b;
    --bad: #ff9d8f;
    --bad-bg: #431f1b;
    --warn: #f2cd78;
    --warn-bg: #3c3013;
  }}
}}
* {{ box-sizing: border-box; }}
body {{
  margin: 0;
  background: var(--page);
  color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}}
main {{ max-width: 1080px; margin: 0 auto; padding: 2rem 1.25rem 3rem; }}
h1 {{
  font-size: 1.75rem;
  line-height: 1.2;
  margin: 0 0 .25rem;
  letter-spacing: -.01em;
  overflow-wrap: anywhere;
}}
h1 small {{ font-weight: 400; color: var(--muted); font-size: 1.75rem; }}
h2 {{ font-size: 1.1rem; margin: 2rem 0 .75rem; }}
p {{ margin: .4rem 0; max-width: 75ch; overflow-wrap: anywhere; }}
.quiet {{ color: var(--muted); }}
.state {{
  display: inline-block;
  margin: .75rem 0 1.25rem;
  padding: .3rem .8rem;
  border-radius: .5rem;
  overflow-wrap: anywhere;
}}
.tag {{
  display: inline-block;
  padding: 0 .45rem;
  border-radius: .35rem;
  font-size: .82rem;
}}
td > .tag:only-child {{ white-space: nowrap; }}
a {{ color: var(--accent); }}
.completed {{ color: var(--good); background: var(--good-bg); }}
.failed {{ color: var(--bad); background: var(--bad-bg); }}
.interrupted, .running {{ color: var(--warn); background: var(--warn-bg); }}
.cards {{
  display: grid;
  grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr));
  gap: .75rem;
}}
.card, figure, details, .panel {{
  background: var(--card);
  border: 1px solid var(--line);
  border-radius: .6rem;
}}
.card {{
  padding: .7rem .9rem;
  margin: 0;
  display: flex;
  flex-direction: column;
  justify-content: space-between;
}}
.card dt {{ color: var(--muted); font-size: .82rem; line-height: 1.3; }}
.card dd {{
  margin: .15rem 0 0;
  font-size: 1.45rem;
  font-weight: 600;
  font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere;
}}
.card dd.long {{ font-size: 1.15rem; }}
.lead {{ grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)); margin-bottom: .75rem; }}
.lead dd {{ font-size: 2.3rem; line-height: 1.2; color: var(--accent); }}
.card dd.note {{ font-size: .82rem; font-weight: 400; line-height: 1.35; color: var(--muted); }}
.plots {{
  display: grid;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: .75rem;
  align-items: start;
}}
figure {{ margin: 0; padding: .5rem; overflow: hidden; }}
main > figure + figure, .plots + .panel {{ margin-top: .75rem; }}
details figure {{ border: 0; max-width: 46rem; }}
figure img {{ display: block; width: 100%; height: auto; }}
details {{ margin: .75rem 0; padding: .2rem 1rem; }}
details[open] {{ padding-bottom: .8rem; }}
summary {{ cursor: pointer; font-weight: 600; padding: .5rem 0; }}
summary span {{ font-weight: 400; color: var(--muted); }}
.panel {{ padding: .5rem 1rem; }}
.scroll {{ overflow-x: auto; }}
table {{
  border-collapse: collapse;
  width: 100%;
  font-size: .9rem;
  font-variant-numeric: tabular-nums;
}}
th, td {{
  text-align: left;
  padding: .35rem 1.2rem .35rem 0;
  border-bottom: 1px solid var(--line);
  vertical-align: top;
}}
tr:last-child td {{ border-bottom: 0; }}
th {{ color: var(--muted); font-weight: 500; font-size: .82rem; vertical-align: bottom; }}
td {{ overflow-wrap: anywhere; }}
{_NUMBERS} {{ text-align: right; white-space: nowrap; overflow-wrap: normal; }}
table:not(.pairs) td:first-child {{ min-width: 6.5rem; }}
table.pairs {{ width: auto; }}
td small {{ color: var(--muted); font-size: .82rem; }}
td b {{ color: var(--accent); }}
code, pre {{
  font: .88rem/1.5 ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace;
  background: var(--code);
  border-radius: .35rem;
}}
code {{ padding: .1rem .35rem; overflow-wrap: anywhere; }}
pre {{ padding: .7rem .9rem; overflow-x: auto; margin: .5rem 0; }}
@media (max-width: 500px) {{
  main {{ padding: 1.25rem .75rem 2rem; }}
  h1, h1 small {{ font-size: 1.4rem; }}
  .cards {{ grid-template-columns: repeat(2, 1fr); }}
  .lead {{ grid-template-columns: 1fr; }}
  figure {{ padding: .25rem; }}
}}
@media print {{
  body {{ background: none; }}
  details::details-content {{ content-visibility: visible; }}
}}
"""


def page(heading: str, body: Sequence[Html], scripts: Sequence[str] = (SCRIPT,)) -> str:
    """The whole document; `heading` is the window's title. `scripts`: the only ones
    that may run, at the end of the page; they can request nothing.
    """
    allowed = " ".join(map(fingerprint, scripts))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Even if an escape were forgotten, no foreign code could run or load.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src "
        f"{allowed}; connect-src 'none'\">\n"
        f"<title>{text(heading)}</title>\n<style>{_CSS}{STYLE}{palette(body)}</style>\n"
        "</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n"
        + "".join(f'<script class="page">{script}</script>\n' for script in scripts)
        + "</body>\n</html>\n"
    )


def css(colour: Colour) -> str:
    """The name of a colour in the style sheet that `palette` writes."""
    return f"var(--p-{colour.light[1:].lower()}-{colour.dark[1:].lower()})"


def palette(body: Iterable[str]) -> str:
    """The style sheet with the colours behind the names in a page's charts, for both
    schemes.
    """
    pairs = sorted({pair for part in body for pair in _COLOUR.findall(part)})
    light, dark = ("".join(f"--p-{a}-{b}:#{(a, b)[which]};" for a, b in pairs) for which in (0, 1))
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}" if pairs else ""


def text(value: object) -> Html:
    """`value` as text of the page: escaped unless it is `Html`."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def paragraph(content: object, style: str = "") -> Html:
    """One paragraph; `style` is a class of the page's style sheet."""
    return Html(f'<p class="{style}">{text(content)}</p>' if style else f"<p>{text(content)}</p>")


def heading(content: object) -> Html:
    """The heading of a section."""
    return Html(f"<h2>{text(content)}</h2>")


def header(title: str, subject: str, note: str, state: str = "", status: str = "") -> Html:
    """The head of a page: its title and subject, a note, and the text `status` in the
    colour of a `state` ("completed", "failed", ...).
    """
    on = f" <small>on {text(subject)}</small>" if subject else ""
    parts = [f"<header><h1>{text(title)}{on}</h1>", paragraph(note, "quiet") if note else ""]
    if state:
        parts.append(f'<div class="state {state}">{text(status)}</div>')
    return Html("\n".join(filter(None, parts)) + "</header>")


def panel(content: Html, style: str = "panel") -> Html:
    """A part of the page with a border; `style` "plots": pictures side by side."""
    return Html(f'<div class="{style}">{content}</div>')


def cards(entries: Iterable[tuple[str, str, str]], style: str = "cards") -> Html:
    """Key numbers: (label, value, note) each, the note may be ""; `style` "cards lead":
    large ones.
    """
    parts = [
        f'<dl class="card"><dt>{text(label)}</dt>'
        f'<dd class="{"long" if len(value) > 9 else "short"}">{text(value)}</dd>'
        + (f'<dd class="note">{text(note)}</dd>' if note else "")
        + "</dl>"
        for label, value, note in entries
    ]
    return panel(Html("".join(parts)), style)


def image(description: str, data: bytes) -> Html:
    """A PNG, which looks the same in both colour schemes."""
    uri = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return Html(f'<figure><img alt="{text(description)}" src="{uri}"></figure>')


def pairs(rows: Iterable[tuple[object, object]]) -> Html:
    """Names and their values, one pair per line, in a table as wide as its content."""
    lines = "".join(
        f"<tr><td>{text(name)}</td><td>{text(value)}</td></tr>\n" for name, value in rows
    )
    return Html(f'<div class="scroll"><table class="pairs"><tbody>{lines}</tbody></table></div>')


def table(header: Sequence[str], rows: Iterable[Sequence[object]], text_columns: int = 1) -> Html:
    """A table; the first `text_columns` columns are text, the others numbers (aligned
    right).
    """

    def cells(tag: str, values: Sequence[object]) -> str:
        return "".join(f"<{tag}>{text(value)}</{tag}>" for value in values)

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in rows)
    head = f"<thead><tr>{cells('th', header)}</tr></thead>\n"
    return Html(
        '<div class="scroll"><table '
        f'class="text{text_columns}">{head}<tbody>{body}</tbody></table></div>'
    )


def collapsible(label: str, note: str, content: Html, is_open: bool = False) -> Html:
    """A part of the page that opens on a click."""
    return Html(
        f"<details{' open' if is_open else ''}><summary>{text(label)} "
        f"<span>{text(note)}</span></summary>\n{content}</details>"
    )
