"""The processes of `continuo serve`, `gateway` and `engine`, from start to shutdown."""
