"""A small web server for tests of downloads: it can break off, refuse, redirect, and it remembers what was asked."""

import http.server
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Site:
    """What the server serves and how it misbehaves."""

    files: dict = field(default_factory=dict)  # path → bytes, or a str to which it redirects
    ranges: bool = True
    break_after: int | None = None  # bytes of a body after which the connection is cut
    breaks: int = 0  # how many answers are cut so
    statuses: list = field(default_factory=list)  # answered first, one a request
    token: str | None = None  # needed for every request
    requests: list = field(default_factory=list)  # (path, headers)
    bytes_sent: int = 0
    address: str = ""

    def paths(self):
        """The paths asked for, in order."""
        return [path for path, _ in self.requests]


@contextmanager
def serve(site):
    """Serve a Site on a free port of 127.0.0.1 until the block ends; `site.address` is its root."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(site))
    server.handle_error = lambda *_: None  # clients that are killed are part of the tests
    site.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()


def _handler(site):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.split("?")[0]
            site.requests.append((path, dict(self.headers)))
            if site.token and self.headers.get("Authorization") != f"Bearer {site.token}":
                return self.answer(401)
            if site.statuses:
                return self.answer(site.statuses.pop(0))
            body = site.files.get(path)
            if body is None:
                return self.answer(404)
            if isinstance(body, str):
                return self.answer(302, {"Location": body})
            return self.send_body(body)

        def answer(self, status, headers=None):
            self.send_response(status)
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def send_body(self, body):
            asked = self.headers.get("Range")
            first = int(asked.removeprefix("bytes=").rstrip("-")) if asked and site.ranges else 0
            if first and first >= len(body):
                return self.answer(416)
            rest = body[first:]
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            if site.breaks and site.break_after is not None:
                site.breaks -= 1
                rest = rest[: site.break_after]
                self.close_connection = True
            self.wfile.write(rest)
            site.bytes_sent += len(rest)

        def log_message(self, *_):
            pass

    return Handler
