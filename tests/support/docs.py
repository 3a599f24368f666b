"""The code of docs/integrations.md and of the README's table, to be run with the real libraries."""

import re

from tests.support.files import ROOT


def run_documented_code(library):
    """Names after the library's block in docs/integrations.md; then its README line runs, with the block's imports."""
    page = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {library}\n")[1].split("\n## ")[0]
    code = "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
    names, fresh = {}, {}
    exec(code, names)
    imports = [line for line in code.splitlines() if line.startswith(("import ", "from "))]
    line = re.search(rf"^\| {library} \| `(.*)` \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)[1]
    exec("\n".join([*imports, line]), fresh)
    return names, fresh
