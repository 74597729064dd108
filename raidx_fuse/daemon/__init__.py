"""The process that serves a mount: its life, its files, its control socket."""
