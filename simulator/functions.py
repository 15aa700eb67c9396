"""What an operation of the step graph is made of: functions, each bound to one resource of its machine.

The mix is that of a dense transformer in bf16 on one device; a fault slows a resource, and so the functions bound to it, and so
the operations that they are part of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eroica.schemas.summaries import Category
from eroica.topology.step import LOADING

__all__ = ["FAMILIES", "Function", "Resource", "family_of", "functions_of", "kernel_name"]

Resource = Literal["sm", "hbm", "pcie", "cpu", "pin", "storage", "queue", "expert"]
"""What a function's time follows: SM clock, memory bandwidth, PCIe, host CPU, page locking, the data's store, the loader's
queue, the tokens that an expert gets."""

_TRAIN = "train.py:<module>;train.py:main;train.py:train_step"
_DATA = "torch/utils/data"
_LOAD = "train.py:<module>;train.py:main;torch/utils/data/dataloader.py:__next__"


@dataclass(frozen=True, slots=True)
class Function:
    """A part of a family of operations. Invariant: the shares of a family add up to one."""

    family: str
    name: str
    category: Category
    bound: Resource
    share: float
    call_us: float
    """Duration of one call, which gives their number."""
    stack: str = ""
    spread: float = 0.0
    """Relative deviation between the calls of one operation (different shapes under one name)."""


FUNCTIONS: tuple[Function, ...] = (
    Function("forward", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "compute", "sm", 0.62, 310, spread=0.25),
    Function("forward", "flash_fwd_kernel", "compute", "sm", 0.18, 540, spread=0.02),
    Function("forward", "vectorized_elementwise_kernel", "compute", "hbm", 0.11, 40, spread=0.2),
    Function("forward", "layer_norm_fwd_kernel", "compute", "hbm", 0.07, 95, spread=0.03),
    Function("forward", "Memcpy DtoD (Device -> Device)", "memory", "hbm", 0.01, 12, spread=0.1),
    Function("forward", "forward", "python", "cpu", 0.01, 30, f"{_TRAIN};model.py:forward", 0.3),
    Function("backward", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nt_n", "compute", "sm", 0.63, 320, spread=0.25),
    Function("backward", "flash_bwd_dq_dk_dv_kernel", "compute", "sm", 0.20, 1200, spread=0.02),
    Function("backward", "elementwise_backward_kernel", "compute", "hbm", 0.09, 45, spread=0.2),
    Function("backward", "layer_norm_bwd_kernel", "compute", "hbm", 0.07, 190, spread=0.03),
    Function("backward", "backward", "python", "cpu", 0.01, 60, f"{_TRAIN};torch/autograd/__init__.py:backward", 0.3),
    Function("optimizer", "multi_tensor_apply_kernel", "compute", "hbm", 0.93, 250, spread=0.1),
    Function("optimizer", "step", "python", "cpu", 0.07, 420, f"{_TRAIN};torch/optim/adamw.py:step", 0.1),
    Function("loading", "recv_into", "python", "storage", 0.30, 150, f"{_LOAD};dataset.py:__getitem__;socket.py:recv_into", 0.5),
    Function("loading", "get", "python", "queue", 0.15, 300, f"{_LOAD};{_DATA}/dataloader.py:_get_data;queue.py:get", 0.5),
    Function("loading", "collate", "python", "cpu", 0.20, 200, f"{_LOAD};{_DATA}/_utils/collate.py:collate", 0.3),
    Function("loading", "pin_memory", "python", "pin", 0.10, 200, f"{_LOAD};{_DATA}/_utils/pin_memory.py:pin_memory", 0.3),
    Function("loading", "Memcpy HtoD (Pinned -> Device)", "memory", "pcie", 0.25, 250, spread=0.1),
)  # fmt: skip
"""In the order in which they appear. The names are those that profilers show for such work."""

EXPERT_FUNCTIONS: tuple[Function, ...] = (
    Function("forward", "grouped_gemm_fwd_kernel", "compute", "expert", 0.35, 600, spread=0.1),
    Function("backward", "grouped_gemm_bwd_kernel", "compute", "expert", 0.35, 1100, spread=0.1),
)
"""With experts these take their share from the dense matrix multiplications."""

FAMILIES: tuple[str, ...] = ("loading", "forward", "backward", "optimizer")


def family_of(kind: str) -> str:
    """The family of an operation of *kind*; empty for traffic."""
    if kind == LOADING:
        return "loading"
    if kind == "optimizer":
        return "optimizer"
    if kind == "forward-compute":
        return "forward"
    return "backward" if kind.endswith("-compute") else ""


def functions_of(experts: bool) -> tuple[Function, ...]:
    """The mix of a model."""
    if not experts:
        return FUNCTIONS
    taken = {f.family: f.share for f in EXPERT_FUNCTIONS}
    dense = []
    for f in FUNCTIONS:
        if "gemm" in f.name:
            f = Function(f.family, f.name, f.category, f.bound, f.share - taken[f.family], f.call_us, f.stack, f.spread)
        dense.append(f)
    return (*dense, *EXPERT_FUNCTIONS)


def kernel_name(op: str, crossing: bool) -> str:
    """The kernel that NCCL runs for *op*; the protocol differs inside and across hosts."""
    words = "".join(part.capitalize() for part in op.split("_"))
    if op in ("send", "recv"):
        return "ncclDevKernel_SendRecv"
    reduces = "_Sum_bf16" if "reduce" in op else ""
    return f"ncclDevKernel_{words}{reduces}_RING_{'LL128' if crossing else 'SIMPLE'}"
