"""Authentication: API keys, client secrets of browsers, and origins."""
