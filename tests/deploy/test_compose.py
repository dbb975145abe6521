"""Tests of compose.yaml: the file, and a conversation with its services while each is killed."""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from continuo.realtime.server.auth.access_policy import read_keys_file
from continuo.realtime.server.config.options import (
    OPTIONS,
    accepted_options,
    check_bounds,
    trace_sources,
)
from tests.deploy.stack import (
    KEY,
    ROOT,
    Stack,
    missing_programs,
    pass_variables,
    read_compose,
    read_file,
    resolve,
)
from tests.support import processes
from tests.support.clients import RealtimeClient, RequestRefused
from tests.support.processes import wait_ready
from tools.set_up import CPU_INDEX

T = TypeVar("T")
FILES = ("compose.yaml", "deploy/compose.gpu.yaml", "deploy/compose.tls.yaml")
VLLM_FILE = "deploy/compose.vllm.yaml"
SCHEMA = "vendor.compose-spec"
OVER_IT = "deploy/compose.*.yaml"
LONGEST_DOWNLOAD_S = 1800.0
"""70 GB at 40 MB a second, and loading them."""


@pytest.mark.parametrize("file", [*FILES, VLLM_FILE])
def test_file_is_valid_by_the_compose_schema(file: str, tmp_path: Path) -> None:
    """The file is checked with the published schema of the Compose specification. (Its tag `!reset`
    is none of YAML, so the values are checked.)"""
    values = tmp_path / "compose.json"
    values.write_text(json.dumps(read_file(file)))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMA, values]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_services_run_unprivileged_and_are_restarted() -> None:
    services = read_compose(*FILES[1:])["services"]
    for name, service in services.items():
        assert service["restart"] == "unless-stopped", name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service.get("user") or service["image"].startswith("continuo:"), name
        assert "healthcheck" in service, name
        assert re.fullmatch(r"(\$\{\w+:-)?\d+[gm]\}?", memory_limit(service)), name
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "\nUSER 10001\n" in dockerfile
    grace_s = float(services["gateway-1"]["environment"]["CONTINUO_DRAIN_GRACE_S"])
    assert grace_s < float(services["gateway-1"]["stop_grace_period"].removesuffix("s"))


def test_tls_is_the_only_entry_where_it_is_used() -> None:
    """HAProxy has a port of its own else, whose connections are not encrypted."""
    published = {
        name: service["ports"]
        for name, service in read_compose("deploy/compose.tls.yaml")["services"].items()
        if service.get("ports")
    }
    assert published == {"caddy": ["80:80", "443:443", "443:443/udp"]}
    caddy = read_file("deploy/compose.tls.yaml")["services"]["caddy"]
    with pytest.raises(KeyError, match="CONTINUO_DOMAIN: the name of this host"):
        pass_variables(caddy, {})
    sources = [volume.split(":")[0] for volume in caddy["volumes"]]
    assert sources == ["./deploy/Caddyfile", "caddy"]
    assert "{$CONTINUO_DOMAIN} {" in (ROOT / sources[0]).read_text().splitlines()


def memory_limit(service: dict[str, Any]) -> str:
    return service["deploy"]["resources"]["limits"]["memory"]


def test_full_redis_refuses_writes_before_its_container_is_killed() -> None:
    """The append-only file is rewritten by a fork, which may need the memory a second time."""
    redis = read_compose()["services"]["redis"]
    maxmemory = redis["command"][redis["command"].index("--maxmemory") + 1]
    assert 2 * int(maxmemory.removesuffix("gb")) <= int(memory_limit(redis).removesuffix("g"))


@pytest.mark.parametrize("files", [(), FILES[1:2], FILES[1:]])
def test_each_image_is_built_by_exactly_one_service(files: tuple[str, ...]) -> None:
    """Builds of one tag by several services at a time fail on a clean machine. The service that
    builds belongs to no profile, else Compose would look for the image elsewhere."""
    services = read_compose(*files)["services"]
    own = [service for service in services.values() if service["image"].startswith("continuo:")]
    builders = [service["image"] for service in own if "build" in service]
    assert sorted(builders) == sorted({service["image"] for service in own})
    assert all("profiles" not in service for service in own if "build" in service)


