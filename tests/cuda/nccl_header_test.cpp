// SPDX-License-Identifier: Apache-2.0
// label: cuda
// What skein declares of NCCL and of CUDA's runtime against the headers of both. Compared when this is compiled.
#include <skein/torch/cuda.hpp>

#include <skein/dist/cuda_runtime.hpp>
#include <skein/dist/nccl.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstddef>
#include <functional>
#include <type_traits>

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <cuda_runtime.h>
#if !__has_include(<nv/target>)
// The types of 8 and 16 bits want it, from a wheel of 230 MB. nccl.h declares nothing with them: their
// headers are passed over.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#endif
#include <nccl.h>
#undef __noinline__ // of CUDA's headers; it hides an attribute of the same name

namespace nccl_header_test {

using namespace skein;
using namespace skein::dist;

/// Whether two types are passed to a C function in the same way.
template <class Ours, class Theirs>
constexpr bool passed_alike() {
    if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
        return std::is_void_v<Ours> && std::is_void_v<Theirs>;
    } else if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
        return std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
    } else {
        return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
               std::is_class_v<Ours> == std::is_class_v<Theirs> &&
               std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;
    }
}

template <class Entry, class Theirs>
struct same_shape : std::false_type {};
template <class R, class... A, class R2, class... A2>
    requires(sizeof...(A) == sizeof...(A2))
struct same_shape<std::function<R(A...)>, R2(A2...)>
    : std::bool_constant<passed_alike<R, R2>() && (passed_alike<A, A2>() && ...)> {};

template <class Entry, class Theirs>
constexpr bool alike = same_shape<Entry, Theirs>::value;

static_assert(alike<decltype(nccl_library::version), decltype(ncclGetVersion)>);
static_assert(alike<decltype(nccl_library::unique_id), decltype(ncclGetUniqueId)>);
static_assert(alike<decltype(nccl_library::init_rank), decltype(ncclCommInitRankConfig)>);
static_assert(alike<decltype(nccl_library::finalize), decltype(ncclCommFinalize)>);
static_assert(alike<decltype(nccl_library::destroy), decltype(ncclCommDestroy)>);
static_assert(alike<decltype(nccl_library::abort), decltype(ncclCommAbort)>);
static_assert(alike<decltype(nccl_library::async_error), decltype(ncclCommGetAsyncError)>);
static_assert(alike<decltype(nccl_library::count), decltype(ncclCommCount)>);
static_assert(alike<decltype(nccl_library::device), decltype(ncclCommCuDevice)>);
static_assert(alike<decltype(nccl_library::rank), decltype(ncclCommUserRank)>);
static_assert(alike<decltype(nccl_library::error_text), decltype(ncclGetErrorString)>);
static_assert(alike<decltype(nccl_library::last_error), decltype(ncclGetLastError)>);
static_assert(alike<decltype(nccl_library::group_start), decltype(ncclGroupStart)>);
static_assert(alike<decltype(nccl_library::group_end), decltype(ncclGroupEnd)>);
static_assert(alike<decltype(nccl_library::all_reduce), decltype(ncclAllReduce)>);
static_assert(alike<decltype(nccl_library::reduce_scatter), decltype(ncclReduceScatter)>);
static_assert(alike<decltype(nccl_library::reduce), decltype(ncclReduce)>);
static_assert(alike<decltype(nccl_library::broadcast), decltype(ncclBroadcast)>);
static_assert(alike<decltype(nccl_library::all_gather), decltype(ncclAllGather)>);
static_assert(alike<decltype(nccl_library::send), decltype(ncclSend)>);
static_assert(alike<decltype(nccl_library::recv), decltype(ncclRecv)>);

