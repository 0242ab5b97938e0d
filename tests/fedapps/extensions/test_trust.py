"""A results folder from elsewhere does not choose what is executed here."""

import sys

import pytest

import fedapps
from fedapps.commands.parser import main
from fedapps.errors import UserError
from fedapps.lab.results.report import write_report
from tests.helpers import refused, run_inline

NAMED = {
    "model.name": "evil:Net",
    "method": "evil.part:METHOD",
    "task": "evil:TASK",
    "aaggff-d.base": "evil:METHOD",
}


@pytest.fixture
def folder(tmp_path, modules):
    """A finished run as the current folder, and code in it that leaves a trace."""
    run_inline(tmp_path, **{"num-clients": 2, "num-rounds": 1})
    return modules(evil=f"open({str(tmp_path / 'executed')!r}, 'w').close()\n")


@pytest.mark.parametrize("key", list(NAMED))
def test_code_of_a_foreign_folder_is_not_executed(folder, key, error_of):
    settings = (folder / "settings.toml").read_text()
    table, _, name = key.rpartition(".")
    lines = [line for line in settings.splitlines() if not line.startswith(f"{name} = ")]
    head = f"[{table}]" if table else ""
    if head and head not in lines:
        lines.append(head)
    lines.insert(lines.index(head) + 1 if head else 0, f'{name} = "{NAMED[key]}"')
    (folder / "settings.toml").write_text("\n".join(lines))
    for words in (["export", "."], ["export", ".", "--client", "0"], ["run", "--resume"]):
        assert error_of(*words, *(["--out", "."] if words[0] == "run" else [])) == (
            f"fedapps: settings.toml: {key} = {NAMED[key]!r} is code: {folder / 'evil.py'} would "
            "be executed: add --trust if you trust it\n"
        )
    refused(lambda: fedapps.load(".").model(), "add trust=True if you trust it", UserError)
    main(["compare", "."])
    main(["figures", "."])
    write_report(".")
    assert not (folder / "executed").exists()
    for words in (["export", ".", "--trust"], ["run", "--resume", "--out", ".", "--trust"]):
        main(words)
        assert (folder / "executed").exists()
        (folder / "executed").unlink()
        sys.modules.pop("evil")


def test_code_that_the_command_line_names_is_executed(folder):
    text = (folder / "settings.toml").read_text()
    (folder / "settings.toml").write_text(text.replace('name = "', 'name = "evil:Net" # "'))
    main(["run", "--resume", "--out", ".", "model.name=evil:Net"])
    assert (folder / "executed").exists()
