"""Another server as the engine: token ids in, token ids out, over HTTP."""
