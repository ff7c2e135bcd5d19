"""A headless browser for tests and pictures of the reports.

python -m tests.workflow.browser results/report/index.html picture.png --width 1440 --height 1000
"""

import argparse
import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from PIL import Image

from ..ports import free_port


class Browser:
    """Headless chromium driven by chromedriver over the WebDriver protocol (https://www.w3.org/TR/webdriver2/)."""

    def __init__(self, driver, chromium, folder):
        port = free_port()
        self.address = f"http://127.0.0.1:{port}/session"
        self.process = subprocess.Popen(
            [driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"]
        wanted = {
            "goog:chromeOptions": {"binary": chromium, "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "timeouts": {"script": 120_000},  # milliseconds: axe-core takes eight seconds on an idle machine
        }
        self.session = self._start({"capabilities": {"alwaysMatch": wanted}})

    def _start(self, body, seconds=120):
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self._send("", body)["sessionId"]
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _send(self, path, body=None, method="POST"):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=150) as answer:
            return json.load(answer)["value"]

    def show(self, page, width, dark=False, media="", folded=False):
        """Open a file at a width in CSS pixels, in the light or the dark theme. folded: as it opens, else with all its parts unfolded."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setDeviceMetricsOverride", size)
        self.command("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})
        self._send(f"/{self.session}/url", {"url": page.as_uri()})
        if not folded:
            self.run("document.querySelectorAll('details.part').forEach(item => { item.open = true })")

    def command(self, name, parameters):
        """Send a command of the DevTools protocol."""
        return self._send(f"/{self.session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def run(self, script, *arguments):
        """The value that a script (the body of an async function) returns."""
        wrapped = (
            f"const done = arguments[arguments.length - 1]; (async () => {{ {script} }})()"
            ".then(value => done([value, null]), error => done([null, String(error)]));"
        )
        value, error = self._send(f"/{self.session}/execute/async", {"script": wrapped, "args": list(arguments)})
        assert error is None, error  # at once, instead of when the time is over
        return value

    def log(self, kind):
        """Entries since the last call; kind: browser (the console) or performance (the network's events)."""
        return self._send(f"/{self.session}/se/log", {"type": kind})

    def picture(self, target, width=None, height=None):
        """Write a PNG of the whole page, or of its upper left part."""
        part = {} if height is None else {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        taken = self.command("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True, **part})
        Path(target).write_bytes(base64.b64decode(taken["data"]))

    def close(self):
        """End the browser and its driver."""
        self._send(f"/{self.session}", method="DELETE")
        self.process.terminate()
        self.process.wait(timeout=10)


def find_programs():
    """Paths of chromedriver and of the browser; None for what is not installed."""
    return shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")


def main():
    """Take a picture of the top of a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="HTML file")
    parser.add_argument("picture", type=Path, help="PNG file to write")
    parser.add_argument("--width", type=int, default=1440, help="in CSS pixels (default: %(default)s)")
    parser.add_argument("--height", type=int, default=1000, help="in CSS pixels (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(*find_programs(), profile)
        try:
            browser.show(arguments.page.resolve(), arguments.width, folded=True)
            browser.picture(arguments.picture, arguments.width, arguments.height)
        finally:
            browser.close()
    picture = Image.open(arguments.picture).convert("RGB")
    # Of the colours that are drawn, not of those between them at the edges of letters.
    picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(arguments.picture, optimize=True)


if __name__ == "__main__":
    main()
