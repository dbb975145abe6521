"""The web pages: the built files of web/, held in memory, plain and compressed.

    GET /          the page for conversations
    GET /admin     the page for operators
    GET /assets/…  files of both pages, named by content hash and therefore cached for ever

Neither page needs a key, because they contain no data. A client secret sent with GET /admin is
refused, as it is by the API requests of that page. The Content-Security-Policy permits only files
and connections of this server, and no script to parse HTML. If the files were not built, a page
explains how to build them.
"""

import gzip
import hashlib
import html
import mimetypes
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.realtime.registry.access import Credentials
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Authenticator
from continuo.realtime.server.own_command import find_make_command, find_own_command

ASSETS_DIR = Path(__file__).parents[1] / "assets"
_PAGES = {"/": "index.html", "/admin": "admin.html"}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
        "img-src 'self' data:; require-trusted-types-for 'script'; trusted-types 'none'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_IMMUTABLE = "public, max-age=31536000, immutable"
_NOT_BUILT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Continuo</title>
<h1>The server is running, without its web page</h1>
<p>The page is {explanation}. The API is available: <code>/v1/realtime</code>,
<code>/v1/models</code>. To chat in a terminal, use <code>{command} chat</code>.</p></html>"""


def is_page_built(folder: Path = ASSETS_DIR) -> bool:
    """Return whether the page can be served from `folder`."""
    return (folder / "index.html").exists()


def explain_missing_page() -> str:
    """Return why there is no page, and the command that builds it, if this is a checkout."""
    command = find_make_command("web")
    if command is None:
        return "not in this installation"
    return f"not built: install Node.js 20 or newer, run `{command}`, and start the server again"


class _Asset(msgspec.Struct, frozen=True):
    media_type: str
    plain: bytes
    gzipped: bytes
    etag: str


class Page:
    """Routes of the web pages and their files, which are read from `folder` once."""

    def __init__(
        self, folder: Path = ASSETS_DIR, authenticator: Authenticator | None = None
    ) -> None:
        self._authenticator = authenticator
        files = folder.rglob("*") if folder.is_dir() else ()
        self._files = {
            file.relative_to(folder).as_posix(): _read(file) for file in files if file.is_file()
        }

    def routes(self) -> list[Route]:
        return [
            *(Route(path, self.get_page) for path in _PAGES),
            Route("/assets/{name:path}", self.get_asset),
            Route("/icon.svg", self.get_asset),
        ]

    async def get_page(self, request: Request) -> Response:
        if request.url.path == "/admin" and self._authenticator is not None:
            credentials = self._authenticator.authenticate(request.headers)
            if isinstance(credentials, Credentials) and credentials.is_ephemeral:
                return replies.ephemeral_key_response()
        file = self._files.get(_PAGES[request.url.path])
        if file is None:
            text = _NOT_BUILT.format(
                explanation=html.escape(explain_missing_page()),
                command=html.escape(find_own_command()),
            )
            return Response(text, 404, media_type="text/html", headers=_HEADERS)
        return _asset_response(request, file, "no-cache")

    async def get_asset(self, request: Request) -> Response:
        name = request.url.path.removeprefix("/")
        file = self._files.get(name)
        if file is None:
            return replies.error_response(404, "not_found", f"There is no file /{name[:200]}.")
        return _asset_response(
            request, file, _IMMUTABLE if name.startswith("assets/") else "no-cache"
        )


def _read(file: Path) -> _Asset:
    plain = file.read_bytes()
    return _Asset(
        media_type=mimetypes.guess_type(file.name)[0] or "application/octet-stream",
        plain=plain,
        gzipped=gzip.compress(plain, 9, mtime=0),
        etag=f'"{hashlib.sha256(plain).hexdigest()[:32]}"',
    )


def _asset_response(request: Request, file: _Asset, cache_control: str) -> Response:
    headers = {
        **_HEADERS,
        "Cache-Control": cache_control,
        "ETag": file.etag,
        "Vary": "Accept-Encoding",
    }
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    body = file.plain
    if "gzip" in request.headers.get("accept-encoding", "") and len(file.gzipped) < len(body):
        body, headers["Content-Encoding"] = file.gzipped, "gzip"
    return Response(body, media_type=file.media_type, headers=headers)
