"""The items of a conversation and their token ids. Pure: no I/O."""
