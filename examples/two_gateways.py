"""Two users on two gateways; then one moves to the other gateway in mid-conversation.

Gateways with one store are interchangeable. Start two, for example, with

    redis-server --maxmemory-policy noeviction &
    .venv/bin/continuo engine --listen 127.0.0.1:9000 &
    .venv/bin/continuo gateway --engine 127.0.0.1:9000 --store redis://127.0.0.1 --port 8000 &
    .venv/bin/continuo gateway --engine 127.0.0.1:9000 --store redis://127.0.0.1 --port 8001 &
"""

import argparse
import asyncio

from continuo.client import ResumePoint, connect


async def introduce(url: str, name: str) -> ResumePoint | None:
    async with connect(url) as client:
        print(f"{name} at {url}: {await client.ask(f'My name is {name}.')}")
        return client.resume_point


async def recall(url: str, name: str, point: ResumePoint | None) -> None:
    async with connect(url, resume=point) as client:
        print(f"{name} at {url}: {await client.ask('What is my name?')}")
        await client.delete_session()


async def main(first: str, second: str) -> None:
    ada, bob = await asyncio.gather(introduce(first, "Ada"), introduce(second, "Bob"))
    await asyncio.gather(recall(second, "Ada", ada), recall(second, "Bob", bob))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument("--other-url", default="http://127.0.0.1:8001", help="default: %(default)s")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.other_url))
