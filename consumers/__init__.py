"""What reads from the bus for people and programs: verdicts, their rendering, and requests made by hand.

Consumers of the public interface only: nothing here takes part in finding a culprit.
"""
