"""The wire protocols, and the types they share. Pure: no I/O, no engine.

Sessions take the commands of `commands` and emit the events of `events`, with all wire protocols.
The package of each wire protocol (`realtime_api`, `responses_api`, `chat_api`) decodes its requests
to these commands, and encodes these events.
"""
