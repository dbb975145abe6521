"""Tokenizer and detokenizer: text to token ids and back."""
