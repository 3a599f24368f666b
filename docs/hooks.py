"""MkDocs hooks: pages that lie outside docs/, and links between pages as they are on the site."""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md",
         "benchmarks/README.md": "benchmarks.md", "elmo_fast/pretrained/README.md": "pretrained.md"}
_LINK = re.compile(r"(!?\[[^\]\n]*\])\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files, config):
    """Add the pages of `PAGES`, and the pictures that they show."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_on_site(text, posixpath.dirname(source))))
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), picture))
            if not path.startswith("docs/"):
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown, page, **_):
    """Links of the pages in docs/."""
    if page.file.src_uri in PAGES.values():
        return markdown
    return _on_site(markdown, posixpath.join("docs", posixpath.dirname(page.file.src_uri)))


def _on_site(text: str, folder: str) -> str:
    """A page of `folder` with its links as on the site; of a link to a file outside the site the text stays."""
    here = posixpath.relpath(folder, "docs") if folder.startswith("docs/") else ""
    def link(found: re.Match) -> str:
        label, target, anchor = found.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        on_site = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        on_site = path if label.startswith("!") and not on_site else on_site
        label = re.sub(r"\[(?:\w+/)*(\w+)\.md\]", r"[\1]", label).replace("README", "benchmarks")
        return f"{label}({posixpath.relpath(on_site, here or '.')}{anchor or ''})" if on_site else label[1:-1]

    return _LINK.sub(link, text)
