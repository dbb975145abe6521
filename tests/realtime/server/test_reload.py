"""Reload of a real server by SIGHUP, and by a change of its keys or its certificate."""

import asyncio
import shutil
import signal
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import create_certificate
from tests.support.processes import Process, running_process

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(180)]

KEYS = '[[keys]]\nkey = "{}"\ntenant = "acme"\n'


class Server:
    def __init__(self, process: Process, folder: Path) -> None:
        self.process, self.folder = process, folder
        process.wait_for_output(r"Ready (after)")
        self.url = process.wait_for_output(r"Listening on +wss?://(\S+)/v1/realtime")

    def status(self, key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        request = urllib.request.Request(f"https://{self.url}/v1/models", headers=headers)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with urllib.request.urlopen(request, context=context, timeout=10) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code

    def certificate(self) -> str:
        host, _, port = self.url.partition(":")
        return ssl.get_server_certificate((host, int(port)), timeout=10)

    def wait_until_reloaded(self, count: int) -> None:
        """Wait until a reload has been logged `count` times."""
        end_s = time.monotonic() + 10
        while self.process.output.count(" reload") < count and time.monotonic() < end_s:
            time.sleep(0.02)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    create_certificate(tmp_path / "tls")
    (tmp_path / "keys").write_text(KEYS.format("key-one"))
    (tmp_path / "config.toml").write_text("requests_per_minute = 100\n")
    with running_process(
        *("serve", "--port", "0", "--no-web", "--threads", "1", "--store", "memory"),
        *("--api-keys-file", str(tmp_path / "keys"), "--config", str(tmp_path / "config.toml")),
        *("--ssl-certfile", str(tmp_path / "tls" / "certificate.pem")),
        *("--ssl-keyfile", str(tmp_path / "tls" / "key.pem")),
    ) as process:
        yield Server(process, tmp_path)


async def test_server_reloads_on_sighup_and_when_a_file_has_changed(server: Server) -> None:
    assert [server.status(key) for key in ("key-one", "key-two")] == [200, 401]
    (server.folder / "keys").write_text(KEYS.format("key-two"))
    server.wait_until_reloaded(1)  # without a signal
    assert [server.status(key) for key in ("key-one", "key-two")] == [401, 200]

    before = server.certificate()
    other, key = create_certificate(server.folder / "other")
    shutil.copy(other, server.folder / "tls" / "certificate.pem")  # not that of the key yet
    server.wait_until_reloaded(2)
    assert "the previous settings stay in force" in server.process.output
    assert server.certificate() == before
    shutil.copy(key, server.folder / "tls" / "key.pem")
    server.wait_until_reloaded(3)
    assert server.certificate() == other.read_text()

    server.process.send_signal(signal.SIGHUP)
    server.wait_until_reloaded(4)
    assert server.process.output.count(" reloaded: 1 keys of 1 tenants") == 3
    (server.folder / "keys").write_text("nothing\n")
    server.wait_until_reloaded(5)
    assert "line 1: expected KEY = TENANT" in server.process.output
    assert server.status("key-two") == 200
    assert "key-two" not in server.process.output
    assert "takes effect at the next start" not in server.process.output
    (server.folder / "keys").write_text(KEYS.format("key-two"))
    (server.folder / "config.toml").write_text("requests_per_minute = 100\nresume_window_s = 5\n")
    server.wait_until_reloaded(6)
    (server.folder / "config.toml").write_text("requests_per_minute = 100\ntemperature = 1\n")
    server.wait_until_reloaded(8)
    assert "the change of --temperature takes effect" in server.process.output
    assert "the change of --resume-window-s takes effect" in server.process.output
    server.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(server.process.wait_exit(), 30) == 0
