"""Conversations with the real OpenAI SDK, by family. They run in .venv-openai, where it is:

python -m tests.clients.flows KEY main=URL ...
"""
