"""What must not change while the code is renamed and moved, as files that tests compare with.

    link      the bytes of every message between gateway and engine, and of the greeting
    names     options, codes, fields of events and of stored values, keys of stores and page
    goldens   the transcripts of the OpenAI SDKs (tests/clients/golden)
    store     a SQLite file and a dump of Redis after a whole scenario, and the events that are
              sent again to clients that resume from them
    lives     10,000 simulated lives (tests/simulation): all that clients sent and received

Each is a module here and a file in data/, which was written by code that is known to be good. The
sentences of error messages are masked everywhere: they may be improved. A test that fails says that
a client, a store or a peer of an older version would notice a change. Where that is meant,

    python -m tests.frozen --write NAME

writes the file anew (of lives, delete it first), and the commit says how older ones get along with
it. The tests look at the product from outside, over its protocols and its stores, and import little
of it, so that they need not change with it.
"""
