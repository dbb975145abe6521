"""Tests of clients that are expected to fail on a real server, and why."""

EXPECTED: dict[str, dict[str, str]] = {
    "llama-server": {},
    "vllm": {},
}
"""Reason by test, for each kind of server."""
