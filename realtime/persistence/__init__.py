"""A session in the store: who may write it, what is written, and in which encoding."""
