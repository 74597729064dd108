"""Plans of requests, of bundles and of moves: pure functions of a layout."""
