"""Writes what the site is built from, for ``make docs``: the pages of the project,
those that show its files, a page for each module.

    python docs/theme/prepare.py FOLDER

The pages are written so that their links lead somewhere in a checkout. On the site a
link to a module leads to its page in the reference, one to another file of the project
to a page that shows it, and a block of mathematics is MathML, which browsers draw by
themselves.
"""

import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from math_core import LatexToMathML

ROOT = Path(__file__).resolve().parents[2]
THEME = "docs/theme"
#: Packages with a page for each module.
PACKAGES = ("strategies", "clients", "algorithms", "fedapps")
#: Pages that stand outside docs/, by their address on the site.
OUTSIDE = {
    "README.md": "index.md",
    "docs/README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
}
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
FENCE = re.compile(
    r"^(?P<indent> *)(?P<marks>```+)(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)(?P=marks)$",
    re.MULTILINE | re.DOTALL,
)
#: What a file that is shown is highlighted as.
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".service": "ini"}


def main(folder: Path) -> None:
    """Write the pages below ``folder``/docs and the settings of the site, with its
    navigation, beside them; end at a broken link.
    """
    shutil.rmtree(folder, ignore_errors=True)
    texts = pages()
    for address, text in texts.items():
        path = folder / "docs" / address
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "images", folder / "docs" / "images")
    shutil.copy(ROOT / THEME / "style.css", folder / "docs")
    settings = (ROOT / THEME / "site.yml").read_text(encoding="utf-8")
    (folder / "site.yml").write_text(with_places(settings), encoding="utf-8")


# --- pages ----------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """Return the text of every page of the site by its address: those of docs/ and of
    OUTSIDE, what they link to, and the modules.
    """
    texts = {address(path): module_page(path) for package in PACKAGES for path in modules(package)}
    waiting = [path for path in OUTSIDE if path != "README.md" and (ROOT / path).is_file()]
    waiting += [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    while waiting:
        path = waiting.pop()
        if address(path) in texts:
            continue
        if (ROOT / path).is_dir():
            texts[address(path)] = folder_page(path)
        elif path.endswith(".md"):
            text = (ROOT / path).read_text(encoding="utf-8")
            wanted = [target(path, link) for link in links(text)]
            if missing := [link for link in wanted if not (ROOT / link).exists()]:
                raise SystemExit(f"{path}: links to {', '.join(missing)}, which is not there")
            waiting += [
                link
                for link in wanted
                if not link.endswith((".png", ".svg")) and link != "README.md"
            ]
            texts[address(path)] = page(path, text)
        else:
            texts[address(path)] = file_page(path)
    return texts


def page(path: str, text: str) -> str:
    """Return a page with the links of the site and its mathematics drawn."""
    start, parts = 0, []
    for fence in FENCE.finditer(text):
        drawn = mathml(fence["text"]) if fence["language"] == "math" else fence[0]
        parts += [with_links(path, text[start : fence.start()]), drawn]
        start = fence.end()
    return "".join([*parts, with_links(path, text[start:])])


def mathml(source: str) -> str:
    """Return LaTeX as a block of MathML. Raises ``LatexError`` for what it does not
    know.
    """
    formula = LatexToMathML().convert_with_local_state(source.strip(), displaystyle=True)
    return f'<div class="math">{formula}</div>'


def file_page(path: str) -> str:
    """Return a page that shows a file."""
    return f"# {posixpath.basename(path)}\n\n`{path}` of the project:\n\n{fenced(ROOT / path)}\n"


def folder_page(path: str) -> str:
    """Return a page that shows the files of a folder."""
    files = [
        file
        for file in sorted((ROOT / path).rglob("*"))
        if file.suffix in LANGUAGES and file.read_text(encoding="utf-8").strip()
    ]
    parts = [f"## {file.relative_to(ROOT / path).as_posix()}\n\n{fenced(file)}" for file in files]
    return "\n\n".join([f"# {path}", *parts]) + "\n"


def fenced(file: Path) -> str:
    """Return the text of a file as a block of code."""
    code = file.read_text(encoding="utf-8").rstrip()
    return f"````{LANGUAGES.get(file.suffix, 'text')}\n{code}\n````"


def modules(package: str) -> list[str]:
    """Return the files of a package's modules."""
    return [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name != "__main__.py"
    ]


def module_page(path: str) -> str:
    """Return a page that mkdocstrings fills with the docstrings of a module."""
    inner = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    name = f"fedapps.{inner.removeprefix('fedapps.')}" if inner != "fedapps" else inner
    return f"# `{name}`\n\n::: {name}\n"


# --- links ----------------------------------------------------------------------------


def address(path: str) -> str:
    """Return where on the site a file or folder of the project stands."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path.startswith("docs/"):
        return re.sub(r"README\.md$", "index.md", path.removeprefix("docs/"))
    name = path.removesuffix(".py").removesuffix("/__init__")
    if path.split("/")[0] in PACKAGES and (path.endswith(".py") or (ROOT / path).is_dir()):
        return f"python/{name}/index.md" if (ROOT / name).is_dir() else f"python/{name}.md"
    return f"files/{path}.md"


def links(text: str) -> Iterator[str]:
    """Yield the files that a page links to, as it names them."""
    return (link[2] for link in LINK.finditer(FENCE.sub("", text)))


def target(path: str, link: str) -> str:
    """Return the file of the project that a link on the page ``path`` leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def with_links(path: str, text: str) -> str:
    """Return text of the page ``path`` with the links of the site."""
    here = posixpath.dirname(address(path)) or "."

    def moved(link: re.Match[str]) -> str:
        file = target(path, link[2])
        to = address(file) if not file.endswith((".png", ".svg")) else file.removeprefix("docs/")
        return f"{link[1]}{posixpath.relpath(to, here)}{link[3] or ''}{link[4]}"

    return LINK.sub(moved, text)


# --- navigation -----------------------------------------------------------------------


def with_places(settings: str) -> str:
    """Return the settings of the site with the pages in the place of <methods>,
    <results> and <python>.
    """
    places = {
        "methods": method_pages(),
        "results": result_pages(),
        "python": [line for name in PACKAGES for line in package(name)],
    }
    return re.sub(
        r"^( *)- <(\w+)>\n",
        lambda place: "".join(f"{place[1]}{line}\n" for line in places[place[2]]),
        settings,
        flags=re.MULTILINE,
    )


def method_pages() -> list[str]:
    """Return the methods' pages in the order of the table of methods."""
    table = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    return [
        f"- {name}"
        for name in dict.fromkeys(re.findall(r"^\| \[`[\w-]+`\]\((.*?)\) \|", table, re.MULTILINE))
    ]


def result_pages() -> list[str]:
    """Return the pages of the results, their index first."""
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("results*/*.md")]
    pages += ["docs/results.md"] * (ROOT / "docs" / "results.md").is_file()
    return [
        f"- {address(path)}"
        for path in sorted(pages, key=lambda path: (not path.endswith("README.md"), path))
    ]


def package(path: str) -> list[str]:
    """Return the navigation of a package, one line a module."""
    lines = [f"- python/{path}/index.md"] if (ROOT / path / "__init__.py").is_file() else []
    for child in sorted((ROOT / path).iterdir()):
        if child.is_dir() and not child.is_symlink() and any(child.rglob("*.py")):
            lines += package(f"{path}/{child.name}")
        elif child.suffix == ".py" and child.name not in ("__init__.py", "__main__.py"):
            lines.append(f"- {child.stem}: python/{path}/{child.stem}.md")
    return [f"- {posixpath.basename(path)}:", *(f"    {line}" for line in lines)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
