"""Fork a conversation, and compare two replies to the same question.

Both replies are generated at the same time. Neither computes the conversation again: a fork shares
its KV.
"""

import argparse
import asyncio

from continuo.client import RealtimeClient, ResponseStream, connect


async def reply(client: RealtimeClient, question: str, temperature: float) -> ResponseStream:
    async with client.fork(temperature=temperature, seed=7) as branch:
        response = branch.ask(question)
        await response
        await branch.delete_session()
        return response


async def main(url: str, question: str) -> None:
    async with connect(url) as client:
        await client.ask("My name is Ada, and I like owls.")
        temperatures = (0.0, 1.0)
        replies = await asyncio.gather(*(reply(client, question, t) for t in temperatures))
        for temperature, response in zip(temperatures, replies, strict=True):
            print(f"temperature {temperature}: {response.text}")
            if usage := response.usage:
                print(f"  ({usage.cached_tokens} of {usage.input_tokens} tokens were shared)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument("question", nargs="?", default="Tell me a story.")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.question))
