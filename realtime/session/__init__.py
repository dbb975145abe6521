"""One conversation: its commands, the state table, and the responses being generated."""
