"""The documentation site, see `docs/conf.py`: complete navigation, and a build without warnings."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

import torchrlopt
from tests.docs.pages import PAGES, ROOT, anchors, name_of, sections

GENERATOR = ("sphinx", "myst_parser", "furo")
missing = [name for name in GENERATOR if util.find_spec(name) is None]
needs_generator = pytest.mark.skipif(
    bool(missing), reason=f"not installed: {', '.join(missing)}; see the extra docs"
)


def test_every_page_is_a_row_of_the_list() -> None:
    """The navigation of the site is made of these rows."""
    rows = [row for table in sections(ROOT / "docs" / "README.md")[1].tables for row in table]
    linked = [match for row in rows if (match := re.fullmatch(r"\[(\w+\.md)\]\((\w+\.md)\)", row[0]))]
    assert all(each[1] == each[2] for each in linked)
    names = [each[1] for each in linked]
    assert sorted(names) == sorted(page.name for page in PAGES[1:] if page.name != "README.md")


def test_the_public_api_is_listed() -> None:
    header, *rows = sections(ROOT / "docs" / "api.md")[1].tables[0]
    assert header == ["name", "what it is"]
    assert sorted(re.findall(r"`(\w+)`", " ".join(row[0] for row in rows))) == sorted(torchrlopt.__all__)


@needs_generator
@pytest.mark.nightly
def test_the_site_is_built(tmp_path: Path) -> None:
    run = _build(ROOT, tmp_path)
    assert run.returncode == 0, run.stderr
    start = (tmp_path / "README.html").read_text(encoding="utf-8")
    for page in (*PAGES[1:], *(path for path in ROOT.glob("*.md") if path.stem != "README")):
        target = page.relative_to(ROOT).with_suffix(".html")
        assert f'class="reference internal" href="{target.as_posix()}"' in start, name_of(page)
        ids = set(re.findall(r'id="([^"]+)"', (tmp_path / target).read_text(encoding="utf-8")))
        assert anchors(page) - {""} <= ids, name_of(page)
    api = (tmp_path / "docs" / "api.html").read_text(encoding="utf-8")
    for name in set(torchrlopt.__all__) - {"__version__"}:
        assert f'id="torchrlopt.{name}"' in api


@needs_generator
@pytest.mark.nightly
def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copy(ROOT / "docs" / "conf.py", docs)
    (docs / "README.md").write_text("# List\n\n| page |\n|---|\n| [b.md](b.md) |\n", encoding="utf-8")
    (docs / "b.md").write_text("# B\n", encoding="utf-8")
    start = tmp_path / "README.md"
    start.write_text("# A\n\n[b](docs/b.md#b), [settings](docs/conf.py)\n", encoding="utf-8")
    run = _build(tmp_path, tmp_path / "site")
    assert (run.returncode, run.stderr) == (0, "")
    start.write_text("# A\n\n[c](docs/c.md), [b](docs/b.md#c), [a](#d), [file](c.py)\n", encoding="utf-8")
    run = _build(tmp_path, tmp_path / "site")
    assert run.returncode == 1
    assert re.findall(r"not found.*?: '(.*?)'", run.stderr) == ["docs/c.md", "c", "d", "c.py"]


def _build(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does."""
    settings = ["-q", "-W", "--keep-going", "-c", "docs", "-d", str(out / ".doctrees")]
    command = [sys.executable, "-m", "sphinx", *settings, ".", str(out)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
