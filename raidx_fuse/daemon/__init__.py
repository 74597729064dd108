"""The process that serves a mount: its lifecycle, files, control socket and commands."""
