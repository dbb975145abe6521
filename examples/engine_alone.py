"""The engine alone, without a server: text in, text out."""

import argparse
import asyncio

from continuo.engine import Engine, Sampling


async def main(model: str) -> None:
    async with Engine(model) as engine:
        chat = engine.chat()
        print(await chat.ask("My name is Ada."))
        async for text in chat.ask("What is my name?"):
            print(text, end="", flush=True)
        print()
        print(
            "Once upon a time" + await engine.complete("Once upon a time", Sampling(max_tokens=12))
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo", help="a folder or hub id; default: %(default)s")
    asyncio.run(main(parser.parse_args().model))
