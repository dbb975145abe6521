"""Interrupt a story, leave, come back, and go on from what was read.

The story is cut where the reader stopped: the model continues from there, not from what it had
generated ahead of the reader. Between the two parts the connection is closed and another one
resumes the session, as after a restart of the program.
"""

import argparse
import asyncio

from continuo.client import connect


async def main(url: str, chars: int) -> None:
    async with connect(url) as client:
        story, read = client.ask("Tell me a story."), ""
        async for delta in story:
            read += delta
            if len(read) >= chars:
                break
        print(await story.interrupt(keep=chars), "… [interrupted]")
        point = client.resume_point  # store it as you would store a key

    async with connect(url, resume=point) as client:
        print(f"[resumed: {len(client.conversation.items)} items are still there]")
        async for delta in client.ask("Please go on."):
            print(delta, end="", flush=True)
        print()
        await client.delete_session()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument("--chars", type=int, default=80, help="what is read; default: %(default)s")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.chars))
