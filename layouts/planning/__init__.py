"""Plans of requests, bundles and moves: pure functions of a layout, computed before any I/O."""
