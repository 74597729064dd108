"""Commands about the work that an array does in the background."""
