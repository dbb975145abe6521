"""Flows of the real OpenAI SDK for Python, by subject.

They run in .venv-openai, where the SDK is installed:

python -m tests.clients.flows KEY main=URL ...
"""

OTHER_KEY = "sk-other-1234"
"""The API key of another tenant."""
