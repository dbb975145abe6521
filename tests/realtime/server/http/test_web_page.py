"""The page as it is served, from a folder of built files, and without one."""

import gzip
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.types import Message, Scope

from continuo.realtime.server.http.page import Page

INDEX = "<!doctype html>" + "page " * 200


@pytest.fixture
def built(tmp_path: Path) -> Page:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text(INDEX)
    (tmp_path / "admin.html").write_text("admin")
    (tmp_path / "assets/app-1a2b.js").write_text("let it = be;")
    (tmp_path / "secret.txt").write_text("not asked for by any page")
    return Page(tmp_path)


async def get(page: Page, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    app, said = Starlette(routes=page.routes()), list[Message]()
    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
    }

    async def send(message: Message) -> None:
        said.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    await app(scope, receive, send)
    found = {name.decode(): value.decode() for name, value in said[0]["headers"]}
    return said[0]["status"], found, said[1]["body"]


async def test_pages_are_asked_for_again_and_their_parts_kept_for_ever(built: Page) -> None:
    status, headers, body = await get(built, "/")
    assert (status, body.decode()) == (200, INDEX)
    assert headers["cache-control"] == "no-cache"
    assert headers["content-type"].startswith("text/html")
    status, headers, _ = await get(built, "/assets/app-1a2b.js")
    assert status == 200
    assert "immutable" in headers["cache-control"]
    assert headers["content-type"].startswith("text/javascript")
    assert (await get(built, "/admin"))[2] == b"admin"


async def test_what_the_browser_has_is_not_sent_again(built: Page) -> None:
    tag = (await get(built, "/"))[1]["etag"]
    status, _, body = await get(built, "/", if_none_match=tag)
    assert (status, body) == (304, b"")


async def test_it_is_compressed_for_who_can_read_it(built: Page) -> None:
    _, headers, body = await get(built, "/", accept_encoding="br, gzip")
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(body).decode() == INDEX
    _, headers, _ = await get(built, "/assets/app-1a2b.js", accept_encoding="gzip")
    assert "content-encoding" not in headers, "too small to gain"


async def test_nothing_is_loaded_from_elsewhere(built: Page) -> None:
    policy = (await get(built, "/"))[1]["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


@pytest.mark.parametrize(
    "path", ["/assets/../secret.txt", "/assets/%2e%2e/secret.txt", "/secret.txt", "/assets/"]
)
async def test_nothing_else_is_found(built: Page, path: str) -> None:
    status, _, body = await get(built, path)
    assert status == 404
    assert b"not asked" not in body


async def test_without_its_files_it_says_how_to_build_them(tmp_path: Path) -> None:
    page = Page(tmp_path / "never built")
    assert not page.is_built
    status, headers, body = await get(page, "/")
    assert status == 404
    assert headers["content-type"].startswith("text/html")
    assert b"make web" in body
