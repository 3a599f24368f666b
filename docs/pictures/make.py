"""Make the pictures of the docs: python docs/pictures/make.py (needs the extras plots, serve; selenium, chromium)."""

import contextlib
import io
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


def command(*arguments: str | Path) -> None:
    """Run `elmo-fast` without what it prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert cli.main([str(argument) for argument in arguments]) == 0


def picture_of(url: str, name: str, width: int, most: int, ready: str = "return true") -> None:
    """Save the first `most` rows of pixels of a page, once the script `ready` holds, in 256 colours."""
    with chromium(width, 900) as browser:
        browser.get(url)
        while not browser.execute_script(ready):
            time.sleep(0.1)
        height = min(most, browser.execute_script("return document.documentElement.scrollHeight"))
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
        time.sleep(0.5)
        png = browser.get_screenshot_as_png()
    colours = Image.open(io.BytesIO(png)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=0)
    colours.save(HERE / name, optimize=True)


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
    command("compare", "I ate an apple", "Apple sold a phone", "-o", HERE / "compare.png")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "nearest.html"
        command("nearest", CORPUS, "--word", "play", "--top", "5", "-o", page)
        picture_of(page.as_uri(), "nearest.png", 1100, 2000)
    ready = "return document.querySelectorAll('#found li').length > 0"
    with server() as url:
        picture_of(url, "page.png", 1200, 2000, ready)
        picture_of(url, "page-phone.png", 380, 1180, ready)


if __name__ == "__main__":
    main()
