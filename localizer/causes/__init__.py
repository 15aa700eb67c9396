"""Causes, one module a kind: each looks at a frame's measures and returns findings with what mending them would give back."""
