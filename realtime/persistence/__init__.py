"""A session in the store: the right to write it, its writer, and its encodings."""
