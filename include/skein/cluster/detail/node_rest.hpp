// SPDX-License-Identifier: Apache-2.0
#pragma once
// A node that cannot start anything: its disk is full, a token cannot be written, a fork fails. The
// faster it fails, the emptier it looks, so it would take every job of the cluster. What it could
// not start for a reason of its own goes elsewhere, and it rests: it gets nothing new for 1, 2, 4,
// up to 60 seconds.

#include <skein/core/config.hpp>
#include <skein/core/backoff.hpp>
#include <skein/core/error.hpp>
#include <skein/core/time.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <utility>

namespace skein::cluster::detail {

/// Whether what could not be started could be on another node.
///   in_storage  it failed at what the node does with its own folder
[[nodiscard]] inline bool is_of_node(errc code, bool in_storage) noexcept {
    switch (code) {
    case errc::exhausted: // processes, memory, open files
    case errc::disk_full: return true;
    case errc::io:
    case errc::permission_denied:
    case errc::already_exists: // another agent has it open
    case errc::corrupt:
    case errc::closed: // its link to the head, from which the job's files come
    case errc::reset:
    case errc::peer_lost: return in_storage;
    default: return false;
    }
}

/// The same of what the library throws.
[[nodiscard]] inline bool is_of_node(const std::exception& why, bool in_storage) noexcept {
    if (dynamic_cast<const std::bad_alloc*>(&why) != nullptr) return true;
    const auto* const of_system = dynamic_cast<const std::system_error*>(&why);
    if (of_system == nullptr) return false;
    const auto number = of_system->code().value();
    for (const auto one : {EMFILE, ENFILE, EAGAIN, ENOMEM, ENOSPC, EDQUOT})
        if (number == one) return true;
    return in_storage && (number == EROFS || number == EACCES || number == EPERM || number == EIO);
}

/// The pauses of one node that cannot start processes, as the head counts them.
class node_rest {
public:
    static constexpr auto first = std::chrono::seconds(1), most = std::chrono::seconds(60);

    /// The node could not start a process. Several that were ordered at once count as one failure.
    /// False: the node rests already.
    bool failed(time_point now, std::string why) {
        why_ = std::move(why);
        if (is_on_) return false;
        if (now >= deadline_after(until_, most)) rests_.reset(); // of another day
        is_on_ = true;
        until_ = deadline_after(now, rests_.next());
        return true;
    }
    /// Something has started. True: it was resting.
    bool worked() noexcept {
        rests_.reset();
        until_ = {};
        return std::exchange(is_on_, false);
    }
    /// True: it has just rested.
    bool is_over(time_point now) noexcept { return is_on_ && now >= until_ && !(is_on_ = false); }

    [[nodiscard]] bool is_on() const noexcept { return is_on_; }
    [[nodiscard]] duration left(time_point now) const noexcept {
        return is_on_ && now < until_ ? until_ - now : duration(0);
    }
    [[nodiscard]] const std::string& why() const noexcept { return why_; }

private:
    bool is_on_ = false;
    time_point until_{};
    backoff rests_{first, most};
    std::string why_;
};

} // namespace skein::cluster::detail
