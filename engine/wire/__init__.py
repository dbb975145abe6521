"""Code that runs at both ends of the link: messages, frames, handshake, token log."""
