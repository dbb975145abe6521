"""Load a server with conversations, and print how fast it answers."""

import argparse
import asyncio
import statistics
import time

from continuo.client import connect


async def converse(url: str, turns: int, first_text_s: list[float]) -> int:
    """Hold one conversation. Returns the number of tokens generated."""
    tokens = 0
    async with connect(url, max_output_tokens=40, ignore_eos=True) as client:
        for turn in range(turns):
            began_s = time.perf_counter()
            response = client.ask(f"Tell me story number {turn + 1}.")
            async for _ in response:
                first_text_s.append(time.perf_counter() - began_s)
                break
            await response
            tokens += response.usage.output_tokens if response.usage else 0
        await client.delete_session()
    return tokens


async def main(url: str, conversations: int, turns: int) -> None:
    first_text_s: list[float] = []
    began_s = time.perf_counter()
    tokens = await asyncio.gather(
        *(converse(url, turns, first_text_s) for _ in range(conversations))
    )
    elapsed_s = time.perf_counter() - began_s
    p50_s, p95_s = (statistics.quantiles(first_text_s, n=20)[rank] for rank in (9, 18))
    print(f"{conversations} conversations of {turns} turns in {elapsed_s:.1f} s")
    print(f"{sum(tokens) / elapsed_s:,.0f} tokens a second")
    print(
        f"first text after {p50_s * 1000:.0f} ms (median), {p95_s * 1000:.0f} ms (95th percentile)"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument("--conversations", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--turns", type=int, default=4, help="default: %(default)s")
    options = parser.parse_args()
    asyncio.run(main(options.url, options.conversations, options.turns))
