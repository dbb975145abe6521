"""The session: its commands, its state table and its active responses."""
