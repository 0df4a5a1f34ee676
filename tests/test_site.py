"""The site of documents, as CI builds it: every public name, every field's words, every page of the guide."""

from __future__ import annotations

import html
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pdoc.doc
import pytest

import s3queue.guide

MODULES = ["s3queue", "s3queue.stores", "s3queue.testing", "s3queue.guide"]
#: Their methods are the store port's, whose docstrings say what each does.
FACES_OF_THE_PORT = {"LocalStore", "MemoryStore", "FaultyStore"}
PAGES = sorted(Path(s3queue.guide.__file__).parent.glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by pdoc, without a word of warning."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "error", "-m", "pdoc", *MODULES, "--no-show-source", "-o", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
    return folder


def page_of(site: Path, module: str) -> str:
    return (site / f"{module.replace('.', '/')}.html").read_text()


def words_of(text: str) -> str:
    """The letters and digits of a page, or of a docstring: what is left of both when all marks are gone."""
    return "".join(re.findall(r"\w+", html.unescape(re.sub(r"<[^>]*>", "", text))))


@pytest.mark.parametrize("module", MODULES[:3])
def test_every_public_name_has_its_entry(site: Path, module: str) -> None:
    """Linkable, and with the first line of its docstring."""
    page = page_of(site, module)
    words = words_of(page)
    for name in importlib.import_module(module).__all__:
        assert f'id="{name}"' in page, name
        value = getattr(importlib.import_module(module), name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert words_of((inspect.getdoc(value) or "").split("\n")[0]) in words, name


@pytest.mark.parametrize("module", MODULES[:3])
def test_every_part_is_explained(module: str) -> None:
    """Each field, method and property has a docstring of its own, as pdoc sees it.

    Not so: the faces of the store port (it is explained there), and variables from private modules, whose words pdoc
    cannot find; those are explained at the top of the page.
    """
    page = pdoc.doc.Module(importlib.import_module(module))
    for name in importlib.import_module(module).__all__:
        found = page.members[name]
        if isinstance(found, pdoc.doc.Variable):
            assert f"`{name}`" in page.docstring, name
        elif isinstance(found, pdoc.doc.Class) and name not in FACES_OF_THE_PORT:
            parts = [part for part in found.own_members if not part.name.startswith("_")]
            assert [part.fullname for part in parts if not explained(part, found)] == []


def explained(part: pdoc.doc.Doc[Any], owner: pdoc.doc.Class) -> bool:
    """By its own words, or (what `__init__` was given) by those of its class."""
    return bool(part.docstring) or f"`{part.name}`" in owner.docstring


def test_the_units_of_the_settings_are_told(site: Path) -> None:
    """The comments on the fields of `QueueOptions` come out."""
    page = words_of(page_of(site, "s3queue"))

    assert words_of("All times are seconds") in page
    assert words_of("How long a lease lives without a renewal") in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_of_the_guide_is_there(site: Path, page: Path) -> None:
    """All its headings, and the last line of its text."""
    guide = page_of(site, "s3queue.guide")
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )

    assert headings
    for heading in headings:
        assert re.search(rf"<h[1-6][^>]*>\s*{re.escape(html.escape(heading))}", guide), heading
    assert words_of(page.read_text().strip().splitlines()[-1].replace("`", "")) in words_of(guide)
    assert "<table>" in guide
