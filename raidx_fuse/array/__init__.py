"""The running array: building it from its members, changing it, reporting on it, closing it."""
