"""The services of compose.yaml as plain processes: the same commands, the same environment, the
same haproxy.cfg. Names and ports of containers become free ports of this machine."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PROGRAMS = {"redis-server": "redis-server", "haproxy": "haproxy"}
SECRETS = {"link": "what gateways and engines know", "api_keys": "sk-compose = default\n"}
KEY = "sk-compose"


def missing() -> list[str]:
    """Programs that are not here."""
    found = {name: shutil.which(name) or shutil.which(f"/usr/sbin/{name}") for name in PROGRAMS}
    return [name for name, where in found.items() if where is None]


class Stack:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        whole: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
        self.services: dict[str, dict[str, Any]] = whole["services"]
        assert whole["secrets"].keys() == SECRETS.keys()
        for name, text in SECRETS.items():
            (folder / name).write_text(text)
        self._ports: dict[tuple[str, str], int] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def port(self, service: str, port: str) -> int:
        """Of this machine, for a port of a container."""
        if (service, port) not in self._ports:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self._ports[service, port] = free.getsockname()[1]
        return self._ports[service, port]

    def start(self, service: str) -> None:
        told = self.services[service]
        environment = {
            name: self._here(service, value) for name, value in told.get("environment", {}).items()
        }
        if "CONTINUO_PORT" in environment:
            environment["CONTINUO_PORT"] = str(self.port(service, environment["CONTINUO_PORT"]))
        log = (self.folder / f"{service}.log").open("ab")
        with log:
            self.processes[service] = subprocess.Popen(
                self._command(service, told),
                cwd=ROOT,
                env={**_outside(), **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, service: str) -> None:
        """As when its container is killed: nothing of it is left."""
        process = self.processes.pop(service)
        process.kill()
        process.wait()

    def stop(self, service: str) -> int:
        process = self.processes.pop(service)
        process.send_signal(signal.SIGTERM)
        return process.wait(60)

    def children(self, service: str) -> list[int]:
        """Of an engine: the process with the model."""
        tasks = Path(f"/proc/{self.processes[service].pid}/task")
        listed = " ".join((task / "children").read_text() for task in tasks.iterdir())
        return [int(pid) for pid in listed.split()]

    def is_healthy(self, service: str) -> bool:
        """As its health check says."""
        word, *command = self.services[service]["healthcheck"]["test"]
        assert word == "CMD"
        program = {"python": sys.executable}.get(command[0], command[0])
        command = [program, *(self._inside(service, word) for word in command[1:])]
        return subprocess.run(command, capture_output=True).returncode == 0

    def _inside(self, service: str, text: str) -> str:
        """What it says of the ports of its own container."""
        return re.sub(
            r"(127\.0\.0\.1(?::|\", ))(\d+)",
            lambda found: f"{found[1]}{self.port(service, found[2])}",
            text,
        )

    def close(self) -> None:
        for service in list(self.processes):
            self.kill(service)

    def _command(self, service: str, told: dict[str, Any]) -> list[str]:
        command = [self._here(service, word) for word in told["command"]]
        if command[0] == "redis-server":
            port = str(self.port(service, "6379"))
            return [*command, "--port", port, "--dir", str(self.folder), "--bind", "127.0.0.1"]
        if command[0] == "haproxy":
            for volume in told["volumes"]:
                here, there, *_ = volume.split(":")
                command = [str(ROOT / here) if word == there else word for word in command]
            return [shutil.which("haproxy") or "/usr/sbin/haproxy", *command[1:]]
        return [sys.executable, "-m", "continuo.realtime.server.cli", *command]

    def _here(self, service: str, text: str) -> str:
        """What it says of containers, said of this machine."""
        text = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", text)
        text = re.sub(r"/run/secrets/", f"{self.folder}/", text)
        text = re.sub(
            r"0\.0\.0\.0:(\d+)", lambda found: f"127.0.0.1:{self.port(service, found[1])}", text
        )
        names = "|".join(map(re.escape, self.services))
        text = re.sub(
            rf"\b({names}):(\d+)", lambda found: f"127.0.0.1:{self.port(found[1], found[2])}", text
        )
        return "127.0.0.1" if text == "0.0.0.0" else text


def _outside() -> dict[str, str]:
    """What a container does not set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CONTINUO_")}
    return {**kept, "CONTINUO_THREADS": "1"}
