"""The script of a page with charts: it shows values at the pointer or the arrow keys,
and switches series off.

It is plain JavaScript over the SVG of `charts.py`. It does not draw the charts, so
bars, maps and lines need no second implementation, and it adds only six kilobytes to a
page. It loads nothing and stores nothing.
"""

import base64
import hashlib

SCRIPT = r"""
(() => {
"use strict";
const make = (tag, parent, attributes) => {
  const made = parent.appendChild(document.createElementNS(parent.namespaceURI, tag));
  for (const name in attributes) made.setAttribute(name, attributes[name]);
  return made;
};
const number = v => {
  if (v === null) return "?";
  const size = Math.abs(v);
  if (size !== 0 && size < 1e-3) return v.toPrecision(3);
  const digits = size >= 1e4 ? {maximumFractionDigits: 0} : {maximumSignificantDigits: 4};
  return v.toLocaleString("en", {...digits, useGrouping: false});
};
const value = (axis, v) => v === null ? "?"
  : number((axis.log ? 10 ** v : v) * (axis.percent ? 100 : 1)) + axis.unit;
const name = (axis, v) => {
  const label = axis.names && axis.names[Math.round(v)];
  return label === undefined ? value(axis, v) : label;
};
const head = (axis, v) => {
  if (axis.names) return (/^client/.test(axis.label) ? "client " : "") + name(axis, v);
  const what = axis.label && axis.label + (/^[a-z]+$/.test(axis.label) ? " " : ": ");
  return what + name(axis, v);
};

function setUp(figure) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const off = new Set();
  const tip = figure.appendChild(document.createElement("div"));
  tip.className = "tip"; tip.hidden = true; tip.setAttribute("role", "status");
  figure.tabIndex = 0; figure.setAttribute("role", "group");
  let at = null;  // the panel and the place that are shown

  const svg = figure.querySelector("svg"), frame = p => data.frames[p];
  const across = (p, x) => {
    const [l, , w] = frame(p), a = data.panels[p].x;
    return l + w * (x - a.lo) / (a.hi - a.lo);
  };
  const upward = (p, y) => {
    const [, t, , h] = frame(p), a = data.panels[p].y;
    const share = Math.min(1, Math.max(0, (y - a.lo) / (a.hi - a.lo)));
    return a.down ? t + h * share : t + h * (1 - share);
  };
  const isOn = row => !off.has(row.s === undefined ? "" : labels[row.s]);
  const rows = p => data.panels[p].rows.filter(isOn);

  // The places of a panel in the order of the arrow keys: [x, y], y only for maps.
  function places(p) {
    const panel = data.panels[p];
    if (panel.table) {
      const [xs, ys, cells] = panel.table, full = [];
      const middle = (ends, i) => (ends[i] + ends[i + 1]) / 2;
      for (let r = 0; r < ys.length - 1; r++)
        for (let c = 0; c < xs.length - 1; c++)
          if (cells[r][c] !== null) full.push([middle(xs, c), middle(ys, r), r, c]);
      return full;
    }
    const all = new Set(rows(p).flatMap(row => panel.xs[row.x]));
    return [...all].filter(x => x !== null).sort((a, b) => a - b).map(x => [x]);
  }

  function clear() {
    at = null; tip.hidden = true;
    for (const mark of figure.querySelectorAll(".mark")) mark.remove();
  }

  function showValues(p, place) {
    clear();
    at = [p, place];
    const panel = data.panels[p], [l, t, w, h] = frame(p), lines = [];
    const mark = make("g", svg, {class: "mark"});
    const x = Math.min(l + w, Math.max(l, across(p, place[0])));
    let title, top = t;
    if (panel.table) {
      const [xs, ys, cells] = panel.table, [, , r, c] = place, y = upward(p, place[1]);
      const ends = [upward(p, ys[r]), upward(p, ys[r + 1])];
      const left = across(p, xs[c]), width = across(p, xs[c + 1]) - left;
      const who = (/client/.test(panel.y.label) ? "client " : "") + name(panel.y, r);
      title = head(panel.x, panel.x.names ? c : Math.round(place[0]));
      lines.push(["", who, number(cells[r][c])]);
      const height = Math.abs(ends[1] - ends[0]);
      make("rect", mark, {x: left, y: Math.min(...ends), width, height});
      top = y;
    } else {
      title = head(panel.x, place[0]);
      make("line", mark, {x1: x, x2: x, y1: t, y2: t + h});
      const byName = {};
      for (const row of rows(p)) {
        const xs = panel.xs[row.x];
        const far = k => xs[k] === null ? Infinity : Math.abs(xs[k] - place[0]);
        // long lines have only some of their points, so take the nearest
        const i = xs.reduce((best, _, k) => far(k) < far(best) ? k : best, 0);
        if (!(far(i) / (panel.x.hi - panel.x.lo) * w < 6)) continue;
        const line = byName[row.n + "\0" + row.s] ||=
          lines[lines.push([row.c, row.n, "", ""]) - 1];
        if (row.y) {
          line[2] = value(panel.y, row.y[i]);
          if (row.y[i] !== null)
            make("circle", mark, {cx: x, cy: upward(p, row.y[i]), r: 3.5, stroke: row.c});
        } else {
          const low = value(panel.y, row.l[i]).replace(panel.y.unit, "");
          line[3] = low + "\u2013" + value(panel.y, row.h[i]);
        }
      }
    }
    tip.replaceChildren();
    tip.appendChild(document.createElement("b")).textContent = title;
    for (const [colour, what, shown, range] of lines) {
      const line = tip.appendChild(document.createElement("div"));
      const key = line.appendChild(document.createElement("i"));
      if (colour) key.style.background = colour; else key.hidden = true;
      line.append(what + " ");
      line.appendChild(document.createElement("strong")).textContent = shown || range || "";
      if (shown && range) line.append(" (" + range + ")");
    }
    tip.hidden = false;
    const box = svg.getBoundingClientRect(), outer = figure.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    const middle = box.left - outer.left + x * scale, wide = tip.offsetWidth;
    const right = middle + 12 + wide < outer.width;
    tip.style.left = Math.max(4, right ? middle + 12 : middle - 12 - wide) + "px";
    const below = outer.width < 420 && !panel.table ? h : 0;  // no room beside the values
    const down = box.top - outer.top + (top + below) * scale + (panel.table ? 12 : 6);
    tip.style.top = Math.max(4, down) + "px";
  }

  function nearest(event) {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const px = (event.clientX - box.left) * scale, py = (event.clientY - box.top) * scale;
    const p = data.panels.findIndex((_, i) => {
      const [l, t, w, h] = frame(i);
      return px > l - 8 && px < l + w + 8 && py > t - 8 && py < t + h + 8;
    });
    if (p < 0) return clear();
    let best = null, least = Infinity;
    for (const place of places(p)) {
      if (place[0] === null) continue;
      const aside = Math.abs(across(p, place[0]) - px);
      const far = aside + (place.length > 1 ? 3 * Math.abs(upward(p, place[1]) - py) : 0);
      if (far < least) [best, least] = [place, far];
    }
    if (best) showValues(p, best); else clear();
  }

  function keys(event) {
    if (event.target !== figure) return;
    const count = data.panels.length, p = at ? at[0] : 0, all = places(p);
    const now = at ? all.findIndex(one => one[0] === at[1][0] && one[1] === at[1][1]) : -1;
    let next = now, panel = p;
    if (event.key === "ArrowRight") next = now + 1;
    else if (event.key === "ArrowLeft") next = now < 0 ? all.length - 1 : now - 1;
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = all.length - 1;
    else if (event.key === "PageDown") panel = (p + 1) % count;
    else if (event.key === "PageUp") panel = (p + count - 1) % count;
    else if (event.key === "Escape") return clear();
    else return;
    event.preventDefault();
    const from = panel === p ? all : places(panel);
    if (from.length) showValues(panel, from[Math.min(from.length - 1, Math.max(0, next))]);
  }

  const labels = [];
  for (const entry of figure.querySelectorAll("[data-k]")) {
    const text = entry.querySelector("text"), index = Number(entry.dataset.k);
    const label = labels[index] = text.textContent;
    const show = () => {
      entry.setAttribute("aria-pressed", String(!off.has(label)));
      for (const shape of figure.querySelectorAll(`[data-s="${index}"]`))
        shape.style.display = off.has(label) ? "none" : "";
    };
    const turn = () => { if (!off.delete(label)) off.add(label); clear(); show(); };
    const facts = {role: "button", tabindex: "0", "aria-label": label};
    for (const fact in facts) entry.setAttribute(fact, facts[fact]);
    entry.addEventListener("click", turn);
    entry.addEventListener("keydown", event => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); turn(); }
    });
    const read = attribute => Number(text.getAttribute(attribute)), size = read("font-size");
    const height = 1.4 * size, width = 34 + 0.62 * size * label.length;
    const x = read("x") - 30, y = read("y") - 1.05 * size;
    entry.prepend(make("rect", entry, {x, y, height, width, class: "area"}));
    show();
  }
  svg.addEventListener("pointermove", nearest);
  svg.addEventListener("pointerdown", nearest);
  svg.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") clear(); });
  figure.addEventListener("keydown", keys);
  figure.addEventListener("blur", clear);
}

document.querySelectorAll("figure.chart").forEach(setUp);
for (const part of document.querySelectorAll("details")) {
  const title = part.querySelector("summary").firstChild.textContent;
  part.open = (history.state || {})[title] ?? part.open;
}
})();
"""

