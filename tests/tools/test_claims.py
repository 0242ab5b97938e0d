"""The pages of results: every claim has a verdict, a section that is there and a
command that runs; index, chart and tables follow from the experiments.
"""

import re
import shlex
import tomllib

import pytest

from fedapps.commands.parser import parse
from fedapps.errors import UserError
from fedapps.lab.sweeps.plan import read_plan
from tests.helpers import ROOT
from tools.claims import CHART, INDEX, NOT_TRIED, VERDICTS, chart, index, papers, table

RESULTS = ROOT / "docs" / "results"
CLAIMS = [
    pytest.param(paper, claim, id=f"{paper.page}-{claim.item}")
    for paper in papers(ROOT)
    for claim in paper.claims
]


def anchor(heading: str) -> str:
    """Return the name by which a heading is linked."""
    return "".join(char for char in heading.lower() if char.isalnum() or char in "_- ").replace(
        " ", "-"
    )


def test_the_pages_are_what_the_experiments_say():
    for name, text in {INDEX: index(papers(ROOT)), CHART: chart(papers(ROOT))}.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, "run: make generate"
    for paper in papers(ROOT):
        page = (RESULTS / paper.page).read_text(encoding="utf-8")
        assert f"\n\n{table(paper)}\n\n" in page, "run: make generate"


def test_commands_that_need_a_folder_of_data_say_so():
    commands = {claim.command for paper in papers(ROOT) for claim in paper.claims}
    assert "fedapps sweep experiments/aaggff/berka.toml --data DIR" in commands
    assert "fedapps sweep experiments/fedboost/figure-3.toml" in commands  # generated
    assert "fedapps sweep experiments/fedevg/fair.toml" in commands  # digits


@pytest.mark.parametrize(("paper", "claim"), CLAIMS)
def test_a_claim_leads_to_numbers_and_to_a_command(paper, claim):
    headings = re.findall(r"^#+ (.*)$", (RESULTS / paper.page).read_text(encoding="utf-8"), re.M)
    assert not claim.section or claim.section in set(map(anchor, headings))
    words = shlex.split(claim.command)
    assert claim.verdict == "not tried" or words
    if words[:2] == ["fedapps", "sweep"]:
        arguments = parse(words[1:])
        assert read_plan(ROOT / arguments.file, arguments.settings, arguments.scale).points
    elif words:
        assert (ROOT / (words[1] if words[0] == "python" else words[2])).is_file()


def test_the_readme_counts_the_claims():
    claims, ours = ([c for paper in papers(ROOT) for c in paper.of(of)] for of in (False, True))
    failed = sum(claim.verdict in ("does not hold", NOT_TRIED) for claim in claims)
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for part in (
        f"[{len(claims)}](docs/results/README.md)",
        f"[{len(claims)} claims](docs/results/README.md) of papers and {len(ours)} questions",
        f"{failed} of the claims do not hold here or were not tried",
    ):
        assert part in text


def test_every_study_has_a_claim_and_is_on_the_page_of_its_paper():
    for path in sorted((ROOT / "experiments").glob("*/*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        if "sweep" in table:
            assert table.get("claim"), path
            page = tomllib.loads((path.parent / "paper.toml").read_text(encoding="utf-8"))["page"]
            tried = any(claim["verdict"] != "not tried" for claim in table["claim"])
            assert not tried or f"experiments/{path.parent.name}/{path.name}" in (
                RESULTS / page
            ).read_text(encoding="utf-8"), path


@pytest.fixture
def tree(tmp_path):
    """`tree(claim)` is a checkout whose only paper has this claim."""

    def write(claim, sweep=""):
        folder = tmp_path / "experiments" / "paper"
        folder.mkdir(parents=True)
        (folder / "paper.toml").write_text('title = "A Paper (2020)"\npage = "paper.md"\n')
        (folder / "table-1.toml").write_text(f"{sweep}\n[[claim]]\n{claim}")
        return tmp_path

    return write


GOOD = (
    'item = "T|1"\nsays = "a"\nhave = "b"\nverdict = "holds"\nsection = "s"\n'
    'seeds = 3\nscale = "small"\n'
)


def test_a_row(tree):
    known = papers(tree(GOOD, "[sweep]"))
    assert known[0].claims[0].command == (
        "fedapps sweep experiments/paper/table-1.toml --scale small"
    )
    assert "| [T\\|1](#s) | a | b | **holds** |" in table(known[0])
    assert "Of 1 claims of papers: 1 holds. " in index(known)
    assert "| [A Paper (2020)](paper.md) | 1 | 1 |" in index(known)
    assert ">A Paper</text>" in chart(known)


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (
            GOOD.replace('"holds"', '"perhaps"'),
            f"verdict = 'perhaps': choose from {', '.join(VERDICTS)}",
        ),
        (GOOD.replace("seeds = 3\n", ""), "add section and seeds"),
        (GOOD + "sed = 1\n", "claim.sed: unknown key: choose from"),
        (GOOD.replace('says = "a"', 'says = ""'), "says: is empty"),
        ('item = "x"', "missing 3 required"),
    ],
)
def test_mistakes_are_reported(claim, message, tree):
    with pytest.raises(UserError) as error:
        papers(tree(claim))
    assert message in str(error.value)
    assert "table-1.toml" in str(error.value)
