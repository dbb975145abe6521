"""Code that both ends of the link between gateway and engine process run: messages, frames,
handshake."""
