"""Makes every file of the repository that a page links to a part of the site, so that `--strict` checks those links.

A page in docs/ keeps its place; any other file comes below repository/. Links stay as GitHub shows them, relative to
the file, and are rewritten here.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
ELSEWHERE = "repository"
# [text](target) and ![alt](target), not in code; a target with a scheme or a bare anchor is left alone.
LINK = re.compile(r"(\]\()(?![a-z][a-z+.-]*:|#|/)([^)\s#]+)(#[^)\s]*)?(\))")
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")


def on_files(files: Files, config: Any) -> Files:
    """Adds what pages link to, and what those pages link to."""
    for page in PAGES:
        _add(page, files, config)
    for file in list(files.documentation_pages()):
        if not file.src_uri.startswith(ELSEWHERE):
            _add_linked(f"docs/{file.src_uri}", files, config)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrites the links of a page to where their targets stand in the site."""
    here = in_repository(page.file.src_uri)

    def rewritten(found: re.Match[str]) -> str:
        target = resolved(here, found[2])
        if target is None:
            return found[0]
        uri = posixpath.relpath(in_site(target), posixpath.dirname(page.file.src_uri) or ".")
        return f"{found[1]}{uri}{found[3] or ''}{found[4]}"

    return LINK.sub(rewritten, markdown)


def in_repository(uri: str) -> str:
    """The path in the repository of a file of the site."""
    return uri.removeprefix(f"{ELSEWHERE}/") if uri.startswith(f"{ELSEWHERE}/") else f"docs/{uri}"


def in_site(path: str) -> str:
    """The inverse: where a file of the repository stands in the site."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{ELSEWHERE}/{path}"


def resolved(page: str, link: str) -> str | None:
    """The file of the repository that a link of a page means; of a folder its README. None if there is none."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    return path if not path.startswith("..") and (ROOT / path).is_file() else None


def _add(path: str, files: Files, config: Any) -> None:
    uri = in_site(path)
    if path.startswith("docs/") or files.get_file_from_path(uri) is not None:
        return
    files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    if path.endswith(".md"):
        _add_linked(path, files, config)


def _add_linked(page: str, files: Files, config: Any) -> None:
    for found in LINK.finditer((ROOT / page).read_text(encoding="utf-8")):
        target = resolved(page, found[2])
        if target is not None:
            _add(target, files, config)
