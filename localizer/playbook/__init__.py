"""Fault leaves and actions as data: signatures over the evidence of a cause, and what to do about it.

``model`` is the schema of the YAML files, ``loader`` reads them, ``facts`` measures, ``conditions`` decides. Nothing here accuses
anybody: a rule set has found the cause already, and a signature only gives it a name.
"""

from eroica.localizer.playbook.book import Leaf, Playbook
from eroica.localizer.playbook.loader import load_playbook

__all__ = ["Leaf", "Playbook", "load_playbook"]
