"""Stream processing: iterations become profile requests (detect), summaries become groups (group).

The cores are pure state machines (``shard``, ``job``, ``collect``, ``opener``); ``detect_app`` and ``group_app`` are the
Faust shells around them, ``service`` runs a shell as a process.
"""
