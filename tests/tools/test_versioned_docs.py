"""The sites of all released versions stand side by side."""

import re

from tools.versioned_docs import main


def test_the_front_page_leads_to_the_newest_version_and_names_all(tmp_path):
    site, pages = tmp_path / "site", tmp_path / "pages"
    (site / "images").mkdir(parents=True)
    pages.mkdir()
    (pages / "CNAME").write_text("docs.example")  # others' files stay
    for version in ("v1.9.0", "v1.10.0rc1", "v1.10.0", "v1.2.3", "v1.9.0"):
        (site / "index.html").write_text(version)
        main(site, pages, version)
    front = (pages / "index.html").read_text()
    assert re.findall(r'href="(.*?)/"', front) == ["v1.10.0", "v1.10.0rc1", "v1.9.0", "v1.2.3"]
    assert "url=v1.10.0/" in front
    assert (pages / "v1.9.0" / "index.html").read_text() == "v1.9.0"
    assert (pages / "v1.9.0" / "images").is_dir()
    assert (pages / "CNAME").exists()
