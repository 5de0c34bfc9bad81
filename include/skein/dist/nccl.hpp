// SPDX-License-Identifier: Apache-2.0
#pragma once
// NCCL as a table of functions: collectives between devices, put on their streams.
//
// The only header that declares NCCL. The declarations are skein's own, of the C interface since
// 2.19; a test compares them with nccl.h where that is. The table is filled by dlopen, from the
// libnccl.so.2 that LibTorch's CUDA half has loaded when there is one: two of them in a process
// would not know of each other. The version is asked before anything else.
//
//     const nccl_library nccl = load_nccl().value();
//     nccl_unique_id id{};
//     nccl_check(nccl, nccl.unique_id(&id), "an id");

#include <skein/core/error.hpp>
#include <skein/core/result.hpp>
#include <skein/dist/buffer.hpp>
#include <skein/dist/cuda_runtime.hpp>
#include <skein/dist/library.hpp>

#include <climits>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::dist {

struct nccl_comm_object;
using nccl_comm = nccl_comm_object*;

/// What NCCL's functions return. timeout is new in 2.30.
enum class nccl_result : int {
    success = 0,
    unhandled_cuda_error = 1,
    system_error = 2,
    internal_error = 3,
    invalid_argument = 4,
    invalid_usage = 5,
    remote_error = 6,
    in_progress = 7,
    timeout = 8,
};

enum class nccl_type : int { u8 = 1, i64 = 4, f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };
enum class nccl_op : int { sum = 0, max = 2, min = 3 };

/// What one rank makes and all get.
struct nccl_unique_id {
    char internal[128];
};

/// The head of ncclConfig_t as 2.19 has it. Later ones are longer; the library reads as much as
/// `size` says, and takes its defaults for the rest.
struct nccl_config {
    std::size_t size = sizeof(nccl_config);
    unsigned magic = 0xcafebeef;
    unsigned version = 21900; ///< of these fields, not of the library
    int blocking = INT_MIN;   ///< INT_MIN and null: NCCL's default
    int cga_cluster_size = INT_MIN;
    int min_ctas = INT_MIN;
    int max_ctas = INT_MIN;
    const char* net_name = nullptr;
    int split_share = INT_MIN;
};

/// The functions of NCCL that skein calls. With a communicator that is not blocking each of them
/// may give in_progress; then async_error() is asked until it says otherwise, and only from then on
/// is the work on its stream.
struct nccl_library {
    template <class F>
    using entry = std::function<F>;

    entry<nccl_result(int*)> version; ///< 22809: 2.28.9
    entry<nccl_result(nccl_unique_id*)> unique_id;
    entry<nccl_result(nccl_comm*, int, nccl_unique_id, int, nccl_config*)> init_rank;
    entry<nccl_result(nccl_comm)> finalize, destroy, abort;
    entry<nccl_result(nccl_comm, nccl_result*)> async_error;
    entry<nccl_result(nccl_comm, int*)> count, device, rank;
    entry<const char*(nccl_result)> error_text;
    entry<const char*(nccl_comm)> last_error;
    entry<nccl_result()> group_start, group_end;
    entry<nccl_result(const void*, void*, std::size_t, nccl_type, nccl_op, nccl_comm, cuda_stream)>
        all_reduce, reduce_scatter;
    entry<nccl_result(const void*, void*, std::size_t, nccl_type, nccl_op, int, nccl_comm,
                      cuda_stream)>
        reduce;
    entry<nccl_result(const void*, void*, std::size_t, nccl_type, int, nccl_comm, cuda_stream)>
        broadcast;
    entry<nccl_result(const void*, void*, std::size_t, nccl_type, nccl_comm, cuda_stream)>
        all_gather;
    entry<nccl_result(const void*, std::size_t, nccl_type, int, nccl_comm, cuda_stream)> send;
    entry<nccl_result(void*, std::size_t, nccl_type, int, nccl_comm, cuda_stream)> recv;

    std::string source;      ///< where the functions came from: a file, or "a model"
    int version_number = 0;  ///< as version() gave it
    bool was_loaded = false; ///< by somebody else: LibTorch

    /// visitor(name in the library, entry), for each.
    template <class Table, class Visitor>
    static void each(Table& t, Visitor visit) {
        visit("ncclGetVersion", t.version);
        visit("ncclGetUniqueId", t.unique_id);
        visit("ncclCommInitRankConfig", t.init_rank);
        visit("ncclCommFinalize", t.finalize);
        visit("ncclCommDestroy", t.destroy);
        visit("ncclCommAbort", t.abort);
        visit("ncclCommGetAsyncError", t.async_error);
        visit("ncclCommCount", t.count);
        visit("ncclCommCuDevice", t.device);
        visit("ncclCommUserRank", t.rank);
        visit("ncclGetErrorString", t.error_text);
        visit("ncclGetLastError", t.last_error);
        visit("ncclGroupStart", t.group_start);
        visit("ncclGroupEnd", t.group_end);
        visit("ncclAllReduce", t.all_reduce);
        visit("ncclReduceScatter", t.reduce_scatter);
        visit("ncclReduce", t.reduce);
        visit("ncclBroadcast", t.broadcast);
        visit("ncclAllGather", t.all_gather);
        visit("ncclSend", t.send);
        visit("ncclRecv", t.recv);
    }
};

/// The oldest that skein takes: 2.19, whose configuration is the head of all later ones.
inline constexpr int oldest_nccl = 21900;

/// "2.28.9".
[[nodiscard]] std::string nccl_version_text(int number);
[[nodiscard]] nccl_type nccl_type_of(dtype type) noexcept;

[[nodiscard]] std::vector<std::string> nccl_names();

/// The library that is loaded already, else one that the system finds by a name.
///   errors  not_found: no library, with the names that were tried and what to do; not_supported:
///           one before 2.19, or one that lacks functions
[[nodiscard]] result<nccl_library> load_nccl(const std::vector<std::string>& names = nccl_names());
/// The same from functions that somebody else has found.
[[nodiscard]] result<nccl_library> nccl_from(const symbol_finder& find, std::string source);

/// The error of a call, with NCCL's text and its last words on comm (null: none).
///   what    "all_reduce #7 (f32 x 100, sum)", "a communicator"
///   code    timeout: NCCL's own time-out; peer_lost: a remote error; not_supported: no driver;
///           invalid_argument: a wrong argument or use; io: anything else
[[nodiscard]] error nccl_error(const nccl_library& nccl, nccl_result outcome, std::string_view what,
                               nccl_comm comm = nullptr);
/// Throws it, unless the call was a success. in_progress is none.
void nccl_check(const nccl_library& nccl, nccl_result outcome, std::string_view what,
                nccl_comm comm = nullptr);

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/nccl.ipp>
#endif
