"""The documentation site, see `docs/conf.py`: complete navigation, and a build without warnings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchrlopt
from tests.docs.pages import PAGES, ROOT, prose


def test_every_page_is_a_row_of_the_list() -> None:
    """The navigation of the site is made of these rows."""
    rows = re.findall(r"^\| \[(\w+\.md)\]\((\w+\.md)\) \|", prose(ROOT / "docs" / "README.md"), re.MULTILINE)
    assert all(name == target for name, target in rows)
    assert sorted(name for name, _ in rows) == sorted(
        page.name for page in PAGES[1:] if page.name != "README.md"
    )


def test_the_public_api_is_listed() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", prose(ROOT / "docs" / "api.md"), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(torchrlopt.__all__)


@pytest.mark.nightly
def test_the_site_is_built(tmp_path: Path) -> None:
    """As `make docs` does; a link that leads nowhere is an error."""
    for name in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(name, reason=f"{name} is not installed; see the extra docs")
    settings = ["-q", "-W", "--keep-going", "-c", "docs", "-d", str(tmp_path / ".doctrees")]
    command = [sys.executable, "-m", "sphinx", *settings, ".", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    api = (tmp_path / "docs" / "api.html").read_text(encoding="utf-8")
    for name in set(torchrlopt.__all__) - {"__version__"}:
        assert f'id="torchrlopt.{name}"' in api
