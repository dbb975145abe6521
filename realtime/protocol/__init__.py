"""What clients may say and what we answer. `core` is what the session hears and says whatever the
wire; each wire vocabulary beside it parses, translates and encodes. Pure: no I/O, no engine."""
