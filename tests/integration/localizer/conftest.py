from __future__ import annotations

import sys
from pathlib import Path

# The scenes of the unit tests are the input here too.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "unit" / "localizer"))
