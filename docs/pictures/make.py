"""Make the pictures of the command and of the page: `make pictures` does it (extras plots, serve; selenium, chromium).

`numbers.json` holds the numbers of every picture or its page, in order, and the picture's checksum; a test compares the
numbers with those of today's model.
"""

import contextlib
import hashlib
import io
import json
import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import fastapi  # noqa: E402
import uvicorn  # noqa: E402
from PIL import Image  # noqa: E402

import elmo_fast  # noqa: E402
from elmo_fast import cli  # noqa: E402
from elmo_fast.explore.contexts import ContextIndex  # noqa: E402
from elmo_fast.serve.page import router  # noqa: E402
from tests.support.browser import chromium  # noqa: E402

HERE, CORPUS = ROOT / "docs/pictures", ROOT / "examples/senses.txt"
STATE = {"a": "The children play in the garden .", "b": "A new play opened last night .", "t": "b2"}


def command(*arguments: str | Path) -> str:
    """What a run of `elmo-fast` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert cli.main([str(argument) for argument in arguments]) == 0
    return printed.getvalue()


def picture_of(url: str, name: str, width: int, most: int, ready: str = "return true") -> str:
    """The text of a page. Save its first `most` rows of pixels, once the script `ready` holds, in 256 colours."""
    with chromium(width, 900) as browser:
        browser.get(url)
        while not browser.execute_script(ready):
            time.sleep(0.1)
        height = min(most, browser.execute_script("return document.documentElement.scrollHeight"))
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
        time.sleep(0.5)
        png, text = browser.get_screenshot_as_png(), browser.execute_script("return document.body.innerText")
    colours = Image.open(io.BytesIO(png)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=0)
    colours.save(HERE / name, optimize=True)
    return text


@contextlib.contextmanager
def server():
    """The address of the page, with an index of the corpus."""
    elmo = elmo_fast.load()
    app = fastapi.FastAPI()
    app.include_router(router(elmo, ContextIndex.build(elmo, CORPUS.read_text(encoding="utf-8").splitlines())))
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        while not running.started:
            time.sleep(0.1)
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/#{urlencode(STATE)}"
    finally:
        running.should_exit = True
        thread.join()


def main() -> None:
    texts = {"compare.png": command("compare", "I ate an apple", "Apple sold a phone", "-o", HERE / "compare.png")}
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "nearest.html"
        command("nearest", CORPUS, "--word", "play", "--top", "5", "-o", page)
        texts["nearest.png"] = picture_of(page.as_uri(), "nearest.png", 1100, 2000)
    ready = "return document.querySelectorAll('#found li').length > 0"
    with server() as url:
        texts["page.png"] = picture_of(url, "page.png", 1200, 2000, ready)
        texts["page-phone.png"] = picture_of(url, "page-phone.png", 380, 1180, ready)
    drawn = {name: {"sha256": hashlib.sha256((HERE / name).read_bytes()).hexdigest(),
                    "numbers": re.findall(r"-?\d\.\d+", text.replace("\u2212", "-"))} for name, text in texts.items()}
    (HERE / "numbers.json").write_text(json.dumps(drawn, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
