"""The events a session has emitted, and the resume cursors into them. Pure: no I/O."""
