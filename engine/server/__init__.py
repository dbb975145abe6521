"""Engine process around the loop: startup, clients, and the attachment of sessions to clients."""
