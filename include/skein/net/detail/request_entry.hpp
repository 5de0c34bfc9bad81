// SPDX-License-Identifier: Apache-2.0
#pragma once
// A call that runs once, however often it is asked for.

#include <skein/core/bytes.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/task.hpp>
#include <skein/net/requests.hpp>

#include <cstdint>
#include <vector>

namespace skein::net::detail {

/// How a handler has ended.
struct request_outcome {
    bool good = false;
    byte_buffer bytes; ///< the encoded reply or error
};

/// A call with a key: it runs, or has run.
struct request_entry {
    std::uint64_t key = 0;
    cancel_source stop;
    std::vector<request_service::waiting_caller> waiting;
    bool done = false, kept = true; ///< kept: the outcome is
    request_outcome outcome;

    /// A caller does not want it any more; the last one ends it.
    void leave(const requests* who, std::uint64_t call) noexcept;
};

/// Runs a handler; its outcome as bytes. Never throws but bad_alloc.
task<request_outcome> outcome_of(request_service::raw_handler* handler, byte_buffer body,
                                 caller who, cancel_token stop);

} // namespace skein::net::detail
