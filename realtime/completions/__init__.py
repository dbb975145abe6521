"""Turns on token ids without a conversation: completions of raw text, and token sessions."""
