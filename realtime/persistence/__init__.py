"""The stored copy of a session: its lease, its writer, its token journal, and its encodings."""
