"""Gateway side of the engine: the async client, and the routing of commands to engine processes."""
