"""The tuner moves hot chunks to the members that serve them sooner."""
