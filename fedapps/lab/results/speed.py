"""What a run's clock says of its clients: a table of them by their speed."""

from statistics import fmean

import numpy as np

from fedapps.formats import metric_name, metric_text, percent_text, seconds_text
from fedapps.lab.results.fair_plots import fair_measure
from fedapps.lab.results.sections import Section
from fedapps.records.reader import RunFolder
from fedapps.records.time_log import read_times, seconds_by_client

#: With fewer clients, quarters say little.
FEW = 8
QUARTERS = ("fastest quarter", "second", "third", "slowest quarter")


def speed_section(run: RunFolder) -> Section | None:
    """Return the clients' trainings and scores by quarter of speed; ``None`` if the run
    had no clock or has few clients.
    """
    trainings = read_times(run.path)
    seconds, fates = seconds_by_client(trainings), dict[str, list[str]]()
    shares = dict[str, list[float]]()
    for row in trainings:
        fates.setdefault(row["client"], []).append(row["fate"])
        shares.setdefault(row["client"], []).extend([row["share"]] if "share" in row else [])
    partial = any(share < 1 for of_client in shares.values() for share in of_client)
    if len(seconds) < FEW:
        return None
    measure = fair_measure([run])
    scores = {str(row["client"]): row.get(measure) for row in run.clients}
    order = sorted(seconds, key=lambda client: fmean(seconds[client]))
    replies = sum(fate == "used" for of_client in fates.values() for fate in of_client)
    rows = []
    for name, quarter in zip(QUARTERS, np.array_split(np.array(order, object), 4), strict=True):
        own = [fate for client in quarter for fate in fates[client]]
        done = [share for client in quarter for share in shares[client]]
        known = [s for client in quarter if isinstance(s := scores.get(client), int | float)]
        rows.append(
            (
                name,
                seconds_text(fmean(fmean(seconds[client]) for client in quarter)),
                str(len(own)),
                percent_text(sum(fate == "used" for fate in own) / max(replies, 1)),
                str(sum(fate == "late" for fate in own)),
                *([percent_text(fmean(done)) if done else "-"] if partial else []),
                metric_text(measure, fmean(known), unit=False) if known else "-",
            )
        )
    header = (
        *("clients", "a training", "times asked", "of the replies", "late"),
        *(["of the steps"] if partial else []),
        "score",
    )
    note = (
        f"Score: {metric_name(measure)}, mean over the quarter's clients. Fast clients that give "
        "more of the replies pull the model their way."
    )
    return Section("Clients by speed", note, header, tuple(rows))
