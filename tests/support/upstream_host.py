"""python -m tests.support.upstream_host KIND PORT FOLDER STEP_S: a fake of vLLM or llama-server in
a process of its own, with the tokenizer of a model folder. Each id takes STEP_S seconds."""

import asyncio
import sys

from continuo.engine.text import ModelText
from tests.support.upstream_engines import FAKES
from tests.support.upstream_servers import serve_fake

CONTEXT_TOKENS = 4000


async def serve(kind: str, port: int, folder: str, step_s: float) -> None:
    fake = FAKES[kind](CONTEXT_TOKENS)
    fake.make_ids, fake.step_s = ModelText(folder).encode_untrusted, step_s
    async with serve_fake(fake, port) as url:
        print(f"Serving {url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    _, kind, port, folder, step_s = sys.argv
    asyncio.run(serve(kind, int(port), folder, float(step_s)))
