from __future__ import annotations

import pytest

from eroica.producers.trace.host_names import pause_of, phase_of
from eroica.producers.trace.identity import rank_of_file
from eroica.producers.trace.naming import MAX_NAME, host_collective, is_enqueue, kernel_collective, stable_name, step_number

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "op", "backend"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce", "nccl"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce", "nccl"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather", "nccl"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter", "nccl"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast", "nccl"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce", "nccl"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "", "nccl"),
        ("ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)", "", "nccl"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "", "nccl"),
        ("void ncclDevKernel_Generic(ncclDevComm*)", "", "nccl"),
        ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_Sum_bf16", "all_reduce", "nccl"),
        ("void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*)", "all_to_all", "deep_ep"),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*)", "all_to_all", "deep_ep"),
        ("void deep_ep::intranode::cached_notify_combine<8>(void**)", "barrier", "deep_ep"),
        ("nvshmemi_barrier_on_stream_kernel(int)", "barrier", "nvshmem"),
        ("void nvshmemi_alltoall_kernel(int)", "all_to_all", "nvshmem"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)", "all_reduce", "custom"),
    ],
)
def test_communication_kernels(name: str, op: str, backend: str) -> None:
    found = kernel_collective(name)
    assert found is not None
    assert found == (op, backend)


@pytest.mark.parametrize(
    "name",
    [
        "volta_sgemm_128x64_tn",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(at::native::ReduceOp)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<float>",
        "Memcpy DtoD (Device -> Device)",
        "",
    ],
)
def test_other_kernels(name: str) -> None:
    assert kernel_collective(name) is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("gloo:all_reduce", ("all_reduce", "gloo")),
        ("nccl:_all_gather_base", ("all_gather", "nccl")),
        ("nccl:all_to_all", ("all_to_all", "nccl")),
        ("nccl:_reduce_scatter_base", ("reduce_scatter", "nccl")),
        ("nccl:coalesced", ("coalesced", "nccl")),
        ("nccl:send 0->1", ("send", "nccl")),
        ("aten::mm", None),
    ],
)
def test_host_collectives(name: str, found: tuple[str, str] | None) -> None:
    assert host_collective(name) == found


def test_enqueues_are_no_compute() -> None:
    assert [is_enqueue(n) for n in ("c10d::allreduce_", "record_param_comms", "aten::mm", "_c10d_functional::wait_tensor")] == [
        True, True, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "stable"),
    [
        ("ProfilerStep#12", "ProfilerStep"),
        ("ProfilerStep*", "ProfilerStep*"),
        ("<built-in method sort of numpy.ndarray object at 0x7f39c1fa63f0>", "<built-in method sort of numpy.ndarray>"),
        ("<function f at 0x7f00>", "<function f>"),
        ("nn.Module: Linear_17", "nn.Module: Linear"),
        ("train.py(12): step;x", "train.py(12): step,x"),
    ],
)
def test_names_without_what_differs_between_ranks(name: str, stable: str) -> None:
    assert stable_name(name) == stable


def test_long_names_stay_distinct_and_bounded() -> None:
    a, b = stable_name("k" * 500 + "a"), stable_name("k" * 500 + "b")
    assert a != b
    assert len(a) == len(b) == MAX_NAME


@pytest.mark.parametrize(
    ("name", "number"), [("ProfilerStep#7", 7), ("ProfilerStep#x", -1), ("Step#7", -1), ("ProfilerStep#" + "9" * 30, -1)]
)
def test_step_numbers(name: str, number: int) -> None:
    assert step_number(name) == number


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data"),
        ("torch/utils/data/dataloader.py(720): __next__", "data"),
        ("DistributedDataParallel.forward", "forward"),
        ("nn.Module: GPT_0", "forward"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "backward"),
        ("torch/_tensor.py(566): backward", "backward"),
        ("Optimizer.step#Adam.step", "optimizer"),
        ("Optimizer.zero_grad#Adam.zero_grad", "optimizer"),
        ("aten::mm", ""),
    ],
)
def test_phases(name: str, phase: str) -> None:
    assert phase_of(name) == phase


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaMalloc", "alloc"),
        ("hipFree", "alloc"),
        ("cudaMallocAsync", ""),
        ("cudaFreeAsync", ""),
        ("cudaDeviceSynchronize", "sync"),
        ("cudaMemcpyAsync", ""),
        ("torch/serialization.py(944): save", "checkpoint"),
        ("torch/_dynamo/convert_frame.py(715): _compile", "compile"),
    ],
)
def test_pauses(name: str, kind: str) -> None:
    assert pause_of(name) == kind


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("rank0.json", 0),
        ("sampled_rank-17.json.gz", 17),
        ("rank_3/trace.json", 3),
        ("dp0_pp1_tp2_rank5.1699.pt.trace.json.gz", 5),
        ("worker12_step_12.1694128201545.pt.trace.json.gz", 12),
        ("7.json.gz", 7),
        ("host0_4100.1698954910154219890.pt.trace.json", -1),
        ("trace.json", -1),
        ("frank2.json", -1),
        ("rank99999999.json", -1),
    ],
)
def test_rank_by_file_name(path: str, rank: int) -> None:
    assert rank_of_file(path) == rank
