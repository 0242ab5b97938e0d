"""What a release writes: links that lead somewhere from the page of a package index."""

import re
import tomllib

from tests.helpers import ROOT
from tools.address import absolute, with_urls

ADDRESS = "https://host.example/owner/name"


def test_every_relative_link_of_the_readme_leads_to_a_file_of_the_tag():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    made = re.findall(r"\]\(([^)]+)\)", absolute(text, ADDRESS, "v1.2.3"))
    assert len(made) == len(links) > 20
    for before, after in zip(links, made, strict=True):
        if before.startswith(("https:", "#")):
            assert after == before
        else:
            prefix, _, path = after.partition("/v1.2.3/")
            assert prefix in (f"{ADDRESS}/blob", f"{ADDRESS}/raw")
            assert path == before
            assert (ROOT / path.partition("#")[0]).exists()
    assert f"![{'x'}]({ADDRESS}/raw/v1/a.png)" == absolute("![x](a.png)", ADDRESS, "v1")


def test_the_addresses_stand_in_the_table_of_the_project():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    before, after = tomllib.loads(text), tomllib.loads(with_urls(text, ADDRESS))
    assert (after["project"].pop("urls")["Repository"], after) == (ADDRESS, before)
