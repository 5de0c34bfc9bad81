// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the driver of a worker has to know before a reply of that worker leaves.
//
// A worker tells its driver who holds a handle and which actor has left. A reply to another worker
// takes another way, and must not come before that: it goes to the driver behind the news, which
// passes it on. Two replies are concerned: the next one after the news, and that of each call that
// had begun before the news, for it may have been of the handles of that call.
//
//     nothing told    replies go straight to their callers
//     told            the next reply goes by way of the driver; then only those of older calls
//
// The driver must also know whether the worker waits for others: it hears so before a reply sets
// off what counts on an idle worker.
//
//     driver_news news;
//     const auto born = news.of_new_call(); // a call begins
//     news.told();                          // the driver was told of a handle
//     news.take_next();                     // the next reply follows
//     news.came_after(born);                // and so does that of the call, whenever it ends

#include <cstddef>
#include <cstdint>
#include <utility>

namespace skein::rt::detail {

class driver_news {
public:
    /// The driver was told something that the next reply must not overtake.
    void told() noexcept {
        is_next_ = true;
        ++count_;
    }
    /// Whether the reply that leaves now is the one after the news.
    [[nodiscard]] bool take_next() noexcept { return std::exchange(is_next_, false); }
    /// How much the driver knew when a call began. What the call's arguments have told it is
    /// younger than the call.
    [[nodiscard]] std::uint64_t of_new_call() const noexcept { return count_ - (is_next_ ? 1 : 0); }
    [[nodiscard]] bool came_after(std::uint64_t call) const noexcept { return count_ != call; }
    [[nodiscard]] bool has_any() const noexcept { return count_ != 0; }

    // Calls of actors on other workers, which do not go through the driver:
    void call_began() noexcept { ++calls_; }
    /// True: it was the last one, and the driver is to hear that there are none.
    [[nodiscard]] bool call_ended() noexcept {
        return --calls_ == 0 && std::exchange(is_told_busy_, false);
    }
    /// True: there are some, and the driver is to hear it; it knows from now on.
    [[nodiscard]] bool take_busy() noexcept {
        return calls_ > 0 && !std::exchange(is_told_busy_, true);
    }

private:
    bool is_next_ = false;
    bool is_told_busy_ = false;
    std::uint64_t count_ = 0; ///< how often the driver was told
    std::size_t calls_ = 0;   ///< without an outcome
};

} // namespace skein::rt::detail
