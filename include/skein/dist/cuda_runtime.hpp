// SPDX-License-Identifier: Apache-2.0
#pragma once
// CUDA's runtime as a table of functions: memory, streams and events of devices.
//
// The declarations are skein's own, of the C interface that CUDA 12 and 13 share, so that nothing
// of CUDA is needed to build. The table is filled by dlopen, or by a model of a device (sim), which
// no program can choose. docs/design/0050-cuda-and-nccl.md says what has run where.
//
//     const cuda_runtime cuda = load_cuda_runtime().value();
//     require_device(cuda, 0);                          // or says what is missing
//     cuda_stream stream = nullptr;
//     cuda_check(cuda, cuda.stream_create(&stream, cuda_stream_non_blocking), "a stream");

#include <skein/core/error.hpp>
#include <skein/core/result.hpp>
#include <skein/dist/library.hpp>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::dist {

/// What CUDA's functions return; those that skein decides on. Others are passed on as numbers.
enum class cuda_result : int {
    success = 0,
    invalid_value = 1,
    out_of_memory = 2,
    insufficient_driver = 35,
    no_device = 100,
    invalid_device = 101,
    invalid_handle = 400,
    not_ready = 600,
    launch_failure = 719,
};

struct cuda_stream_object;
struct cuda_event_object;
using cuda_stream = cuda_stream_object*; ///< null: the device's legacy default stream
using cuda_event = cuda_event_object*;

/// Of a copy: automatic looks at the two addresses.
enum class cuda_copy : int {
    host_to_host,
    host_to_device,
    device_to_host,
    device_to_device,
    automatic
};

inline constexpr unsigned cuda_stream_non_blocking = 1; ///< no order with the default stream
inline constexpr unsigned cuda_event_disable_timing = 2;
inline constexpr unsigned cuda_host_alloc_portable = 1; ///< pinned for all devices

/// The functions of CUDA's runtime that skein calls. The current device is each thread's own.
struct cuda_runtime {
    template <class F>
    using entry = std::function<F>;

    entry<cuda_result(int*)> runtime_version, driver_version; ///< 13020: 13.2
    entry<cuda_result(int*)> device_count;
    entry<cuda_result(int*)> get_device;
    entry<cuda_result(int)> set_device;
    entry<cuda_result()> device_synchronize;
    entry<const char*(cuda_result)> error_text;
    entry<cuda_result()> last_error; ///< and forgets it
    entry<cuda_result(void**, std::size_t)> allocate;
    entry<cuda_result(void*)> release;
    entry<cuda_result(void**, std::size_t, unsigned)> allocate_host; ///< pinned
    entry<cuda_result(void*)> release_host;
    entry<cuda_result(std::size_t*, std::size_t*)> memory_info; ///< free, total
    entry<cuda_result(void*, const void*, std::size_t, cuda_copy, cuda_stream)> copy_async;
    entry<cuda_result(void*, int, std::size_t, cuda_stream)> set_async;
    entry<cuda_result(cuda_stream*, unsigned)> stream_create;
    entry<cuda_result(cuda_stream)> stream_destroy, stream_query, stream_synchronize;
    entry<cuda_result(cuda_stream, cuda_event, unsigned)> stream_wait_event;
    entry<cuda_result(cuda_event*, unsigned)> event_create;
    entry<cuda_result(cuda_event)> event_destroy, event_query, event_synchronize;
    entry<cuda_result(cuda_event, cuda_stream)> event_record;

    /// Where the functions came from: a file, or "a model".
    std::string source;

    /// visitor(name in the library, entry), for each.
    template <class Table, class Visitor>
    static void each(Table& t, Visitor visit) {
        visit("cudaRuntimeGetVersion", t.runtime_version);
        visit("cudaDriverGetVersion", t.driver_version);
        visit("cudaGetDeviceCount", t.device_count);
        visit("cudaGetDevice", t.get_device);
        visit("cudaSetDevice", t.set_device);
        visit("cudaDeviceSynchronize", t.device_synchronize);
        visit("cudaGetErrorString", t.error_text);
        visit("cudaGetLastError", t.last_error);
        visit("cudaMalloc", t.allocate);
        visit("cudaFree", t.release);
        visit("cudaHostAlloc", t.allocate_host);
        visit("cudaFreeHost", t.release_host);
        visit("cudaMemGetInfo", t.memory_info);
        visit("cudaMemcpyAsync", t.copy_async);
        visit("cudaMemsetAsync", t.set_async);
        visit("cudaStreamCreateWithFlags", t.stream_create);
        visit("cudaStreamDestroy", t.stream_destroy);
        visit("cudaStreamQuery", t.stream_query);
        visit("cudaStreamSynchronize", t.stream_synchronize);
        visit("cudaStreamWaitEvent", t.stream_wait_event);
        visit("cudaEventCreateWithFlags", t.event_create);
        visit("cudaEventDestroy", t.event_destroy);
        visit("cudaEventQuery", t.event_query);
        visit("cudaEventSynchronize", t.event_synchronize);
        visit("cudaEventRecord", t.event_record);
    }
};

/// The names under which the library is looked for.
[[nodiscard]] std::vector<std::string> cuda_runtime_names();

/// The library that is loaded already, else one that the system finds by a name.
///   errors  not_found: no library, with the names that were tried and what to do; not_supported:
///           one that lacks functions, or is older than CUDA 12
[[nodiscard]] result<cuda_runtime> load_cuda_runtime(
    const std::vector<std::string>& names = cuda_runtime_names());
/// The same from functions that somebody else has found.
[[nodiscard]] result<cuda_runtime> cuda_runtime_from(const symbol_finder& find, std::string source);

/// How many devices this process can use.
///   errors  not_supported: no driver, one that is too old, or no device, with what
///           CUDA_VISIBLE_DEVICES says
[[nodiscard]] result<int> cuda_devices(const cuda_runtime& cuda);

/// Throws what cuda_devices() gives; invalid_argument when there are devices, but not this one.
void require_device(const cuda_runtime& cuda, int device);

/// Throws the error of a call that failed; not_ready is one.
///   what    "an event", "copy 12 bytes": the text is "cuda: cannot make <what>"
///   errors  exhausted: no memory; not_supported: no driver or device; io: anything else
void cuda_check(const cuda_runtime& cuda, cuda_result outcome, std::string_view what);

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/cuda_runtime.ipp>
#endif
