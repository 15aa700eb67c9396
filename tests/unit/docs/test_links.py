"""The pages' links: every file that one points to is there, and has the heading; every page is reached from the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_CODE = re.compile(r"^```.*?^```\s*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """Links of *page* into the repository; what stands in code is none."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    return [link for link in _LINK.findall(text) if not _ELSEWHERE.match(link)]


def anchors(page: Path) -> set[str]:
    """Names of the headings of *page*, as GitHub makes them."""
    text = re.sub(r"^```.*?^```\s*?$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number = 0
        while (unique := f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(unique)
    return found


def broken(page: Path, link: str) -> str:
    """What is wrong with *link* of *page*; empty if nothing is."""
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return f"{link}: there is no such file"
    if not target.is_relative_to(ROOT):
        return f"{link}: points out of the repository"
    if anchor and anchor not in anchors(target):
        return f"{link}: there is no such heading"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [why for link in links(page) if (why := broken(page, link))] == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, left = {PAGES[0]}, [PAGES[0]]
    while left:
        page = left.pop()
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.is_file() and target not in reached:
                reached.add(target)
                left.append(target)
    assert sorted(set(PAGES) - reached) == []


@pytest.mark.parametrize(
    ("link", "says"),
    [
        ("docs/absent.md", "no such file"),
        ("docs/cli.md#absent", "no such heading"),
        ("../elsewhere.md", "no such file"),
        ("docs/cli.md#exit-codes", ""),
        ("#how-it-works", ""),
    ],
)
def test_a_broken_link_is_found(link: str, says: str) -> None:
    found = broken(ROOT / "README.md", link)
    assert (says in found) if says else not found
