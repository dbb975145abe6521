"""One response: the prompt, the engine session, the turn, and the output items it becomes."""
