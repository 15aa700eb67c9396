"""What a host function's name says about the step: the phase it opens, the kind of pause it is. A framework is a line here."""

from __future__ import annotations

import re
from functools import lru_cache

_PHASE_RULES: dict[str, tuple[str, ...]] = {
    "data": (
        r"^enumerate\(DataLoader\)",
        r"dataloader\.py\(\d+\): (?:__next__|_next_data)",
        r"^## (?:data_load|copy_batch\w*|next_batch\w*|get_batch\w*) ##",
        r"^(?:data_?load\w*|get_batch|next_batch|dataloader_next|batch-generator)$",
    ),
    "optimizer": (
        r"^Optimizer\.(?:step|zero_grad)#",
        r"^## (?:optimizer\w*|zero_grad) ##",
        r"^(?:optimizer(?:[_-]step)?|clip_grad\w*)$",
        r"torch/optim/\w+\.py\(\d+\): (?:step|zero_grad|wrapper)",
    ),
    "backward": (
        r"^autograd::engine::evaluate_function",
        r"^\w+Backward\d*$",
        r"^## backward ##",
        r"^(?:backward|loss\.backward|backward-compute)$",
        r"torch/_tensor\.py\(\d+\): backward",
        r"autograd/__init__\.py\(\d+\): (?:backward|grad)",
    ),
    "forward": (
        r"^(?:DistributedDataParallel|FullyShardedDataParallel)\.forward",
        r"^FSDP::\w*forward",
        r"^## (?:forward|loss) ##",
        r"^(?:forward|forward-compute)$",
        r"^nn\.Module: ",
        r"nn/modules/module\.py\(\d+\): _(?:wrapped_)?call_impl",
    ),
}
"""Phase → patterns. The order is the order of precedence: a loader inside a forward is data."""

_PAUSE_RULES: dict[str, tuple[str, ...]] = {
    "alloc": (
        r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|MallocHost|FreeHost|MallocManaged)(?!.*Async)",
        r"^cuMem(?:Alloc|Free)(?!Async)",
    ),
    "sync": (
        r"^(?:cuda|hip)(?:Device|Stream|Event)Synchronize",
        r"^cu(?:Ctx|Stream|Event)Synchronize",
        r"^cudaMemcpy$",
        r"^aten::_local_scalar_dense$",
    ),
    "compile": (
        r"torch/_dynamo/convert_frame\.py\(\d+\): _compile\b",
        r"torch/_inductor/\w+\.py\(\d+\): compile_fx",
        r"^_compile\.compile_inner|^TorchDynamo|^(?:Inductor|AOTAutograd) compil",
        r"triton/compiler/\w+\.py\(\d+\): compile",
    ),
    "checkpoint": (
        r"torch/serialization\.py\(\d+\): save$",
        r"distributed/checkpoint/\w+\.py\(\d+\): (?:save|async_save)$",
        r"^save_checkpoint$",
    ),
}
"""Kind of pause → patterns. ``cudaFree`` of a pool's block never reaches the runtime, so these are real calls."""

SOURCE_FILE = ".py("
"""In the name of every function of Python; a rule that does not begin with ``^`` is about such names."""


class _Rules:
    """Kinds and their patterns by precedence. Most names fit none, which is told by one or two cheap looks."""

    def __init__(self, table: dict[str, tuple[str, ...]]) -> None:
        rules = [rule for of_kind in table.values() for rule in of_kind]
        # match() begins at the start anyway, and without the mark for it the engine looks at the first letter before all else.
        self._start = re.compile("|".join(re.sub(r"(?<!\[)\^", "", r) for r in rules if r.startswith("^")), re.ASCII)
        self._inside = re.compile("|".join(r for r in rules if not r.startswith("^")), re.ASCII)
        self._kinds = {kind: re.compile("|".join(of_kind), re.ASCII) for kind, of_kind in table.items()}

    def kind_of(self, name: str) -> str:
        if self._start.match(name) is None and (SOURCE_FILE not in name or self._inside.search(name) is None):
            return ""
        return next((kind for kind, pattern in self._kinds.items() if pattern.search(name)), "")


_PHASE_OF, _PAUSE_OF = _Rules(_PHASE_RULES), _Rules(_PAUSE_RULES)
PHASES = tuple(_PHASE_RULES)
PAUSE_KINDS = tuple(_PAUSE_RULES)


@lru_cache(maxsize=65_536)
def phase_of(name: str) -> str:
    """Phase that a host function of this name opens; empty for none."""
    return _PHASE_OF.kind_of(name)


@lru_cache(maxsize=65_536)
def pause_of(name: str) -> str:
    """Kind of pause that a host function of this name is; empty for none."""
    return _PAUSE_OF.kind_of(name)
