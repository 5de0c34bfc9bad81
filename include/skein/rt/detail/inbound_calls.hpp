// SPDX-License-Identifier: Apache-2.0
#pragma once
// What this process runs for one peer: coroutine calls under way, and what was heard of calls that
// have not begun. Kept by the executor beside the link over which their replies go.

#include <skein/core/cancel.hpp>
#include <skein/core/counted_ptr.hpp>
#include <skein/core/frame_pool.hpp>
#include <skein/core/id_map.hpp>
#include <skein/rt/detail/call.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_set>

namespace skein::rt::detail {

class item_credit;

/// A coroutine call from its first step, or its place in a line for it, to its reply.
struct running_call {
    static void* operator new(std::size_t bytes) {
        return skein::detail::frame_pool::allocate(bytes);
    }
    static void operator delete(void* p, std::size_t bytes) noexcept {
        skein::detail::frame_pool::release(p, bytes);
    }
    skein::detail::cancel_state stop;
    counted_ptr<call_context> context;
    bool told = false;            ///< the submitter knows that it has started
    bool waits = false;           ///< it has not, see start_gate
    bool held = false;            ///< and the submitter knows that
    std::uint64_t news = 0;       ///< driver_news::of_new_call() when it began
    item_credit* items = nullptr; ///< of a stream, while its generator runs

    /// Cancels it and what it has called.
    void end(bool by_force) {
        stop.request();
        context->cancel_children(by_force);
    }
};

struct inbound_calls {
    id_map<slot_id, std::unique_ptr<running_call>> running;
    std::unordered_set<slot_id> cancelled; ///< of those in the backlog
    bool is_paused = false;                ///< nothing is read from the peer for a while
};

} // namespace skein::rt::detail
