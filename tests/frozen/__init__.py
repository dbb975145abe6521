"""Recorded wire formats, names and stored data, which no renaming or move of code may change.

    link      bytes of every message between gateway and engine, and of the handshake
    names     options, codes, fields of events and of stored values, keys of stores and page
    goldens   transcripts of the OpenAI SDKs (tests/clients/golden)
    store     a SQLite file and a dump of Redis after a scenario, and the events that clients
              receive when they resume from them

Each is a module here and a file in data/, which was written by code that is known to be good. The
sentences of error messages are masked everywhere: they may be improved. A failing test shows a
change that clients, stores or peers of an older version would notice. If the change is intended,

    python -m tests.frozen --write NAME

writes the file again, and the commit explains how older versions are
served. The tests observe the product from outside, over its protocols and its stores, and import
little of it, so that they need not change with it.
"""
