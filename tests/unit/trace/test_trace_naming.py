from __future__ import annotations

from pathlib import PurePath

import pytest

from eroica.producers.trace.comm_kernels import kernel_collective
from eroica.producers.trace.filenames import rank_of_file, rank_of_place
from eroica.producers.trace.host_names import pause_of, phase_of
from eroica.producers.trace.naming import MAX_NAME, host_collective, is_enqueue, stable_name, step_number

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
    ("name", "op", "backend"),
    [
        # NCCL before 2.8, after 2.26, RCCL's, and Meta's
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce", "nccl"),
        ("ncclReduceScatterTreeLL128Kernel_sum_f16(ncclColl)", "reduce_scatter", "nccl"),
        ("ncclSendRecvKernel_copy_i8(ncclColl)", "", "nccl"),
        ("ncclSymkDevKernel_ReduceScatter_LDMC_sum_bf16(ncclSymkDevWorkArgs4K)", "reduce_scatter", "nccl"),
        ("ncclDevKernel_AllGatherV_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather", "nccl"),
        ("ncclKernel_Main(ncclDevComm*, unsigned long, ncclWork*)", "", "nccl"),
        ("ncclDevKernelDebug_Generic(ncclDevKernelArgsStorage<4096ul>)", "", "nccl"),
        ("ncclDevKernel_AllToAllPivot(ncclDevKernelArgsStorage<4096ul>)", "all_to_all", "nccl"),
        ("mscclKernel_Sum_half_Simple_false(ncclDevComm*)", "", "nccl"),
        ("void ncclKernelAllReduceCtranDirect<float, (commRedOp_t)0>(int*)", "all_reduce", "nccl"),
        # not demangled
        ("_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE", "all_reduce", "nccl"),
        ("_Z22ncclDevKernel_SendRecv24ncclDevKernelArgsStorageILm4096EE", "", "nccl"),
        ("_ZN7deep_ep9intranode8dispatchILi8ELi768EEEvPv", "all_to_all", "deep_ep"),
        ("_ZN12_GLOBAL__N_126multimem_all_gather_kernelILi16EEEvPc", "all_gather", "symmetric_memory"),
        # symmetric memory of torch
        ("void c10d::intra_node_comm::hybridCubeMeshAllReduceKernel<true>(at::BFloat16*)", "all_reduce", "symmetric_memory"),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>(int)", "all_reduce", "custom"),
        ("void (anonymous namespace)::multimem_one_shot_reduce_kernel<float, 16>(float*)", "reduce", "symmetric_memory"),
        ("c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int)", "barrier", "symmetric_memory"),
        ("c10d::symmetric_memory::wait_signal_kernel(unsigned int**, int)", "recv", "symmetric_memory"),
        ("c10d::symmetric_memory::put_signal_kernel(unsigned int**, int)", "send", "symmetric_memory"),
        ("c10d::nvshmem_extension::allToAllV(void*, long*)", "all_to_all", "nvshmem"),
        ("c10d::nvshmem_extension::exchangeSplitAndOffset(long*)", "", "nvshmem"),
        # engines
        ("void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*)", "reduce_scatter", "custom"),
        ("void aiter::allgather_lastdim<__hip_bfloat16, 8>(aiter::RankData*)", "all_gather", "custom"),
        ("void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot>(int)", "all_reduce", "custom"),
        ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>(AllReduceParams)", "all_reduce", "custom"),
        ("void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8>(int)", "all_reduce", "custom"),
        ("void tensorrt_llm::kernels::moe_comm::moeA2ACombineKernel<8>(int)", "all_to_all", "custom"),
        ("kuserbuffers_pushrecv(int, int)", "recv", "userbuffers"),
        ("void userbuffers_fp16_sum_inplace_gpu_rw_ag<2>(int)", "all_gather", "userbuffers"),
        ("void userbuffers_fp16_sum_inplace_gpu_mc_rs_oop<2>(int)", "reduce_scatter", "userbuffers"),
        ("void userbuffers_fp16_sum_inplace_gpu_mc<8>(int)", "all_reduce", "userbuffers"),
        ("void mscclpp::collective::allreducePacket<float>(float*)", "all_reduce", "mscclpp"),
        # experts
        ("void deep_ep::internode::notify_dispatch<false, 8>(int)", "barrier", "deep_ep"),
        ("void deep_ep::intranode::barrier<8>(int**, int)", "barrier", "deep_ep"),
        ("void hybrid_ep::combine_kernel<true>(int)", "all_to_all", "deep_ep"),
        ("void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(int)", "all_to_all", "custom"),
        ("EpCombineIntraNodeKernel_bf16_nop2p", "all_to_all", "custom"),
        # one-sided
        ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)", "barrier", "nvshmem"),
        ("void fcollect_on_stream_kernel<unsigned char>(int)", "all_gather", "nvshmem"),
        ("void rdxn_on_stream_kernel<float, (rdxn_ops)3>(int)", "all_reduce", "nvshmem"),
        ("nvshmemi_signal_wait_until_on_stream_kernel(unsigned long*)", "recv", "nvshmem"),
        # Ascend
        ("hcom_receive__12_0_1", "recv", "hccl"),
        ("hcom_batchSendRecv__128_4_1", "", "hccl"),
        ("hcom_reduceScatterv__1_0_1", "reduce_scatter", "hccl"),
        ("MoeDistributeDispatch", "all_to_all", "hccl"),
    ],
)
def test_communication_kernels_of_many_libraries(name: str, op: str, backend: str) -> None:
    assert kernel_collective(name) == (op, backend)


@pytest.mark.parametrize(
    "name",
    [
        "volta_sgemm_128x64_tn",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(at::native::ReduceOp)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<float>",
        "Memcpy DtoD (Device -> Device)",
        "triton_poi_fused_all_gather_into_tensor_wait_tensor_3",
        "triton_red_fused_all_reduce_0",
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
        "deep_ep::internode::get_dispatch_layout<256, 1>(long)",
        "void tensorrt_llm::kernels::moe_comm::moeA2APrepareDispatch(int)",
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64>>(int)",
        "void moe_dispatch_permute_kernel(int)",
        "void softmax::warpAllReduceKernel<float>(float*)",
        "void cub::DeviceReduceKernel<cub::DeviceReducePolicy<float>>(float*)",
        "void cutlass::Kernel2<cutlass_80_tensorop>(cutlass::AllReduceEpilogue)",
        "gloo:all_reduce",
        "_ZN2at6native13reduce_kernelILi512ELi1EEEvT_",
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
        ("nccl:all_reduce_barrier", ("barrier", "nccl")),
        ("nccl:gather_single", ("gather", "nccl")),
        ("gloo:sparse_all_reduce", ("all_reduce", "gloo")),
        ("xccl:all_gather_into_tensor_coalesced", ("all_gather", "xccl")),
        ("cncl:all_reduce", ("all_reduce", "cncl")),
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
        ("dp0_pp0_tp3_rank3_1228_2026_ascend_pt/OUTPUT/trace.json", 3),
        ("rank_4/plugins/profile/host_41.17.pt.trace.json", 4),
        ("rank_4/iteration_2/rank_5.json", 5),
        ("local_rank_1/x/trace.json", -1),
        ("a/b/trace.json", -1),
    ],
)
def test_rank_by_the_nearest_folder_that_names_one(path: str, rank: int) -> None:
    assert rank_of_place(PurePath(path)) == rank


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
