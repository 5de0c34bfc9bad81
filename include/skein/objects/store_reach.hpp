// SPDX-License-Identifier: Apache-2.0
#pragma once
// store_reach: with which stores of other nodes that of this process has a link, as it says. Part of a
// store_client.
//
//     auto waiting = client->others().wait(number);
//     if (co_await waiting) ...;                       // objects get there, and back

#include <skein/core/event.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/objects/store_messages.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace skein::objects {

/// On the loop of its client.
class store_reach {
public:
    /// For the stores of a program to meet, when the first object is to go to another node.
    static constexpr time_span meet_within = std::chrono::seconds(3);

    ///   own  of this process; 0: there are no others
    explicit store_reach(std::uint64_t own) noexcept : own_(own) {}

    /// It is the own one, or there is a link.
    [[nodiscard]] bool has(std::uint64_t store) const noexcept {
        return store != 0 && !is_over_ &&
               (store == own_ || std::find(all_.begin(), all_.end(), store) != all_.end());
    }
    /// The same; waits for that when the first one asks. must outlive the task
    ///   errors  cancelled
    [[nodiscard]] task<bool> wait(std::uint64_t store) { return wait_for(this, store); }

    void hear(const reached_note& what) {
        all_ = what.stores;
        news_.set();
    }
    /// Nothing comes from the own store any more.
    void end() noexcept {
        is_over_ = true;
        news_.set();
    }

private:
    static task<bool> wait_for(store_reach* self, std::uint64_t store) {
        const auto now = loop::current().exact_now();
        if (!self->until_) self->until_ = deadline_after(now, duration(meet_within));
        while (store != 0 && !self->is_over_ && !self->has(store) &&
               loop::current().exact_now() < *self->until_) {
            self->news_.reset();
            auto waiting = self->news_.wait_until(*self->until_);
            (void)co_await waiting;
        }
        co_return self->has(store);
    }

    std::uint64_t own_;
    std::vector<std::uint64_t> all_;
    std::optional<time_point> until_;
    event news_;
    bool is_over_ = false;
};

} // namespace skein::objects
