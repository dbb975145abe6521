"""The web application: routes, request bodies and server-sent events."""
