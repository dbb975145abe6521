"""The page for browsers: the built files of web/, held in memory with their compressed form.

    GET /          the page          GET /admin    the server, for its operator
    GET /assets/…  what they load: named by content, so kept for ever

Both are for everyone, without what they show; a client secret that is shown for /admin is refused
there, as by what that page asks for. Nothing is loaded from anywhere else, and the browser is told
so (CSP). Where the files were not built, a page says how to.
"""

import gzip
import hashlib
import mimetypes
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.realtime.registry.access import Guest
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Gate

BUILT = Path(__file__).parents[1] / "assets"
_PAGES = {"/": "index.html", "/admin": "admin.html"}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_FOR_EVER = "public, max-age=31536000, immutable"
_NOT_BUILT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Continuo</title>
<h1>The server runs; its page was not built</h1>
<p>The API is there: <code>/v1/realtime</code>, <code>/v1/models</code>.
To build the page, install Node.js 20 or newer and run <code>make web</code>, then start the server
again. In a terminal, <code>continuo chat</code> talks to it too.</p></html>"""


class _File(msgspec.Struct, frozen=True):
    type: str
    plain: bytes
    packed: bytes
    tag: str


class Page:
    def __init__(self, folder: Path = BUILT, gate: Gate | None = None) -> None:
        self._gate = gate
        files = folder.rglob("*") if folder.is_dir() else ()
        self._files = {
            file.relative_to(folder).as_posix(): _read(file) for file in files if file.is_file()
        }

    @property
    def built(self) -> bool:
        return "index.html" in self._files

    def all(self) -> list[Route]:
        return [
            *(Route(path, self.page) for path in _PAGES),
            Route("/assets/{name:path}", self.asset),
            Route("/icon.svg", self.asset),
        ]

    async def page(self, request: Request) -> Response:
        if request.url.path == "/admin" and self._gate is not None:
            guest = self._gate.check(request.headers)
            if isinstance(guest, Guest) and guest.ephemeral:
                return replies.ephemeral()
        file = self._files.get(_PAGES[request.url.path])
        if file is None:
            return Response(_NOT_BUILT, 404, media_type="text/html", headers=_HEADERS)
        return _answer(request, file, "no-cache")

    async def asset(self, request: Request) -> Response:
        name = request.url.path.removeprefix("/")
        file = self._files.get(name)
        if file is None:
            return Response("There is no such file.", 404, media_type="text/plain")
        return _answer(request, file, _FOR_EVER if name.startswith("assets/") else "no-cache")


def _read(file: Path) -> _File:
    plain = file.read_bytes()
    return _File(
        type=mimetypes.guess_type(file.name)[0] or "application/octet-stream",
        plain=plain,
        packed=gzip.compress(plain, 9, mtime=0),
        tag=f'"{hashlib.sha256(plain).hexdigest()[:32]}"',
    )


def _answer(request: Request, file: _File, keep: str) -> Response:
    headers = {**_HEADERS, "Cache-Control": keep, "ETag": file.tag, "Vary": "Accept-Encoding"}
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    body = file.plain
    if "gzip" in request.headers.get("accept-encoding", "") and len(file.packed) < len(body):
        body, headers["Content-Encoding"] = file.packed, "gzip"
    return Response(body, media_type=file.type, headers=headers)
