"""The command line, on the public API. Needs the extra `cli`."""
