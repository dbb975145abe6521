"""Tests of `continuo config check` and `continuo config print`."""

import resource
import socket
from pathlib import Path
from unittest.mock import patch

import pytest

from continuo.realtime.server.cli import main
from continuo.realtime.server.config.options import OPTIONS
from continuo.realtime.server.process.check_config import Finding, find_problems
from continuo.realtime.store import keys, open_store
from tests.support.certificates import create_certificate, create_expired_certificate
from tests.support.ports import free_port
from tests.support.redis_process import RedisProcess, running_redis


async def findings(command: str, **options: object) -> dict[str, Finding]:
    """The findings by subject, on a free port unless another one is given."""
    chosen = {"store": "memory", **options}
    chosen |= {"listen": "127.0.0.1:0"} if command == "engine" else {"port": 0, **options}
    if command == "engine":
        del chosen["store"]
    found = [each async for each in find_problems(command, chosen, {})]  # pyright: ignore[reportArgumentType]
    return {each.subject: each for each in found}


async def test_valid_configuration_has_no_problem(tmp_path: Path) -> None:
    found = await findings("serve", store=f"sqlite:///{tmp_path / 'new' / 'store.db'}")
    assert {each.verdict for each in found.values()} == {"ok"}
    assert {"options", "model", "port", "keys", "descriptors", "store"} == found.keys()
    assert "fingerprint" in found["model"].detail
    assert not (tmp_path / "new").exists(), "a check creates nothing"


async def test_refused_options_are_the_only_finding() -> None:
    found = await findings("serve", host="0.0.0.0")
    assert [(each.verdict, each.subject) for each in found.values()] == [("error", "options")]


async def test_model_folder_must_be_a_checkpoint(tmp_path: Path) -> None:
    for command in ("serve", "engine"):
        missing = await findings(command, model=str(tmp_path / "none"))
        assert missing["model"].verdict == "error"
        assert "no such folder" in missing["model"].detail
        empty = await findings(command, model=str(tmp_path))
        assert empty["model"].verdict == "error"
        assert "config.json" in empty["model"].detail
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one"}}')
    (tmp_path / "other.safetensors").write_bytes(b"")
    cut = await findings("serve", model=str(tmp_path))
    assert cut["model"].verdict == "error", "the index names a shard that is missing"


async def test_other_servers_need_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    options = {"model": str(tmp_path), "engine_url": "http://127.0.0.1:9"}
    assert (await findings("serve", **options))["model"].verdict == "ok"


async def test_model_of_the_hub_is_a_download() -> None:
    found = await findings("serve", model="org/model-that-is-not-cached")
    assert found["model"].verdict == "warning"
    assert "downloads" in found["model"].detail


async def test_keys_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[[keys]]\nkey = "one"\ntenant = "acme"\n')
    found = await findings("serve", api_keys_file=str(file))
    assert found["keys"] == Finding("ok", "keys", "1 keys of 1 tenants")
    file.write_text('[[keys]]\nkey = "one"\n')
    found = await findings("serve", api_keys_file=str(file))
    assert found["options"].verdict == "error"
    assert "tenant" in found["options"].detail


async def test_port_in_use_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = await findings("serve", port=taken.getsockname()[1])
    assert found["options"].verdict == "error"
    assert "in use" in found["options"].detail


@pytest.mark.process
async def test_certificate_is_examined_as_clients_do(tmp_path: Path) -> None:
    for create, verdict, words in (
        (create_certificate, "warning", "valid for 2.0 days"),
        (create_expired_certificate, "error", "expired"),
    ):
        certificate, key = create(tmp_path / verdict)
        found = await findings("serve", ssl_certfile=str(certificate), ssl_keyfile=str(key))
        assert found["certificate"].verdict == verdict, found
        assert words in found["certificate"].detail
    _, other_key = create_certificate(tmp_path / "other")
    mismatch = await findings("engine", ssl_certfile=str(certificate), ssl_keyfile=str(other_key))
    assert mismatch["certificate"].verdict == "error"


