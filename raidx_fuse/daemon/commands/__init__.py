"""The commands of a running mount, as the control socket brings them."""
