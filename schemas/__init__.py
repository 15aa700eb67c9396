"""The contract: messages, topics, codec, errors, settings.

Everything here is pure. Rooms meet on topics only, and what stands on a topic is defined here and nowhere else.
"""
