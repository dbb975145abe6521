"""The wire protocols, and the types they share. Pure: no I/O, no engine.

Sessions accept the commands in `commands` and emit the events in `events`, whatever the wire
protocol. The package of each wire protocol (`realtime_api`, `responses_api`, `chat_api`) decodes
its requests to these commands, and encodes these events.
"""
