"""Member kinds: the only code that touches the operating system's storage."""
