"""MkDocs hooks: pages that lie outside docs/, links as they are on the site, and the reference of the command."""

import argparse
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

from elmo_fast.cli import make_parser

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md",
         "benchmarks/README.md": "benchmarks.md", "elmo_fast/pretrained/README.md": "pretrained.md"}
_LINK = re.compile(r"(!?\[[^\]\n]*\n?[^\]\n]*\])\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_COMMAND = re.compile(r"^<!-- command: (.+) -->$", re.MULTILINE)
_REPORT = re.compile(r"<!-- /?report[^>]*-->")  # at the beginning of a line it would end the paragraph


def on_files(files, config):
    """Add the pages of `PAGES`, and the pictures that they show."""
    titles = dict(_titles(config.nav))
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_on_site(text, posixpath.dirname(source), titles)))
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), picture))
            if not path.startswith("docs/"):
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown, page, config, **_):
    """Links of the pages in docs/, and the parts of docs/command.md that the parsers give."""
    if page.file.src_uri == "command.md":
        markdown = _with_commands(markdown)
    if page.file.src_uri in PAGES.values():
        return markdown
    return _on_site(markdown, posixpath.join("docs", posixpath.dirname(page.file.src_uri)), dict(_titles(config.nav)))


def _titles(nav: list):
    """(page, title) of the navigation."""
    for entry in nav:
        for title, inner in entry.items():
            yield from [(inner, title)] if isinstance(inner, str) else _titles(inner)


def _on_site(text: str, folder: str, titles: dict[str, str]) -> str:
    """A page of `folder` with its links as on the site.

    A label that is the name of a page's file becomes its title in the navigation; of a link to a file outside the site
    the text stays.
    """
    here = posixpath.relpath(folder, "docs") if folder.startswith("docs/") else ""

    def link(found: re.Match) -> str:
        label, target, anchor = found.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        on_site = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        on_site = path if label.startswith("!") and not on_site else on_site
        if on_site in titles and re.fullmatch(r"\[[\w/]+\.md\]", label):
            label = f"[{titles[on_site]}]"
        return f"{label}({posixpath.relpath(on_site, here or '.')}{anchor or ''})" if on_site else label[1:-1]

    return _LINK.sub(link, _REPORT.sub("", text))


# ---- the command -----------------------------------------------------------------------------


def _with_commands(markdown: str) -> str:
    """The page with each `<!-- command: NAME -->` replaced by what the parser of the subcommand says."""
    (subparsers,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return _COMMAND.sub(lambda found: _command(subparsers.choices[found[1]]), markdown)


def _command(parser: argparse.ArgumentParser) -> str:
    """A heading, the description, and a table for each group of arguments."""
    parts, formatter = [f"### {parser.prog}", parser.description], parser._get_formatter()
    for group in parser._action_groups:
        rows = [_row(formatter, action) for action in group._group_actions
                if not isinstance(action, argparse._HelpAction)]
        if rows:
            title = {"positional arguments": "argument", "options": "flag"}.get(group.title, group.title)
            parts.append("\n".join([f"| {title} | |", "|---|---|", *rows]))
    return "\n\n".join([*parts, *filter(None, [parser.epilog])])


def _row(formatter: argparse.HelpFormatter, action: argparse.Action) -> str:
    values = "" if action.nargs == 0 else formatter._format_args(action, action.dest.upper())
    values = values.replace(",", ", ") if action.choices else values  # so that a long list may be broken
    names = " ".join(f"`{name}`" for name in (", ".join(action.option_strings), values) if name)
    meaning = re.sub(r"(?<![\w`-])(--[a-z][\w-]+|</?\w+>)", r"`\1`", formatter._expand_help(action))
    meaning = meaning.replace("|", r"\|").replace("*", r"\*")
    return f"| {names} | {meaning} |"
