"""The members of an array as one set, and the tables that they hold beside the data."""