def test_images_have_pytorch_for_a_cpu_unless_told_otherwise() -> None:
    services = read_compose("deploy/compose.gpu.yaml")["services"]
    index = services["gateway-1"]["build"]["args"]["TORCH_INDEX"]
    assert resolve(index, {}) == CPU_INDEX
    assert resolve(index, {"TORCH_INDEX": ""}) == ""
    cuda = services["engine-1"]["build"]
    assert (cuda["target"], cuda["args"]["TORCH_INDEX"]) == ("cuda", "")


def test_gpu_file_gives_each_engine_the_image_with_cuda_and_a_gpu_of_its_own() -> None:
    below, services = (
        read_compose(*files)["services"] for files in ((), ("deploy/compose.gpu.yaml",))
    )
    engines = [name for name, service in below.items() if service.get("command") == ["engine"]]
    assert len(engines) == 2
    gpus: list[str] = []
    for name in engines:
        assert services[name]["image"] == "continuo:cuda", name
        [device] = services[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"]
        assert memory_limit(services[name]) == memory_limit(below[name])
        gpus += [resolve(gpu, {}) for gpu in device["device_ids"]]
    assert sorted(gpus) == ["0", "1"]


def test_vllm_file_makes_vllm_compute_for_all_engines() -> None:
    """vLLM is started with the options that the documentation names, and no one else reaches it."""
    services = read_compose(VLLM_FILE)["services"]
    vllm = services["vllm"]
    assert "ports" not in vllm
    for name in ("engine-1", "engine-2"):
        assert services[name]["environment"]["CONTINUO_ENGINE_URL"] == "http://vllm:8000", name
    page = (ROOT / "docs/other-servers.md").read_text()
    documented = re.search(r"^vllm serve \S+ (.*?)^llama-server", page, re.MULTILINE | re.DOTALL)
    assert documented is not None
    assert set(shlex.split(documented[1].replace("\\\n", ""))) <= set(vllm["command"])
    assert resolve(vllm["command"][0], {"CONTINUO_MODEL": "a/b"}) == "a/b"
    with pytest.raises(KeyError, match="a hub id"):
        resolve(vllm["command"][0], {})


def test_no_service_is_unhealthy_while_a_model_is_downloaded() -> None:
    """An engine loads the model, and the entry needs a gateway that has an engine. A gateway by
    itself is live at once."""
    services = read_compose()["services"]
    for name in ("engine-1", "engine-2", "haproxy"):
        period = services[name]["healthcheck"]["start_period"]
        assert seconds(resolve(period, {})) >= LONGEST_DOWNLOAD_S, name
        assert resolve(period, {"CONTINUO_START_PERIOD": "2h"}) == "2h"


def seconds(duration: str) -> float:
    return float(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


# ---- the variables -------------------------------------------------------------------------------


def example_values() -> dict[str, str]:
    """The variables of .env.example, where each is in a comment."""
    text = (ROOT / ".env.example").read_text()
    assert not re.findall(r"^[^#\n]", text, re.MULTILINE), "the file as it is changes nothing"
    return dict(re.findall(r"^#(\w+)=(.*)$", text, re.MULTILINE))


def test_example_has_the_variables_of_all_files_with_their_defaults() -> None:
    text = "".join(path.read_text() for path in [ROOT / "compose.yaml", *ROOT.glob(OVER_IT)])
    defaults = dict(re.findall(r"\$\{(\w+):?-([^}]*)\}", text))
    required = set(re.findall(r"\$\{(\w+):\?", text))
    services = read_compose()["services"].values()
    environments = [service.get("environment", {}) for service in services]
    passed = {name for names in environments for name, value in names.items() if value is None}
    found = example_values()
    assert found.keys() == defaults.keys() | required | passed
    assert {name: found[name] for name in defaults} == defaults


def test_variables_are_options_of_their_service_and_the_examples_are_valid() -> None:
    """Defaults that are a value are the examples; others are described."""
    services, examples = read_compose()["services"], example_values()
    by_variable = {option.environment_variable: option for option in OPTIONS}
    for name in ("gateway-1", "engine-1"):
        [command] = services[name]["command"]
        accepted = {option.environment_variable for option in accepted_options(command)}
        passed = {
            variable
            for variable, value in services[name]["environment"].items()
            if value is None and variable != "HF_TOKEN"
        }
        assert passed <= accepted, name
        for option in (by_variable[variable] for variable in passed):
            if option.choices or option.bounds:
                default = option.describe_default(command).split(",")[0]
                assert examples[option.environment_variable] == default
        environment = pass_variables(services[name], examples)
        del environment["CONTINUO_CONFIG"]
        sources = trace_sources({}, environment)
        assert {sources[by_variable[variable].key].origin for variable in passed} == passed
        check_bounds({key: value for key, (value, _) in sources.items()})


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_git_ignores_the_variables_in_use_but_not_the_example() -> None:
    ignored = subprocess.run(
        ["git", "check-ignore", ".env", ".env.example"], cwd=ROOT, capture_output=True, text=True
    )
    assert ignored.stdout.split() == [".env"]


# ---- the services as processes -------------------------------------------------------------------

pytestmark = pytest.mark.timeout(300)
needs_programs = pytest.mark.skipif(
    bool(missing_programs()),
    reason=f"not installed (Debian: apt-get install): {', '.join(missing_programs())}",
)

BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"))
    services = [name for name, definition in stack.services.items() if "profiles" not in definition]
    try:
        for service in services:
            stack.start(service)
        yield stack
    finally:
        stack.close()


@pytest.fixture
def url(stack: Stack) -> str:
    """The URL of HAProxy."""
    return f"ws://127.0.0.1:{stack.port('haproxy', '8000')}/v1/realtime"


@asynccontextmanager
async def open_conversation(url: str) -> AsyncIterator[RealtimeClient]:
    client = RealtimeClient(
        await retry_while_refused(lambda: connect(url, additional_headers=BEARER))
    )
    try:
        await client.expect("session.created")
        yield client
    finally:
        await client.socket.close()


async def retry_while_refused(attempt: Callable[[], Awaitable[T]]) -> T:
    """Retry to connect while refused: HAProxy checks once a second which gateways are ready."""
    async with asyncio.timeout(processes.READY_TIMEOUT_S):
        while True:
            try:
                return await attempt()
            except (InvalidStatus, OSError):
                await asyncio.sleep(0.2)


CADDY_SETTINGS = """{
    local_certs
    skip_install_trust
    auto_https disable_redirects
    admin localhost:%s
}
"""
"""Certificates of an authority of its own, and no port 80."""


@needs_programs
@pytest.mark.skipif(
    not (shutil.which("caddy") and shutil.which("wget")), reason="caddy or wget is not installed"
)
async def test_conversation_works_through_caddy(stack: Stack, url: str, tmp_path: Path) -> None:
    """Caddy runs with the Caddyfile of compose.tls.yaml, and with its health check. A page has the
    origin of the server, so it needs no --allowed-origins."""
    await wait_until_ready(url)
    port, admin = stack.port("caddy", "443"), stack.port("caddy", "2019")
    file = tmp_path / "Caddyfile"
    entry = f"127.0.0.1:{stack.port('haproxy', '8000')}"
    recipe = (ROOT / "deploy/Caddyfile").read_text().replace("haproxy:8000", entry)
    file.write_text(CADDY_SETTINGS % admin + recipe)
    folders = {"XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    environment = folders | {"CONTINUO_DOMAIN": f"chat.example.org:{port}"}
    command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(file)]
    check = read_file("deploy/compose.tls.yaml")["services"]["caddy"]["healthcheck"]["test"][1:]
    check[-1] = check[-1].replace("2019", str(admin))
    caddy = await asyncio.create_subprocess_exec(
        *command, env=os.environ | environment, stderr=subprocess.DEVNULL
    )
    try:
        authority = tmp_path / "caddy/pki/authorities/local/root.crt"
        async with asyncio.timeout(processes.READY_TIMEOUT_S):
            while await run_silently(check) or not authority.exists():
                await asyncio.sleep(0)  # the check is a process, which takes its time
        address = f"chat.example.org:{port}"
        socket = await retry_while_refused(
            lambda: connect(
                f"wss://{address}/v1/realtime",
                additional_headers=BEARER,
                origin=Origin(f"https://{address}"),
                ssl=ssl.create_default_context(cafile=authority),
                host="127.0.0.1",
                port=port,
            )
        )
        client = RealtimeClient(socket)
        await client.expect("session.created")
        await client.add_message("My name is Zorban and I live in Quiltown.")
        assert await client.complete_response()
        await client.socket.close()
    finally:
        caddy.terminate()
        await caddy.wait()


async def run_silently(command: list[str]) -> int:
    """Run a command. Returns its exit status."""
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
    return await process.wait()


async def check_conversation(url: str) -> None:
    """Hold a conversation whose second response needs the first message."""
    async with open_conversation(url) as client:
        await client.add_message("My name is Zorban and I live in Quiltown.")
        assert await client.complete_response()
        await client.add_message("What is my name?")
        assert "Zorban" in await client.complete_response()


async def wait_until_ready(url: str) -> None:
    """Wait until a gateway is ready at this URL."""
    async with asyncio.timeout(processes.READY_TIMEOUT_S):
        while True:
            try:
                await wait_ready(url)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                return


@needs_programs
async def test_conversation_works_through_haproxy(stack: Stack, url: str) -> None:
    await wait_until_ready(url)
    await check_conversation(url)


@needs_programs
async def test_health_checks_follow_the_state_of_services(stack: Stack, url: str) -> None:
    """An engine is healthy only while its process with the model responds, though its port stays
    open; HAProxy only while a gateway is ready.
    """
    await wait_until_ready(url)
    entry_point = ["haproxy"] if shutil.which("wget") else []
    for service in ("engine-1", "gateway-1", "gateway-2", *entry_point):
        await asyncio.to_thread(wait_until_health_is, stack, service, True)
    (child,) = stack.children("engine-1")
    os.kill(child, signal.SIGSTOP)
    try:
        await asyncio.to_thread(wait_until_health_is, stack, "engine-1", False)
        for service in entry_point:
            await asyncio.to_thread(wait_until_health_is, stack, service, False)
    finally:
        os.kill(child, signal.SIGCONT)
    await asyncio.to_thread(wait_until_health_is, stack, "engine-1", True)
    await wait_until_ready(url)


def wait_until_health_is(stack: Stack, service: str, healthy: bool) -> None:
    deadline_s = time.monotonic() + processes.READY_TIMEOUT_S
    while stack.is_healthy(service) is not healthy:
        assert time.monotonic() < deadline_s, (
            f"{service} should be {'' if healthy else 'un'}healthy"
        )
        time.sleep(0.1)


@needs_programs
@pytest.mark.parametrize("service", ["redis", "engine-1", "gateway-1", "gateway-2", "haproxy"])
async def test_conversation_continues_after_a_service_is_killed(
    stack: Stack, url: str, service: str
) -> None:
    """The service is started again, as by its restart policy, and the conversation continues."""
    await wait_until_ready(url)
    for gateway in ("gateway-1", "gateway-2"):
        await wait_until_ready(f"ws://127.0.0.1:{stack.port(gateway, '8000')}/v1/realtime")
    async with open_conversation(url) as client:
        await client.add_message("My name is Zorban and I live in Quiltown.")
        assert await client.complete_response()
        stack.kill(service)
        if service.startswith("gateway"):
            await check_conversation(url)  # on the other gateway
        stack.start(service)
        await wait_until_ready(url)
        assert "Zorban" in await ask_until_answered(client, url)
    await wait_until_ready(url)
    await check_conversation(url)


async def ask_until_answered(client: RealtimeClient, url: str) -> str:
    """Send a question, reconnecting and retrying as a client does. Returns the response."""
    async with asyncio.timeout(processes.READY_TIMEOUT_S):
        while True:
            try:
                await client.add_message("What is my name?")
                return await client.complete_response()
            except ConnectionClosed:
                await retry_while_refused(lambda: client.resume(url, BEARER))
            except RequestRefused as refused:
                await refused.back_off()


@needs_programs
async def test_client_of_a_killed_gateway_gets_json(stack: Stack, url: str) -> None:
    """A response that is lost with its gateway is not asked for again by HAProxy, because it may
    have been executed; its client gets an error that it can parse."""
    await wait_until_ready(url)
    for gateway in ("gateway-1", "gateway-2"):
        await wait_until_ready(f"ws://127.0.0.1:{stack.port(gateway, '8000')}/v1/realtime")
    started = asyncio.Event()

    async def respond_until_refused() -> tuple[int, dict[str, Any]]:
        while True:
            status, body = await asyncio.to_thread(post_response, url)
            started.set()
            if status != 200:
                return status, json.loads(body)

    clients = [asyncio.create_task(respond_until_refused()) for _ in range(4)]
    await started.wait()
    stack.kill("gateway-1")
    stack.kill("gateway-2")
    refusals = await asyncio.gather(*clients)
    statuses = {status for status, _ in refusals}
    assert 502 in statuses, "a response was lost with its gateway"
    assert statuses <= {502, 503}
    status, body = await asyncio.to_thread(post_response, url)
    for refused in (*refusals, (status, json.loads(body))):
        assert refused[1]["error"]["code"] == "gateway_unavailable"
        assert refused[1]["error"]["type"] == "server_error"
    for gateway in ("gateway-1", "gateway-2"):
        stack.start(gateway)
    await wait_until_ready(url)


def post_response(url: str) -> tuple[int, bytes]:
    """Ask for a long response without a stream. Returns status and body."""
    address = url.replace("ws:", "http:").replace("/realtime", "/responses")
    content = json.dumps({"input": "Tell me a story.", "max_output_tokens": 300}).encode()
    headers = {**BEARER, "Content-Type": "application/json"}
    try:
        with urlopen(Request(address, content, headers=headers)) as response:
            return response.status, response.read()
    except HTTPError as error:
        return error.code, error.read()


@needs_programs
async def test_gateway_and_engine_stop_cleanly_and_are_replaced(stack: Stack, url: str) -> None:
    await wait_until_ready(url)
    for service in ("gateway-1", "engine-1"):
        # The entry point is ready with one gateway: the other may not handle signals yet.
        await asyncio.to_thread(wait_until_health_is, stack, service, True)
        assert stack.stop(service) == 0
        stack.start(service)
        await wait_until_ready(url)
        await check_conversation(url)


@needs_programs
async def test_redis_answers_only_the_user_with_the_password(stack: Stack, url: str) -> None:
    await wait_until_ready(url)
    port = int(stack.port("redis", "6379"))
    async with Redis(port=port) as stranger:
        assert await stranger.execute_command("PING")
        for command in (("GET", "continuo:epoch"), ("FLUSHALL",), ("ACL", "LIST")):
            with pytest.raises(NoPermissionError):
                await stranger.execute_command(*command)
    await asyncio.to_thread(wait_until_health_is, stack, "redis", True)
    config = ("--config", str(stack.folder / "store"))
    for action in ("stats", "vacuum"):
        done = await asyncio.create_subprocess_exec(
            sys.executable, "-m", processes.CLI_MODULE, "store", action, *config, cwd=ROOT
        )
        assert await done.wait() == 0


@needs_programs
async def test_variables_reach_the_services(tmp_path: Path) -> None:
    """`strict` is refused unless Redis has got the variable beside it."""
    origin = "https://app.example.org"
    stack = Stack(
        tmp_path,
        {
            "CONTINUO_DURABILITY": "strict",
            "REDIS_APPENDFSYNC": "always",
            "CONTINUO_ALLOWED_ORIGINS": origin,
            "CONTINUO_MAX_MODEL_LEN": "384",
        },
    )
    try:
        for service in ("redis", "engine-1", "gateway-1"):
            stack.start(service)
        url = f"ws://127.0.0.1:{stack.port('gateway-1', '8000')}/v1/realtime"
        await wait_until_ready(url)
        models = await asyncio.to_thread(get_models, url)
        assert [model["max_model_len"] for model in models] == [384]
        async with connect(url, additional_headers=BEARER, origin=Origin(origin)):
            pass
        with pytest.raises(InvalidStatus, match="403"):
            await connect(url, additional_headers=BEARER, origin=Origin(f"{origin}.evil.example"))
    finally:
        stack.close()


def get_models(url: str) -> list[dict[str, Any]]:
    address = url.replace("ws:", "http:").replace("/realtime", "/models")
    with urlopen(Request(address, headers=BEARER)) as response:
        return json.load(response)["data"]


def test_make_secrets_keeps_existing_secrets(tmp_path: Path) -> None:
    for _ in range(2):
        subprocess.run(["sh", ROOT / "deploy/make_secrets.sh", tmp_path], check=True)
        secrets = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert secrets.keys() == {
        "link",
        "api_keys",
        "metrics_key",
        "redis_users",
        "store",
    }
    assert len(secrets["link"]) == 64
    policy = read_keys_file(tmp_path / "api_keys")
    operator = policy.find(secrets["metrics_key"], 0)
    assert operator is not None
    assert (operator.tenant, operator.scopes) == ("metrics", {"admin"})
    [client] = [key for key in policy.keys.values() if key is not operator]
    assert (client.tenant, client.scopes) == ("default", {"converse", "read"})
    assert all(key.startswith("sk-") for key in policy.plain_keys)
    subprocess.run(["sh", ROOT / "deploy/make_secrets.sh", tmp_path], check=True)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == secrets
    password = re.search(r"continuo:(\w+)@", secrets["store"])
    assert password is not None
    assert f">{password[1]} " in secrets["redis_users"]
