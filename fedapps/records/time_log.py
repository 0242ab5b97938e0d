"""time.csv: when every training was asked for, when its reply arrived, and what became
of it. A simulated run with ``time.file`` set to it repeats the order of replies.

Columns: client; round, in which it was asked; asked, arrived: seconds of the run (empty
if there was no reply); share: of its local steps that a used reply has; fate: used,
failed, late (dropped) or open (at the end of the run); ended: the round in which that
was decided.
"""

import csv
import math
from collections.abc import Callable, Iterable
from pathlib import Path

from fedapps.records.files import Files, csv_text
from fedapps.strategies.base.clocks import Flight
from fedapps.strategies.base.named_grid import ClientId
from fedapps.strategies.base.rounds import Ending, Observer
from fedapps.strategies.base.timing import Timing

FILE = "time.csv"
COLUMNS = ["client", "round", "asked", "arrived", "share", "fate", "ended"]


class TimeLog(Observer):
    """Writes the file from what ``timing`` reports; ``done``: rows of later rounds are
    dropped; ``called``: the name of a client.
    """

    def __init__(
        self,
        timing: Timing,
        files: Files,
        folder: Path,
        done: int,
        called: Callable[[ClientId], ClientId],
    ) -> None:
        self.timing, self.files, self.number, self.called = timing, files, done, called
        timing.log = self.add
        rows = []
        if (folder / FILE).exists():
            with (folder / FILE).open(encoding="utf-8", newline="") as file:
                rows = list(csv.reader(file))[1:]
        kept = [row for row in rows if len(row) == len(COLUMNS) and int(row[-1]) <= done]
        files.replace(FILE, csv_text([COLUMNS, *(r for r in kept if r[-2] != "open")]))

    def end(self, ending: Ending) -> None:
        """Append the flights that are open at the end."""
        self.add(self.timing.clock.flights, self.number)

    def add(self, flights: Iterable[Flight], number: int) -> None:
        """Append the flights that ended in round ``number``."""
        self.number = number
        rows = [
            [
                self.called(flight.client),
                flight.number,
                repr(flight.began),
                repr(flight.arrived) if flight.arrived < math.inf else "",
                repr(flight.share) if flight.fate == "used" else "",
                flight.fate or "open",
                number,
            ]
            for flight in flights
        ]
        if rows:
            self.files.append(FILE, csv_text(rows))