static_assert(sizeof(nccl_unique_id) == sizeof(ncclUniqueId));
static_assert(sizeof(nccl_config) <= sizeof(ncclConfig_t));
static_assert(offsetof(nccl_config, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(nccl_config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(nccl_config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(nccl_config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(nccl_config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(nccl_config, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(nccl_config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(nccl_config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(nccl_config, split_share) == offsetof(ncclConfig_t, splitShare));

static_assert(static_cast<int>(nccl_result::unhandled_cuda_error) == ncclUnhandledCudaError);
static_assert(static_cast<int>(nccl_result::system_error) == ncclSystemError);
static_assert(static_cast<int>(nccl_result::internal_error) == ncclInternalError);
static_assert(static_cast<int>(nccl_result::invalid_argument) == ncclInvalidArgument);
static_assert(static_cast<int>(nccl_result::invalid_usage) == ncclInvalidUsage);
static_assert(static_cast<int>(nccl_result::remote_error) == ncclRemoteError);
static_assert(static_cast<int>(nccl_result::in_progress) == ncclInProgress);
#if NCCL_VERSION_CODE >= 23000
static_assert(static_cast<int>(nccl_result::timeout) == ncclTimeout);
#endif
static_assert(static_cast<int>(nccl_type::u8) == ncclUint8);
static_assert(static_cast<int>(nccl_type::i64) == ncclInt64);
static_assert(static_cast<int>(nccl_type::f16) == ncclFloat16);
static_assert(static_cast<int>(nccl_type::f32) == ncclFloat32);
static_assert(static_cast<int>(nccl_type::f64) == ncclFloat64);
static_assert(static_cast<int>(nccl_type::bf16) == ncclBfloat16);
static_assert(static_cast<int>(nccl_op::sum) == ncclSum);
static_assert(static_cast<int>(nccl_op::max) == ncclMax);
static_assert(static_cast<int>(nccl_op::min) == ncclMin);

static_assert(alike<decltype(cuda_runtime::runtime_version), decltype(cudaRuntimeGetVersion)>);
static_assert(alike<decltype(cuda_runtime::driver_version), decltype(cudaDriverGetVersion)>);
static_assert(alike<decltype(cuda_runtime::device_count), decltype(cudaGetDeviceCount)>);
static_assert(alike<decltype(cuda_runtime::get_device), decltype(cudaGetDevice)>);
static_assert(alike<decltype(cuda_runtime::set_device), decltype(cudaSetDevice)>);
static_assert(alike<decltype(cuda_runtime::device_synchronize), decltype(cudaDeviceSynchronize)>);
static_assert(alike<decltype(cuda_runtime::error_text), decltype(cudaGetErrorString)>);
static_assert(alike<decltype(cuda_runtime::last_error), decltype(cudaGetLastError)>);
using raw_malloc = cudaError_t(void**, std::size_t); // the headers overload these with templates
using raw_host_alloc = cudaError_t(void**, std::size_t, unsigned);
static_assert(alike<decltype(cuda_runtime::allocate), raw_malloc>);
static_assert(requires { static_cast<raw_malloc*>(&cudaMalloc); });
static_assert(alike<decltype(cuda_runtime::allocate_host), raw_host_alloc>);
static_assert(requires { static_cast<raw_host_alloc*>(&cudaHostAlloc); });
static_assert(alike<decltype(cuda_runtime::release), decltype(cudaFree)>);
static_assert(alike<decltype(cuda_runtime::release_host), decltype(cudaFreeHost)>);
static_assert(alike<decltype(cuda_runtime::memory_info), decltype(cudaMemGetInfo)>);
using raw_copy_async = cudaError_t(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t);
static_assert(alike<decltype(cuda_runtime::copy_async), raw_copy_async>);
static_assert(requires { static_cast<raw_copy_async*>(&cudaMemcpyAsync); });
static_assert(alike<decltype(cuda_runtime::set_async), decltype(cudaMemsetAsync)>);
static_assert(alike<decltype(cuda_runtime::stream_create), decltype(cudaStreamCreateWithFlags)>);
static_assert(alike<decltype(cuda_runtime::stream_destroy), decltype(cudaStreamDestroy)>);
static_assert(alike<decltype(cuda_runtime::stream_query), decltype(cudaStreamQuery)>);
static_assert(alike<decltype(cuda_runtime::stream_synchronize), decltype(cudaStreamSynchronize)>);
static_assert(alike<decltype(cuda_runtime::stream_wait_event), decltype(cudaStreamWaitEvent)>);
using raw_event_create = cudaError_t(cudaEvent_t*, unsigned);
static_assert(alike<decltype(cuda_runtime::event_create), raw_event_create>);
static_assert(requires { static_cast<raw_event_create*>(&cudaEventCreateWithFlags); });
static_assert(alike<decltype(cuda_runtime::event_destroy), decltype(cudaEventDestroy)>);
static_assert(alike<decltype(cuda_runtime::event_query), decltype(cudaEventQuery)>);
static_assert(alike<decltype(cuda_runtime::event_synchronize), decltype(cudaEventSynchronize)>);
static_assert(alike<decltype(cuda_runtime::event_record), decltype(cudaEventRecord)>);

static_assert(static_cast<int>(cuda_result::invalid_value) == cudaErrorInvalidValue);
static_assert(static_cast<int>(cuda_result::out_of_memory) == cudaErrorMemoryAllocation);
static_assert(static_cast<int>(cuda_result::insufficient_driver) == cudaErrorInsufficientDriver);
static_assert(static_cast<int>(cuda_result::no_device) == cudaErrorNoDevice);
static_assert(static_cast<int>(cuda_result::invalid_device) == cudaErrorInvalidDevice);
static_assert(static_cast<int>(cuda_result::invalid_handle) == cudaErrorInvalidResourceHandle);
static_assert(static_cast<int>(cuda_result::not_ready) == cudaErrorNotReady);
static_assert(static_cast<int>(cuda_result::launch_failure) == cudaErrorLaunchFailure);
static_assert(static_cast<int>(cuda_copy::host_to_device) == cudaMemcpyHostToDevice);
static_assert(static_cast<int>(cuda_copy::device_to_host) == cudaMemcpyDeviceToHost);
static_assert(static_cast<int>(cuda_copy::device_to_device) == cudaMemcpyDeviceToDevice);
static_assert(static_cast<int>(cuda_copy::automatic) == cudaMemcpyDefault);
static_assert(cuda_stream_non_blocking == cudaStreamNonBlocking);
static_assert(cuda_event_disable_timing == cudaEventDisableTiming);
static_assert(cuda_host_alloc_portable == cudaHostAllocPortable);

} // namespace nccl_header_test

TEST_CASE("the declarations are those of the library's header") {
    SUCCEED("compared when this was compiled, with NCCL "
            << skein::dist::nccl_version_text(NCCL_VERSION_CODE));
}
#else
TEST_CASE("the declarations are those of the library's header") {
    SKIP("nccl.h and cuda_runtime.h were not there when this was compiled");
}
#endif
