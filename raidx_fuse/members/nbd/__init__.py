"""Members that are exports of NBD servers."""
