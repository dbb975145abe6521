"""Conversations with the real OpenAI SDK, by family. They run in .venv-openai, where it is:

python -m tests.clients.flows KEY main=URL ...
"""

OTHER_KEY = "sk-other-1234"
"""Another tenant's."""
