"""Generation of one response: prompt, engine session, turn, and the output items it becomes."""
