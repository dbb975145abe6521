"""The web application: its routes, request bodies and server-sent events."""
