"""The demo: a real training job on this machine, slowed down for real, and the whole pipeline around it."""
