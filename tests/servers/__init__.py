"""Real and scripted servers for the tests, on free loopback ports."""
