// SPDX-License-Identifier: Apache-2.0
#pragma once
// runtime_context(): where the code that asks runs, as which call, and how long it may take.
//
//     row load(int shard) {
//         const auto here = skein::runtime_context();
//         logging::info("load", fmt::format("call {} on {}", here.call, here.process));
//         ...

#include <skein/core/ids.hpp>
#include <skein/core/time.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace skein {

/// What a function that runs on a worker, or a task of the driver, can know of itself.
struct runtime_info {
    std::string process; ///< "driver", "worker-2"
    std::string host;
    std::int64_t pid = 0;
    std::string function; ///< "app::load(int)"; empty in tasks of the driver
    call_id call;         ///< unique over all processes; none in tasks of the driver
    call_id parent;       ///< the call that made this one; none if that was no call
    call_id trace;        ///< the first call of the tree that this one belongs to
    actor_id actor;       ///< in methods and constructors
    /// What is left of its deadline, or of the call's that made it; calls made now end by then,
    /// too.
    std::optional<duration> time_left;
};

/// Of the call or task that runs now.
///   errors  not_found: no skein runtime on this thread
[[nodiscard]] runtime_info runtime_context();

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/runtime_context.ipp>
#endif
