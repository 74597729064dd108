"""The kinds of members: the only package that accesses storage of the operating system."""