#: Reloads the page of a run that goes on, unless nobody looks at it or a chart shows
#: values. ``SCRIPT`` keeps parts open that the reader has opened, also at the end.
RELOAD = r"""
(() => {
"use strict";
const parts = [...document.querySelectorAll("details")];
const title = part => part.querySelector("summary").firstChild.textContent;
setInterval(() => {
  if (document.hidden || document.querySelector(".mark")) return;
  history.replaceState(Object.fromEntries(parts.map(part => [title(part), part.open])), "");
  location.reload();
}, 3000);
})();
"""

STYLE = """
figure.chart { position: relative; overflow: visible; font-family: inherit; }
figure.chart svg { display: block; width: 100%; height: auto; touch-action: pan-y; }
figure.chart:focus-visible, [data-k]:focus-visible {
  outline: 2px solid var(--accent);
  outline-offset: 1px;
}
.tip {
  position: absolute;
  z-index: 2;
  pointer-events: none;
  max-width: min(20rem, 92%);
  padding: .35rem .6rem;
  font-size: .82rem;
  line-height: 1.45;
  font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere;
  background: var(--card);
  border: 1px solid var(--muted);
  border-radius: .4rem;
  box-shadow: 0 2px 8px #0004;
}
.tip i {
  display: inline-block;
  width: .7em;
  height: .7em;
  border-radius: 50%;
  margin-right: .4em;
}
.tip i[hidden] { display: none; }
.mark { pointer-events: none; }
.mark line { stroke: var(--muted); stroke-width: .8; stroke-dasharray: 3 2; }
.mark circle { fill: var(--card); stroke-width: 2; }
.mark rect { stroke: var(--ink); stroke-width: 1.2; }
[data-k][role] { cursor: pointer; }
[data-k] .area { fill: transparent; }
[data-k][aria-pressed="false"] { opacity: .35; }
@media print { .tip, .mark { display: none; } }
"""


def fingerprint(script: str = SCRIPT) -> str:
    """The source expression for a page's policy that allows only this script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
