"""API keys, client secrets of browsers, and the check of both."""
