"""How long clients take: a model of a fleet of devices, for simulated time.

A training of a client on n samples takes

    slowness_k * exp(jitter * z) * (sample_seconds * epochs * n + bytes / bandwidth)

seconds. ``slowness_k`` is 1, ``1 + spread |z_k|`` (half-normal) or ``exp(spread z_k)``
(log-normal), with standard normal z. Every draw follows from the seed, the client and
the round. Or the seconds are measured ones.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.common.seeds import generator

Client = int | str
MODELS = ("auto", "off", "equal", "half-normal", "log-normal", "file")


@dataclass(frozen=True)
class FleetOptions(Options):
    """Options of simulated time."""

    speed: str = option(
        "auto",
        "how the clients' speeds differ; half-normal: 1 + spread |z| times slower; log-normal: "
        "exp(spread z) times; file: measured seconds; off: time is not simulated; auto: log-normal "
        "if the method or `rounds` depends on time, else off",
        choices=MODELS,
    )
    spread: float = option(
        0.7, "spread of the speeds; 0.7: nine in ten of log-normal ones differ up to tenfold", low=0
    )
    jitter: float = option(0.0, "deviation of the logarithm of a client's seconds", low=0)
    sample_seconds: float = option(
        0.01, "seconds that a client of usual speed trains on a sample once", low=0
    )
    bandwidth: float = option(
        0.0, "bytes a second, down and up, of a client of usual speed; 0: no limit", low=0
    )
    available: float = option(
        1.0, "share of each day in which a client can be asked", low=0, high=1, open_low=True
    )
    day: float = option(86_400.0, "seconds of a day", low=0, open_low=True)
    dropout: float = option(
        0.0, "probability that a client that is asked breaks off", low=0, high=1, open_high=True
    )
    file: str = option(
        "",
        "csv with columns client and seconds, of which a training takes one; or the time.csv of a "
        "run, whose order of replies is then repeated",
    )

    def check(self) -> None:
        """Check combinations of options."""
        if (self.speed == "file") != bool(self.file):
            raise ValueError(
                f"speed = {self.speed!r}, file = {self.file!r}: a file needs speed = 'file', and "
                "speed = 'file' a file"
            )


@dataclass(frozen=True)
class Training:
    """The result of :meth:`Fleet.training`. ``arrival``: of its reply, in seconds of
    the run; infinite if there is none. ``broken``: the client breaks off, and its
    reply is an error. ``asked``: when it was asked in the run that is repeated.
    ``share``: of its samples times epochs that it goes through. ``whole``: the arrival
    of a reply after all of them; ``steps``: the seconds that these take, 0 if the
    training cannot be shortened.
    """

    arrival: float
    broken: bool = False
    asked: float = 0.0
    share: float = 1.0
    whole: float = math.inf
    steps: float = 0.0

    def within(self, until: float, whole_steps: Callable[[float], float]) -> "Training":
        """Return the training after as many steps as are in time for ``until``; itself
        if all are, or not even one. ``whole_steps``: share -> the share of the whole
        steps in it.
        """
        if self.whole <= until or not self.steps:
            return self
        share = whole_steps(max(0.0, 1 - (self.whole - until) / self.steps))
        arrival = min(until, self.whole - (1 - share) * self.steps)
        if not share or (self.broken and self.arrival <= arrival):
            return self
        return replace(self, arrival=arrival, broken=False, share=share)


@dataclass
class Fleet:
    """The clients' speeds. ``measured``: what ``speed = "file"`` goes by;
    ``name(client)``: what it calls a client.
    """

    options: FleetOptions = field(default_factory=lambda: FleetOptions(speed="log-normal"))
    seed: int = 0
    measured: "Measured | None" = None
    name: Callable[[Client], Client] = lambda client: client
    _slowness: dict[Client, float] = field(default_factory=dict)

    def slowness(self, client: Client) -> float:
        """Return how many times longer than usual a client takes."""
        if client not in self._slowness:
            z = float(generator(self.seed, "speed", client).standard_normal())
            spread, kind = self.options.spread, self.options.speed
            self._slowness[client] = (
                1 + spread * abs(z)
                if kind == "half-normal"
                else math.exp(spread * z)
                if kind == "log-normal"
                else 1.0
            )
        return self._slowness[client]

    def training(
        self, client: Client, number: int, began: float, work: float, size: int
    ) -> Training:
        """Return when a training of round ``number`` ends that began at ``began``.
        ``work``: samples times epochs; ``size``: bytes of the messages down and up.
        """
        options = self.options
        if self.measured:
            return self.measured.training(str(self.name(client)), number, began, self.seed)
        if not (options.jitter or options.dropout):
            z, lot, share = 0.0, 1.0, 1.0
        else:
            rng = generator(self.seed, "duration", client, number)
            z, (lot, share) = float(rng.standard_normal()), map(float, rng.random(2))
        factor = self.slowness(client) * math.exp(options.jitter * z)
        steps = options.sample_seconds * work
        seconds = (steps + (size / options.bandwidth if options.bandwidth else 0.0)) * factor
        whole, broken = began + seconds, lot < options.dropout
        arrival = began + seconds * share if broken else whole
        return Training(arrival, broken, whole=whole, steps=steps * factor)

    def available(self, client: Client, number: int, now: float) -> bool:
        """Return whether a client can be asked in round ``number``, at ``now``: in a
        part of each day that begins at an hour of its own; of a run that is repeated,
        as it was there. Raises ``ValueError`` after that run's last round.
        """
        options = self.options
        if self.measured and not self.measured.available(str(self.name(client)), number):
            return False
        return options.available >= 1 or self.opens(client, now) <= now

    def opens(self, client: Client, now: float) -> float:
        """Return ``now``, or when the client's part of a day begins next."""
        day, start = self.options.day, float(generator(self.seed, "hour", client).random())
        days = now / day - start
        if days % 1.0 < self.options.available:
            return now
        return (math.floor(days) + 1 + start) * day


