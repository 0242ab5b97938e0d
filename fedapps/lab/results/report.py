"""The report of one run: `report.html`, one file that can be mailed and read anywhere.

It is made from files alone, so an interrupted run has one too.

A run's end is shown on the terminal of `fedapps run`, and in the log of `flwr run`,
which is all that the user of somebody else's SuperLink sees.
"""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from fedapps.algorithms.common.measures import lower_is_better
from fedapps.formats import (
    LEADING_MEANS,
    metric_name,
    metric_text,
    one_line,
)
from fedapps.lab.charts import html
from fedapps.lab.charts.chart_script import RELOAD, SCRIPT
from fedapps.lab.charts.html import Html
from fedapps.lab.charts.theme import MOST
from fedapps.lab.results.class_tables import trivial_sentence
from fedapps.lab.results.compare import compared
from fedapps.lab.results.fair_plots import fair_measure
from fedapps.lab.results.parts import PLOTS, REPORT, RUN, charts, run_sections
from fedapps.records.files import write_text
from fedapps.records.reader import RunFolder, is_number, read_run
from fedapps.records.synthetic_set import PICTURE

# Rows a browser still scrolls easily; the files hold the rest.
_MAX_CLIENT_ROWS = 400
_MAX_FAILURE_ROWS = 300
_MARKS = {"completed": "✓", "failed": "✗", "interrupted": "‖", "running": "…"}

_CARDS = {
    "auroc-mean": "AUROC, mean over clients",
    "auroc-worst10": "AUROC, worst 10 % of clients",
    "auroc-worst": "AUROC of the worst client",
    "auroc-parity-gap": "AUROC, best to worst client",
    "rmse-mean": "RMSE, mean over clients",
    "rmse-pooled": "RMSE of all samples",
    "mae-pooled": "MAE of all samples",
    "r2-pooled": "R² of all samples",
    "rmse-worst": "RMSE of the worst client",
    "rmse-worst10": "RMSE, worst 10 % of clients",
    "global-rmse-mean": "RMSE of the global model",
    "new-rmse-mean": "RMSE of new clients, not trained",
    "new-rmse-1-mean": "RMSE of new clients, 1 epoch",
    "concordance-mean": "concordance, mean over clients",
    "concordance-pooled": "concordance of all pairs within clients",
    "concordance-worst": "concordance of the worst client",
    "concordance-worst10": "concordance, worst 10 % of clients",
    "global-concordance-mean": "concordance of the global model",
    "accuracy-mean": "accuracy, mean over clients",
    "accuracy-std": "std over clients",
    "accuracy-worst10": "worst 10 % of clients",
    "accuracy-best10": "best 10 % of clients",
    "loss-worst10": "loss, worst 10 % of clients",
    "parity-gap": "best to worst client",
    "gini": "Gini coefficient",
    "global-accuracy-mean": "accuracy of the global model",
    "new-accuracy-mean": "accuracy of new clients, not trained",
    "new-accuracy-1-mean": "accuracy of new clients, 1 epoch",
    "test-accuracy": "accuracy on the server's test images",
    "frechet": "Fréchet distance",
    "macro-f1-pooled": "macro F1 of all samples",
    "ece-mean": "calibration error (ECE)",
    "group-accuracy-gap": "accuracy, best to worst group",
    "demographic-parity-gap": "demographic parity gap",
    "equalised-odds-gap": "equalised odds gap",
    "bytes-up": "sent by clients",
    "bytes-down": "sent to clients",
    "models-up": "models sent by clients",
    "models-down": "models sent to clients",
    "seconds": "time in rounds",
    "failures": "failed replies",
}


def write_report(folder: Path | str) -> Path:
    """Write `report.html` into the folder of a run and return its path.

    Raises ``UserError`` if the folder holds no run.
    """
    run = read_run(folder)
    path = run.path / "report.html"
    write_text(path, report_html(run))
    return path


def report_html(run: RunFolder, going: str = "") -> str:
    """The report as text. ``going``: for a run that goes on, a sentence on when it
    ends; the page then reloads itself.
    """
    scripts = (SCRIPT, RELOAD) if going else (SCRIPT,)
    return html.page(report_title(run), report_body(run, going), scripts)


def report_title(run: RunFolder) -> str:
    """The title of the window."""
    return f"{run.method} on {run.subject}" if run.subject else run.method


