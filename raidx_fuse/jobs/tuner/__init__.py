"""The tuner: hot chunks move to where they are served sooner."""