async def test_descriptor_limit_below_the_sessions_is_a_warning() -> None:
    with patch.object(resource, "getrlimit", lambda _: (1024, 4096)):
        found = await findings("serve")
    assert found["descriptors"].verdict == "warning"
    assert "4,096" in found["descriptors"].detail
    assert "10,256" in found["descriptors"].detail


@pytest.mark.process
async def test_gateway_is_warned_of_engines_and_stores_that_it_would_wait_for(
    tmp_path: Path,
) -> None:
    with socket.socket() as engine:
        engine.bind(("127.0.0.1", 0))
        engine.listen()
        address = f"127.0.0.1:{engine.getsockname()[1]}"
        found = await findings("gateway", engine=[address])
        assert found["engine"].verdict == "ok"
    url = f"redis://127.0.0.1:{free_port()}"
    found = await findings("gateway", engine=[address], store=url)
    assert (found["engine"].verdict, found["store"].verdict) == ("warning", "warning")


async def test_sqlite_store_of_a_newer_version_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    store = await open_store(f"sqlite:///{file}")
    await store.aclose()
    assert (await findings("serve", store=f"sqlite:///{file}"))["store"].verdict == "ok"
    file.write_bytes(b"no database, but long enough to be taken for one")
    assert (await findings("serve", store=f"sqlite:///{file}"))["store"].verdict == "error"


@pytest.mark.process
@pytest.mark.redis
async def test_redis_is_examined_without_a_change(tmp_path: Path) -> None:
    async with running_redis(tmp_path) as process:
        assert (await findings("gateway", store=process.url))["store"].verdict == "ok"
        strict = await findings("gateway", store=process.url, durability="strict")
        assert strict["store"].verdict == "error"
        assert "appendonly" in strict["store"].detail
        async with process.client() as client:
            assert await client.dbsize() == 0
            await client.set(keys.LAYOUT_KEY, keys.LAYOUT + 1)
        newer = await findings("gateway", store=process.url)
        assert newer["store"].verdict == "error"
        assert "another version" in newer["store"].detail


@pytest.mark.process
@pytest.mark.redis
async def test_redis_cluster_is_refused_by_name(tmp_path: Path) -> None:
    # By default the port of the cluster bus is the port plus 10,000, which may not exist.
    bus = ("--cluster-port", str(free_port()))
    process = RedisProcess(tmp_path, "--cluster-enabled", "yes", *bus)
    await process.start()
    try:
        found = await findings("gateway", store=process.url)
    finally:
        process.kill()
    assert found["store"].verdict == "error"
    assert "Redis Cluster is not supported" in found["store"].detail


def test_check_exits_with_1_if_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["serve", "--port", "0", "--store", "memory"]
    assert main(["config", "check", *options]) == 0
    assert main(["config", "check", *options, "--model", "/none"]) == 1
    assert "error    model" in capsys.readouterr().out


def test_print_names_the_origin_of_every_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "continuo.toml"
    file.write_text('temperature = 0.5\nhost = "127.0.0.9"\napi-key = ["sk-from-file"]\n')
    monkeypatch.setenv("CONTINUO_HOST", "127.0.0.7")
    monkeypatch.setenv("CONTINUO_PROT", "8000")
    monkeypatch.setenv("CONTINUO_STORE", "redis://me:hunter2@localhost:7000/0")
    assert main(["config", "print", "gateway", "--config", str(file), "--port", "81"]) == 0
    output = capsys.readouterr().out
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in output.splitlines()}
    assert rows["port"] == ["--port", "81"]
    assert rows["host"] == ["CONTINUO_HOST", "127.0.0.7"]
    assert rows["temperature"] == [str(file), "0.5"]
    assert rows["drain-grace-s"] == ["default", "20"]
    assert "localhost:7000" in rows["store"][1]
    assert "hunter2" not in output
    assert "sk-from-file" not in output
    assert "CONTINUO_PROT is set, but belongs to no option" in output
    assert "model" not in rows, "a gateway has no model"


def test_every_option_states_at_most_one_default_per_command() -> None:
    for option in OPTIONS:
        assert option.help.count("(default:") <= (2 if option.name == "store" else 1), option.name
