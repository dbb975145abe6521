"""Hello: two turns of a conversation. The model remembers the first."""

import argparse
import asyncio

from continuo.client import connect


async def main(url: str) -> None:
    async with connect(url, instructions="Be brief.") as client:
        print(await client.ask("My name is Ada."))  # the whole text
        async for delta in client.ask("What is my name?"):  # the text as it arrives
            print(delta, end="", flush=True)
        print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    asyncio.run(main(parser.parse_args().url))
