"""The wire protocols, and the types they share. Pure: no I/O, no engine.

Sessions take the commands of `commands` and emit the events of `events`, whatever the wire. The
package of each wire protocol (`realtime_api`, `responses_api`, `chat_api`) parses and decodes its
requests to these commands, and encodes these events.
"""
