"""The web page as it is served from a folder of built files, and without such a folder."""

import gzip
import html
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.types import Message, Scope

from continuo.realtime.server.http.page import Page, is_page_built
from continuo.realtime.server.own_command import find_make_command, find_own_command

INDEX = "<!doctype html>" + "page " * 200


@pytest.fixture
def built(tmp_path: Path) -> Page:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text(INDEX)
    (tmp_path / "admin.html").write_text("admin")
    (tmp_path / "assets/app-1a2b.js").write_text("let it = be;")
    (tmp_path / "secret.txt").write_text("not linked from any page")
    return Page(tmp_path)


async def get(page: Page, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    app, sent = Starlette(routes=page.routes()), list[Message]()
    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
    }

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    await app(scope, receive, send)
    response_headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], response_headers, sent[1]["body"]


def test_built_page_is_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").touch()
    assert is_page_built(tmp_path)


async def test_pages_are_revalidated_and_assets_are_immutable(built: Page) -> None:
    status, headers, body = await get(built, "/")
    assert (status, body.decode()) == (200, INDEX)
    assert headers["cache-control"] == "no-cache"
    assert headers["content-type"].startswith("text/html")
    status, headers, _ = await get(built, "/assets/app-1a2b.js")
    assert status == 200
    assert "immutable" in headers["cache-control"]
    assert headers["content-type"].startswith("text/javascript")
    assert (await get(built, "/admin"))[2] == b"admin"


async def test_matching_etag_gets_304_without_a_body(built: Page) -> None:
    tag = (await get(built, "/"))[1]["etag"]
    status, _, body = await get(built, "/", if_none_match=tag)
    assert (status, body) == (304, b"")


async def test_page_is_gzipped_for_clients_that_accept_it(built: Page) -> None:
    _, headers, body = await get(built, "/", accept_encoding="br, gzip")
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(body).decode() == INDEX
    _, headers, _ = await get(built, "/assets/app-1a2b.js", accept_encoding="gzip")
    assert "content-encoding" not in headers, "too small to gain"


async def test_content_security_policy_allows_no_other_origin(built: Page) -> None:
    policy = (await get(built, "/"))[1]["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy


@pytest.mark.parametrize(
    "path", ["/assets/../secret.txt", "/assets/%2e%2e/secret.txt", "/secret.txt", "/assets/"]
)
async def test_other_files_of_the_folder_are_not_served(built: Page, path: str) -> None:
    status, _, body = await get(built, path)
    assert status == 404
    assert b"not linked" not in body


async def test_missing_page_is_404_with_build_instructions(tmp_path: Path) -> None:
    page = Page(tmp_path / "never built")
    assert not is_page_built(tmp_path / "never built")
    status, headers, body = await get(page, "/")
    assert status == 404
    assert headers["content-type"].startswith("text/html")
    build, chat = find_make_command("web"), f"{find_own_command()} chat"
    assert build is not None
    for command in (build, chat):
        assert html.escape(command) in body.decode()
