"""Parts of the engine process around the engine core: startup, listener, clients, and the
attachment of sessions to clients."""
