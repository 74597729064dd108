"""What runs and waits in the event loop: background tasks, clients of a socket, busy polling."""
