"""One agent a host: gathers what the hooks report, profiles on request, and owns the host's Kafka client.

Pure parts (``hello``, ``hoststate``, ``announce``, ``requests``, ``profiles``) decide; ``agent`` is the shell around them.
"""
