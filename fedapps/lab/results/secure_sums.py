"""How secure sums went, as a table of one row: who was in them, and what they cost."""

from statistics import median

from fedapps.formats import bytes_text, percent_text, seconds_text
from fedapps.lab.results.sections import Section
from fedapps.records.reader import RunFolder


def secure_section(run: RunFolder) -> Section | None:
    """Return the table; ``None`` if the run made no secure sums."""
    if run.settings.get("secure.on") is not True:
        return None
    summed = [row for row in run.rounds if "secure-survivors" in row]
    asked = sum(row["secure-asked"] for row in summed)
    inside = [int(row["secure-survivors"]) for row in summed]
    cells = ("-",) * 5
    if summed:
        spent = sum(row["secure-seconds"] for row in summed)
        plain = sum(row["bytes-up"] for row in summed)
        cells = (
            f"{min(inside)} to {max(inside)}",
            percent_text(sum(inside) / max(1, asked)),
            f"{median(row['secure-phases'] for row in summed):g}",
            f"{seconds_text(spent / len(summed))}",
            f"{bytes_text(sum(row['travelled-up'] for row in summed) / len(summed))}"
            + (f"\n{sum(r['travelled-up'] for r in summed) / plain:.2f} times" if plain else ""),
        )
    rounds = f"{len(summed)} of {len(run.rounds)}"
    header = ("rounds summed", "clients in a sum", "of those asked", "extra phases")
    note = (
        "The server learnt sums, and no single reply. Extra phases: the median of a round; "
        "seconds: of a round beside the training; sent up: by all clients in a round, and how "
        "many times the bytes of replies in the clear. A round without a sum kept the model."
    )
    return Section("Secure sums", note, (*header, "seconds", "sent up"), ((rounds, *cells),))
