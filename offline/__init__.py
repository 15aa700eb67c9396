"""The same cores without a broker: recordings and their replay, the demo, and what looks at a whole installation.

The only room that may use all others beside the command line.
"""
