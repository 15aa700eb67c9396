"""Importing this module switches the hook on: ``import eroica.producers.hook.auto``."""

from eroica.producers.hook import activate

activate()
