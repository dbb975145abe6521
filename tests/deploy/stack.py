"""The services of compose.yaml as plain processes: the same commands, the same environment, the
same haproxy.cfg. Names and ports of containers become free ports of this host.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PROGRAMS = {"redis-server": "redis-server", "haproxy": "haproxy"}
KEY = "sk-compose"


def missing_programs() -> list[str]:
    """The programs that are not installed."""
    paths = {name: shutil.which(name) or shutil.which(f"/usr/sbin/{name}") for name in PROGRAMS}
    return [name for name, path in paths.items() if path is None]


class _Reset(list[Any]):
    """The value `!reset LIST` of a file above: the list, without those of the files below."""


class _Loader(yaml.SafeLoader):
    """Reads a Compose file, which has a tag of its own."""


def _construct_reset(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> _Reset:
    return _Reset(loader.construct_sequence(node))


_Loader.add_constructor("!reset", _construct_reset)


def read_file(file: str) -> dict[str, Any]:
    """Return a Compose file of the repository."""
    return yaml.load((ROOT / file).read_text(), _Loader)


def read_compose(*files: str) -> dict[str, Any]:
    """Return compose.yaml with other files of the repository over it, merged as Compose does."""
    merged: dict[str, Any] = {}
    for file in ("compose.yaml", *files):
        merged = _merge(merged, read_file(file))
    return merged


def _merge(below: Any, above: Any) -> Any:
    """Merge a value with that of a file above: mappings by key, else the one above wins. (Compose
    joins lists; no file here has one that is also in a file below, except to reset it.)"""
    if isinstance(above, _Reset):
        return list(above)
    if not (isinstance(below, dict) and isinstance(above, dict)):
        assert not isinstance(below, list), "Compose would join these lists"
        return above
    kept = {key: value for key, value in below.items() if key not in above}
    return kept | {
        key: _merge(below[key], value) if key in below else value for key, value in above.items()
    }


def resolve(value: str, environ: Mapping[str, str]) -> str:
    """Replace the variables of a value, as Compose does: `${NAME:-default}` stands for the default
    if the variable is empty or not set, `${NAME-default}` if it is not set. Raises KeyError for
    `${NAME:?message}` in those cases."""

    def substitute(found: re.Match[str]) -> str:
        name, colon, operator, default = found.groups()
        text = environ.get(name)
        if text is not None and not (colon and not text):
            return text
        if operator == "?":
            raise KeyError(f"{name}: {default}")
        return default

    return re.sub(r"\$\{(\w+)(:?)([-?])(.*?)\}", substitute, value)


def pass_variables(service: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a service, as Compose makes it: a variable without a value has that
    of Compose's own environment, or is not set."""
    variables = {
        name: environ.get(name) if value is None else resolve(value, environ)
        for name, value in service.get("environment", {}).items()
    }
    return {name: value for name, value in variables.items() if value is not None}


class Stack:
    """The services of compose.yaml, each started and stopped by its name."""

    def __init__(self, folder: Path, variables: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._variables = variables or {}
        compose = read_compose()
        self.services: dict[str, dict[str, Any]] = compose["services"]
        self._ports: dict[tuple[str, str], int] = {}
        subprocess.run(
            ["sh", ROOT / "deploy/make_secrets.sh", folder], check=True, capture_output=True
        )
        for name in compose["secrets"]:
            secret = folder / name
            secret.write_text(self._to_host("", secret.read_text()))
        (folder / "api_keys").write_text(f"{KEY} = default\n")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def port(self, service: str, port: str) -> int:
        """The port of this host for a port of a container."""
        if (service, port) not in self._ports:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self._ports[service, port] = free.getsockname()[1]
        return self._ports[service, port]

    def start(self, service: str) -> None:
        definition = self.services[service]
        environment = {
            name: self._to_host(service, value)
            for name, value in pass_variables(definition, self._variables).items()
        }
        if "CONTINUO_PORT" in environment:
            environment["CONTINUO_PORT"] = str(self.port(service, environment["CONTINUO_PORT"]))
        log = (self.folder / f"{service}.log").open("ab")
        with log:
            self.processes[service] = subprocess.Popen(
                self._command(service, definition),
                cwd=ROOT,
                env={**_base_environment(), **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, service: str) -> None:
        """Kill the process of a service, as when its container is killed."""
        process = self.processes.pop(service)
        process.kill()
        process.wait()

    def stop(self, service: str) -> int:
        process = self.processes.pop(service)
        process.send_signal(signal.SIGTERM)
        return process.wait(60)

    def children(self, service: str) -> list[int]:
        """The child processes of a service: of an engine, the one with the model."""
        tasks = Path(f"/proc/{self.processes[service].pid}/task")
        pids = " ".join((task / "children").read_text() for task in tasks.iterdir())
        return [int(pid) for pid in pids.split()]

    def is_healthy(self, service: str) -> bool:
        """Run the health check of a service. Returns whether it passes."""
        word, *command = self.services[service]["healthcheck"]["test"]
        assert word == "CMD"
        program = {"python": sys.executable}.get(command[0], command[0])
        if service == "redis":
            command[-1] = command[-1].replace(
                "redis-cli", f"redis-cli -p {self.port(service, '6379')}"
            )
        command = [program, *(self._to_host_port(service, word) for word in command[1:])]
        return subprocess.run(command, capture_output=True).returncode == 0

    def _to_host_port(self, service: str, text: str) -> str:
        """Replace ports of the service's own container by those of this host."""
        return re.sub(
            r"(127\.0\.0\.1(?::|\", ))(\d+)",
            lambda match: f"{match[1]}{self.port(service, match[2])}",
            text,
        )

    def close(self) -> None:
        for service in list(self.processes):
            self.kill(service)

    def _command(self, service: str, definition: dict[str, Any]) -> list[str]:
        command = [self._to_host(service, word) for word in definition["command"]]
        if command[0] == "redis-server":
            port = str(self.port(service, "6379"))
            return [*command, "--port", port, "--dir", str(self.folder), "--bind", "127.0.0.1"]
        if command[0] == "haproxy":
            for volume in definition["volumes"]:
                source, target, *_ = volume.split(":")
                command = [str(ROOT / source) if word == target else word for word in command]
            return [shutil.which("haproxy") or "/usr/sbin/haproxy", *command[1:]]
        return [sys.executable, "-m", "continuo.realtime.server.cli", *command]

    def _to_host(self, service: str, text: str) -> str:
        """Replace names, ports and paths of containers by those of this host."""
        text = resolve(text, self._variables)
        text = re.sub(r"/run/secrets/", f"{self.folder}/", text)
        text = re.sub(
            r"0\.0\.0\.0:(\d+)", lambda match: f"127.0.0.1:{self.port(service, match[1])}", text
        )
        names = "|".join(map(re.escape, self.services))
        text = re.sub(
            rf"\b({names}):(\d+)", lambda match: f"127.0.0.1:{self.port(match[1], match[2])}", text
        )
        return "127.0.0.1" if text == "0.0.0.0" else text


def _base_environment() -> dict[str, str]:
    """The environment variables that compose.yaml does not set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CONTINUO_")}
    return {**kept, "CONTINUO_THREADS": "1"}
