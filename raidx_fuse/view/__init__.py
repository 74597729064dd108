"""The web page of an array (`raidx view`): pictures, what passes, and breaking it for a class."""
