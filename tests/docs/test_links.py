"""Link targets in the documentation exist: pages, headings, files and folders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, code_words, links, name_of

#: A word between backticks is a path where it begins with one of these.
_PLACES = tuple(
    f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and path.name not in ("build", "runs")
)


@pytest.mark.parametrize("page", sorted({*PAGES, *ROOT.glob("*.md")}), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        if re.match(r"https?:", target):
            continue
        place, _, anchor = target.partition("#")
        path = (page.parent / place).resolve() if place else page
        assert path.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            assert anchor in anchors(path), f"{name_of(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_exist(page: Path) -> None:
    for word in code_words(page):
        if word.startswith(_PLACES) and re.fullmatch(r"[\w.\-/*]+", word):
            assert list(ROOT.glob(word)), f"{name_of(page)} names {word}"
