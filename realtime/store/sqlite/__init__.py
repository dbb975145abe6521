"""The embedded store: one SQLite file for one gateway."""
