"""A source of samples, and the settings that name it."""

import re
from dataclasses import dataclass
from pathlib import Path

from fedapps.algorithms.common.options import nearest
from fedapps.data.options import DataOptions
from fedapps.errors import UserError

#: Endings of files, which no hub set's name has: one that is not there is not looked
#: for elsewhere.
ENDINGS = (
    *(".csv", ".tsv", ".parquet", ".arrow", ".json", ".jsonl", ".npz", ".npy", ".txt", ".zip"),
    *(".gz", ".bz2", ".zst", ".xlsx"),
)
#: Stands for a column: names a sample's file.
FILE = "@file"
#: The setting of the clients' column in sites' own data.
SITE_CLIENT = "sites.client"
#: A set that the task generates.
GENERATED = "generated"
#: The parts of a set: samples to train on, to validate with, to be scored on.
TRAIN, VALIDATION, TEST = range(3)
#: What people call them.
PART_NAMES = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), TEST),
}


def is_local(source: str) -> bool:
    """Return whether a source is a folder or file, not a hub name: it exists, or is
    written as a path or a file.
    """
    return (
        source.startswith(("/", "./", "../", "~"))
        or source in (".", "..")
        or source.lower().endswith(ENDINGS)
        or Path(source).exists()
    )


@dataclass(frozen=True)
class Source:
    """A folder, a file or a hub set, which of its splits are read, and the settings
    that say so: error messages name these.

    ``test``, ``validation_split``: further splits, "" for none. ``table``, ``key``: the
    setting of ``name``. ``split_setting``: that of ``split``, "" for ``split`` in the
    same table. ``client``: that of the column that names a sample's client.
    """

    name: str
    split: str = "train"
    config: str = ""
    test: str = ""
    validation_split: str = ""
    table: str = "data"
    key: str = "source"
    split_setting: str = ""
    client: str = "data.natural-id"

    @classmethod
    def of(cls, options: DataOptions) -> "Source":
        """Return the source in the table ``data``."""
        return cls(
            options.source, options.split, options.config, options.test, options.validation_split
        )

    def __str__(self) -> str:
        return self.name

    @property
    def is_site(self) -> bool:
        """Whether these are a site's own data: the server reads messages about them."""
        return self.client == SITE_CLIENT

    @property
    def setting(self) -> str:
        """The setting of the name."""
        return f"{self.table}.{self.key}"

    @property
    def given(self) -> str:
        """The setting of the name with its value."""
        return f"{self.setting} = {self.name!r}"

    @property
    def given_split(self) -> str:
        """The setting of the split with its value."""
        return f"{self.split_setting or f'{self.table}.split'} = {self.split!r}"

    @property
    def first_row(self) -> int:
        """The number of the first row as the file counts: of a csv the header is row
        1.
        """
        return 2 if re.search(r"\.[ct]sv(\.\w+)?$", self.name.lower()) else 0

    def local_path(self) -> Path | None:
        """Return the folder or file; None for a hub name. Raises ``UserError`` if it
        does not exist.
        """
        if self.name == "digits":
            raise UserError(
                f"{self.given}: this task cannot use them: name a folder or a hub data set"
            )
        path = Path(self.name).expanduser().resolve() if is_local(self.name) else None
        if path is not None and not path.exists():
            what = "file" if self.name.lower().endswith(ENDINGS) else "folder"
            beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
            hint = nearest(path.name, beside).strip()
            raise UserError(f"{self.given}: there is no such {what}{f': {hint}' if hint else ''}")
        return path