class Measured:
    """Seconds of trainings, or times of arrival, that were measured; ``rows``: of a
    file, by column. Raises ``ValueError`` if they hold neither.
    """

    def __init__(self, rows: Sequence[Mapping[str, str]]) -> None:
        self._arrivals: dict[tuple[str, int], Training] = {}
        self._seconds: dict[str, list[float]] = {}
        self._there: set[tuple[str, int]] = set()
        self._rounds = 0
        try:
            for row in rows:
                if "arrived" in row:
                    key = row["client"], int(row["round"])
                    ended = int(row["ended"])
                    self._rounds = max(self._rounds, ended)
                    self._there |= {(key[0], n) for n in range(key[1], ended + 1)}
                    self._arrivals[key] = Training(
                        float(row["arrived"] or "inf"),
                        row["fate"] == "failed",
                        float(row["asked"]),
                        float(row.get("share") or 1.0),
                    )
                else:
                    self._seconds.setdefault(row["client"], []).append(float(row["seconds"]))
            least = min((min(of_client) for of_client in self._seconds.values()), default=0.0)
        except KeyError as error:
            raise ValueError(f"it has no column {error}") from None
        except (TypeError, ValueError):
            raise ValueError(f"a row is not complete: {dict(row)}") from None
        if not (self._arrivals or self._seconds) or not least >= 0:
            raise ValueError("it has no rows, or negative seconds")

    def available(self, client: str, number: int) -> bool:
        """Return whether a client trained in a round of the run that is repeated, and
        was not gone. Raises ``ValueError`` after that run's last round.
        """
        if self._arrivals and number > self._rounds:
            raise ValueError(
                f"time.file: that run ended with round {self._rounds}: a run is repeated with its "
                "own settings"
            )
        return not self._arrivals or (client, number) in self._there

    def training(self, client: str, number: int, began: float, seed: int) -> Training:
        """Return when a training ends: as it was in that round, or after some measured
        seconds of the client. Raises ``ValueError`` if there are none.
        """
        if (client, number) in self._arrivals:
            return self._arrivals[client, number]
        if client not in self._seconds:
            raise ValueError(
                f"time.file: has no seconds of client {client} in round {number}: a run is "
                "repeated with its own settings"
            )
        of_client = self._seconds[client]
        seconds = of_client[generator(seed, "duration", client, number).integers(len(of_client))]
        return Training(began + seconds, whole=began + seconds, steps=seconds)
