"""Type ahead: the server reads a message while you type it.

Each key is sent as it is typed, and the model computes the words before Enter is pressed. The line
after each answer says how much of the prompt was ready by then.
"""

import argparse
import asyncio
import os
import sys
import termios
import tty

from continuo.client import RealtimeClient, connect

BACKSPACE, END_OF_INPUT = ("\x7f", "\x08"), ("\x03", "\x04", "")


async def answer(client: RealtimeClient) -> None:
    await client.draft.commit()
    response = client.respond()
    async for delta in response:
        print(delta, end="", flush=True)
    if usage := response.usage:
        ready = usage.input_tokens - usage.prefilled_after_commit
        print(f"\n({ready} of {usage.input_tokens} tokens were ready)")


async def main(url: str) -> None:
    async with connect(url) as client:
        print("Type a message, then Enter. Ctrl-D quits.\n> ", end="", flush=True)
        while (key := await asyncio.to_thread(os.read, 0, 64)) and (text := key.decode()):
            for letter in text:
                if letter in END_OF_INPUT:
                    return
                if letter in "\r\n":
                    print()
                    if client.draft.text.strip():
                        await answer(client)
                    print("> ", end="", flush=True)
                elif letter in BACKSPACE:
                    client.draft.set(client.draft.text[:-1])
                    print("\b \b", end="", flush=True)
                else:
                    client.draft.append(letter)
                    print(letter, end="", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    options = parser.parse_args()
    if not sys.stdin.isatty():
        parser.error("this program reads keys: start it in a terminal")
    before = termios.tcgetattr(0)
    tty.setcbreak(0)
    try:
        asyncio.run(main(options.url))
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
