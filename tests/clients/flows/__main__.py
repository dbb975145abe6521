"""Run the flows of the named servers and print their results as one JSON object.

The result of a flow is its traceback, or null if it succeeded, and its transcript.
."""

import asyncio
import importlib
import json
import pkgutil
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.clients.flows.connections import FLOWS, SERVERS, Client


async def main(key: str, *servers: str) -> None:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name != "__main__":
            importlib.import_module(f"tests.clients.flows.{module.name}")
    results: dict[str, Any] = {}
    urls = dict(server.split("=", 1) for server in servers)
    for name, run in FLOWS.items():
        url = urls.get(SERVERS.get(name, "main"))
        if url is None:
            continue
        client, problem = Client(url, key), None
        try:
            await asyncio.wait_for(run(client), 120)
        except Exception:
            problem = traceback.format_exc(limit=-4)
        results[name] = {"problem": problem, "transcript": client.transcript}
    print(json.dumps(results))


asyncio.run(main(*sys.argv[1:]))