def report_body(run: RunFolder, going: str) -> list[Html]:
    """The parts of the report."""
    state = f"{_MARKS[run.state]} {state_sentence(run)}"
    pictures = charts(PLOTS[RUN], run)
    measures = pictures.pop("measures", None)
    body = [
        html.header(run.method, run.subject, _subtitle(run), run.state, state),
        *([html.paragraph(going, "quiet")] if going else []),
        *([html.paragraph(below)] if (below := trivial_sentence(run)) else []),
        *_key_numbers(run),
    ]
    if pictures:
        body += [
            html.heading("Plots"),
            *_thinning(run),
            html.panel(Html("".join(pictures.values())), "plots"),
        ]
    body += _synthetic(run)
    body += [section.as_html() for section in run_sections(run, REPORT)]
    body.append(html.heading("Details"))
    if measures:
        names = "each a small plot over the rounds"
        body.append(html.collapsible("Other measures", names, measures, is_open=not pictures))
    return [
        *body,
        *_details(run),
        html.heading("Repeat this run"),
        html.paragraph(
            "Run this in the folder of the report. settings.toml holds all settings and the seed.",
            "quiet",
        ),
        Html("<pre>fedapps run settings.toml --out again</pre>"),
    ]


def _thinning(run: RunFolder) -> list[Html]:
    """A note on points that the plots leave out."""
    rounds, clients = len(run.rounds), len(run.clients)
    many = [f"{rounds} rounds"] * (rounds > MOST) + [f"{clients} clients"] * (clients > MOST)
    if not many:
        return []
    note = (
        f"A line shows about {MOST} points (a small plot {MOST // 3}) of the "
        f"{' and '.join(many)}: the lowest and the highest value of each stretch, so no peak is "
        "missing. All values are in rounds.jsonl and clients.csv."
    )
    return [html.paragraph(note, "quiet")]


def _synthetic(run: RunFolder) -> list[Html]:
    """The synthetic images of the last round."""
    path, title = run.path / PICTURE, "Synthetic images"
    if not path.is_file():
        return []
    return [html.heading(title), html.panel(html.image(title, path.read_bytes()), "plots")]


def state_sentence(run: RunFolder) -> str:
    """How the run ended, in one line."""
    planned = f"{run.rounds_completed} of {run.num_rounds or '?'} rounds"
    if run.state == "completed":
        stopped = run.summary.get("stopped-early") is True
        why = ", as validation scores got no better" if stopped else ""
        return f"Completed: {planned}{why}.{scored_sentence(run)}"
    if run.state == "failed":
        return f"Failed after {planned}{': ' + run.reason if run.reason else '.'}"
    numbers = (
        f"the numbers are those of round {run.scored_round}"
        if run.scored
        else "there was no evaluation yet"
    )
    if run.state == "running":
        return f"Not finished: {planned}; {numbers}. The run is still going, or it was stopped."
    return f"Interrupted after {planned}; {numbers}. Continue it with “fedapps run --resume”."


def scored_sentence(run: RunFolder) -> str:
    """Which round the numbers are from; "" if it is the last one in any case."""
    if not run.chose_round:
        return ""
    return (
        f" Numbers and models are those of round {run.scored_round}, the best by the clients' "
        "validation samples."
    )


def _subtitle(run: RunFolder) -> str:
    parts = [f"seed {one_line(str(run.seed))}" if run.seed is not None else "seed unknown"]
    if run.clients:
        parts.append(f"{len(run.clients)} clients evaluated")
    if "clients-per-round" in run.settings:
        sampled = run.settings["clients-per-round"]
        parts.append(
            f"{one_line(str(sampled))} clients a round" if sampled else "all clients in every round"
        )
    # Other tasks have neither a partition nor a net.
    learns = any(key in run.numbers for key in LEADING_MEANS)
    if learns and "data.partition" in run.settings:
        parts.append(f"partition {one_line(str(run.settings['data.partition']))}")
    if learns and "model.name" in run.settings:
        parts.append(f"model {one_line(str(run.settings['model.name']))}")
    return " · ".join(parts)


