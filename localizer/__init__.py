"""Compares peers, separates culprits from waiters, publishes one verdict per profile request.

``core`` is the pure state machine, ``service`` its transactional shell; rule sets live in ``rules``.
"""
