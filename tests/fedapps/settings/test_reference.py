"""Pages and blocks generated from the options are up to date, complete and readable."""

import tomllib
from dataclasses import dataclass, field

import pytest

from fedapps.algorithms.common.options import Options, option
from fedapps.commands.parser import main
from fedapps.commands.settings import overview
from fedapps.settings.reading import default_config
from fedapps.settings.reference import all_tables, chosen, described, settings_in
from fedapps.strategies import PrivacyOptions
from fedapps.toml_text import flatten_toml
from tests.helpers import lacking, refused, write_file
from tools.generate import main as generate
from tools.settings_pages import (
    MARKDOWN_END,
    TOML_END,
    TOML_START,
    markdown_page,
    markdown_table,
    pages_of_tables,
    toml_block,
    with_tables,
    with_toml,
)


@dataclass(frozen=True)
class Small(Options):
    """A table of the settings."""

    rate: float = option(0.5, "of |steps|; 0: train.rate", low=0, high=1, open_low=True)
    lambda_: int = option(2, "weight", low=0)
    kind: str = option("a", "which", choices=["a", "b"])
    long: str = option("", "x" * 110)
    other: bool = False


@dataclass(frozen=True)
class Top:
    """Settings of a run."""

    num_rounds: int = option(50, "rounds", low=1)
    rest: object = None
    part: Small = field(default_factory=Small)


SMALL = settings_in({"": Top, "train": Small})


def test_nothing_generated_is_stale():
    assert generate(["--check"]) == 0


def test_every_setting_is_in_the_reference_with_its_default():
    known = settings_in(all_tables())
    assert {setting.key: setting.default for setting in known} == default_config()
    listed = flatten_toml(tomllib.loads(toml_block(known, {})))["tool.flwr.app.config.dp.delta"]
    assert listed == PrivacyOptions().delta
    assert all(len(line) <= 130 or "# " not in line for line in toml_block(known, {}).splitlines())
    page = markdown_page(known, {})
    assert [setting.key for setting in known if f"| `{setting.key}` | " not in page] == []


def test_a_table_shown_on_another_page_is_a_link():
    text = f"<!-- settings: train other.key -->\n\nold\n\n{MARKDOWN_END}\n"
    elsewhere = pages_of_tables({"a.md": text, "b.md": "none"})
    assert elsewhere == {"train": "a.md", "other": "a.md"}
    page = markdown_page(SMALL, {}, elsewhere)
    assert lacking(
        page, "On pages of their own: [`train`](a.md).", "`train.rate` |", "| `num-rounds` |"
    ) == ["`train.rate` |"]


def test_the_block_has_help_where_there_is_room():
    assert toml_block(SMALL, {"train": ["fedone", "fedtwo"], "": []}) == "\n".join(
        [
            "[tool.flwr.app.config]",
            "num-rounds = 50         # rounds (from 1)",
            "",
            "[tool.flwr.app.config.train]  # fedone, fedtwo",
            "rate = 0.5              # of |steps|; 0: train.rate (0, 1]",
            "lambda = 2              # weight (from 0)",
            'kind = "a"              # which (a | b)',
            'long = ""',
            "other = false",
            "",
        ]
    )


def test_tables_of_pages():
    rows = markdown_table(
        chosen(SMALL, ["train.rate", "train.kind", "train.other", "num-rounds"]), ["", "train"]
    ).splitlines()
    assert rows[2:] == [
        r"| `train.rate` | `0.5` | of \|steps\|; 0: `train.rate` (0, 1] |",
        '| `train.kind` | `"a"` | which (`a`, `b`) |',
        "| `train.other` | `false` |  |",
        "| `num-rounds` | `50` | rounds |",
    ]
    text = (
        f"# A\n\n<!-- settings: a b -->\nold\n{MARKDOWN_END}\n\nkept\n<!-- settings: c "
        f"-->\n{MARKDOWN_END}\n"
    )
    made = with_tables(text, " and ".join)
    assert made == (
        f"# A\n\n<!-- settings: a b -->\n\na and b\n\n{MARKDOWN_END}\n\nkept\n<!-- settings: c "
        f"-->\n\nc\n\n{MARKDOWN_END}\n"
    )
    assert with_tables(made, " and ".join) == made
    for broken in (
        f"<!-- settings: a -->\n\n<!-- settings: b -->\n{MARKDOWN_END}\n",
        "<!-- settings: a -->\n",
    ):
        refused(lambda: with_tables(broken, " ".join), "has no line")


def test_the_block_is_written_between_its_markers():
    text = with_toml(f"a = 1\n{TOML_START}\nold\n{TOML_END}\nb = 2\n", "new\n")
    assert text == f"a = 1\n{TOML_START}\nnew\n{TOML_END}\nb = 2\n"
    refused(lambda: with_toml(f"a = 1\n{TOML_START}\n", "new\n"), "lacks the lines")


def test_text_shown_in_a_terminal():
    assert [described(setting) for setting in chosen(SMALL, ["train.rate", "train.other"])] == [
        "train.rate: number, default 0.5, (0, 1]\n    of |steps|; 0: train.rate",
        "train.other: true or false, default false",
    ]
    assert overview(SMALL, 80).splitlines()[:2] == [
        "       num-rounds",
        "train  rate, lambda, kind, long, other",
    ]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 0, "superfed"),
        (["superfed"], 0, "superfed.nu: number, default 0.0, from 0\n"),
        (["aaggff.ridge"], 0, "paper | reference"),
        (
            ["superfed.nuu"],
            2,
            "fedapps: unknown setting 'superfed.nuu': did you mean 'superfed.nu'?",
        ),
    ],
)
def test_the_command(words, status, said, capsys):
    assert main(["settings", *words]) == status
    shown = capsys.readouterr()
    assert said in (shown.err if status else shown.out)


def test_a_stale_file_fails_the_check_and_is_written_without_it(monkeypatch, tmp_path, capsys):
    page = write_file(tmp_path / "page.md", "as it was")
    monkeypatch.setattr("tools.generate.ROOT", tmp_path)
    monkeypatch.setattr("tools.generate.generated", lambda root: {page: "as it was"})
    assert generate(["--check"]) == 0
    monkeypatch.setattr("tools.generate.generated", lambda root: {page: "as it is"})
    assert generate(["--check"]) == 1
    assert "page.md: stale, run: make generate" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == "as it was"
    assert generate([]) == 0
    assert page.read_text(encoding="utf-8") == "as it is"