def _key_numbers(run: RunFolder) -> list[Html]:
    """Return the numbers that matter as large cards (mean, worst tenth), and the others
    as small ones.
    """
    measure = fair_measure([run])
    numbers, mean = run.numbers, f"{measure}-mean"
    if mean not in numbers:
        # most tasks without accuracies minimise a mean weighted by samples: it is first
        first = sorted(run.evaluation, key=lambda key: not key.endswith("-weighted"))[:6]
        labels = {key: metric_name(key) for key in first} | _CARDS
        return [html.cards(_card_entries(numbers, labels))]
    worst = next((k for k in (f"{measure}-worst10", f"{measure}-worst") if k in numbers), "")
    lead = [
        _card_entries(numbers, {key: _CARDS.get(key, metric_name(key))})[0]
        for key in (mean, worst)
        if key
    ]
    low, high = numbers.get(f"{mean}-low"), numbers.get(f"{mean}-high")
    if low is not None and high is not None:
        bounds = f"95 % interval: {metric_text(mean, low)} to {metric_text(mean, high)}"
        lead[0] = (*lead[0][:2], bounds)
    rest = {key: label for key, label in _CARDS.items() if key not in (mean, worst)}
    return [html.cards(lead, "cards lead"), html.cards(_card_entries(numbers, rest))]


def _card_entries(
    numbers: Mapping[str, float], labels: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    return [
        (label, metric_text(key, numbers[key]), "")
        for key, label in labels.items()
        if key in numbers
    ]


def _details(run: RunFolder) -> list[Html]:
    """The tables that open on a click."""
    parts = []
    if run.unreadable_lines:
        parts.append(
            html.paragraph(
                f"rounds.jsonl holds {run.unreadable_lines} unreadable line(s), left out here."
            )
        )
    if run.failures:
        shown = run.failures[:_MAX_FAILURE_ROWS]
        rows = [(failure.round, failure.client, failure.reason) for failure in shown]
        note = f"{len(run.failures)} left out of their rounds" + _cut(
            len(shown), len(run.failures), "rounds.jsonl"
        )
        parts.append(
            html.collapsible(
                "Failed replies",
                note,
                html.table(["round", "client", "reason"], rows, 3),
                is_open=len(rows) <= 10,
            )
        )
    if acted := run.bounded:
        parts.append(
            html.collapsible(
                "Bounds",
                "replies whose weight was capped or whose update was shortened",
                html.table(
                    ["client", *acted[0][1]],
                    [(name, *n.values()) for name, n in acted[:_MAX_FAILURE_ROWS]],
                ),
            )
        )
    if run.clients:
        parts.append(_client_table(run))
    numbers = [(metric_name(key), metric_text(key, value)) for key, value in run.numbers.items()]
    parts.append(html.collapsible("All numbers", "of the whole run", html.pairs(numbers)))
    if run.settings:
        rows_of_settings = [
            (Html(f"<code>{html.text(k)}</code>"), _setting(v)) for k, v in run.settings.items()
        ]
        parts.append(html.collapsible("Settings", "settings.toml", html.pairs(rows_of_settings)))
    if run.versions:
        versions = [(one_line(name), one_line(version)) for name, version in run.versions.items()]
        note = ", ".join(f"{name} {version}" for name, version in versions)
        parts.append(html.collapsible("Versions", note, html.pairs(versions)))
    return parts


def _client_table(run: RunFolder) -> Html:
    columns = list(dict.fromkeys(key for row in run.clients for key in row))
    columns.sort(key=lambda key: key != "client")
    measure = fair_measure([run])
    order = (
        measure if measure in columns else next((key for key in columns[1:] if run.column(key)), "")
    )
    sign = -1 if lower_is_better(order) else 1
    rows = sorted(
        run.clients,
        key=lambda row: sign * row[order] if is_number(row.get(order)) else float("inf"),
    )
    shown = rows[:_MAX_CLIENT_ROWS]
    end = "highest" if sign < 0 else "lowest"
    note = f"{len(rows)}, {end} {metric_name(order)} first" if order else f"{len(rows)}"
    return html.collapsible(
        "Clients",
        note + _cut(len(shown), len(rows), "clients.csv"),
        html.table(
            [metric_name(key) for key in columns],
            [[_cell(key, row.get(key)) for key in columns] for row in shown],
        ),
    )


def _cell(key: str, value: object) -> str:
    return (
        ""
        if value is None
        else one_line(str(value), 60)
        if key == "client"
        else metric_text(key, value)
    )


def _cut(shown: int, total: int, file: str) -> str:
    return f"; the first {shown} are shown, all are in {file}" if shown < total else ""


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return one_line(str(value))


def show_ending(folder: Path, console: Console) -> None:
    """Print the table of a run and its small tables."""
    console.print(compared([folder]).table)
    run = read_run(folder)
    if sentence := scored_sentence(run).strip():
        console.print(sentence)
    if below := trivial_sentence(run):
        console.print(below)
    for section in run_sections(run):
        console.print(section.terminal())
