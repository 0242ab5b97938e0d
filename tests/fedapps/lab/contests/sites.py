"""Tables of a known truth, for contests."""

import csv

from benchmarks.truths import truth


def write_sites(path, sites, poisoned=(), factor=1.0, left_out=()):
    """Write the rows of some sites. The test targets of those ``poisoned`` are wrong by
    a factor. ``left_out``: a site and a part without rows.
    """
    truth("same", 0).write(path.with_name("all.csv"), 0)
    with path.with_name("all.csv").open() as whole, path.open("w", newline="") as file:
        rows = csv.DictReader(whole)
        writer = csv.DictWriter(file, rows.fieldnames)
        writer.writeheader()
        for row in rows:
            site, part = row["client"], row["part"]
            if site in sites and (site, part) != left_out:
                bad = site in poisoned and part == "test"
                writer.writerow(row | ({"y": factor * float(row["y"])} if bad else {}))
