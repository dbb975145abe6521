"""Chat templates: rendered in a sandbox, and tokenized message by message."""
