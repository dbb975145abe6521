"""Client of a Continuo server: `from continuo.client import connect`.

async with connect() as client:
    print(await client.ask("hello"))
"""

from continuo.realtime.client import *  # noqa: F403 - the names of its __all__
