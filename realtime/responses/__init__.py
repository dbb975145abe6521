"""The Responses API without a session: responses that continue one another."""
