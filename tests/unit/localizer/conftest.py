from __future__ import annotations

import sys
from pathlib import Path

# The scenes are a module of this folder; importlib mode puts no test folder on the path by itself.
sys.path.insert(0, str(Path(__file__).parent))
