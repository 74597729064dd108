"""The commands of a running mount, received on the control socket."""
