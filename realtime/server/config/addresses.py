"""Addresses of the form HOST:PORT, as given in options."""

from typing import NamedTuple

from continuo.realtime.errors import SetupError


class Address(NamedTuple):
    host: str
    port: int

    @classmethod
    def parse(cls, text: str, option: str = "an address") -> "Address":
        """Parse HOST:PORT; an empty host means 0.0.0.0. Raises SetupError, whose message names
        `option`."""
        host, colon, port = text.strip().rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise SetupError(f"{option} {text}: expected HOST:PORT, as 127.0.0.1:8100")
        return cls(host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
