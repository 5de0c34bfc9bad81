// SPDX-License-Identifier: Apache-2.0
#pragma once
// A thread of a rank that makes its saves, one at a time.
//
// The work is given as a function, which is all that the thread runs; what it throws is kept for
// whoever take()s the end. Nothing here knows a run: who begins a save keeps what it needs alive
// until is_writing() is false.
//
//     checkpoint_writer writer;
//     writer.begin([&] { return saver.save(copy.state()); });
//     ...                                               // training goes on
//     if (writer.has_ended()) tell(writer.take());      // the save is durable, or has failed
//
// States: idle -> begin() -> writing -> ended -> take() -> idle. All members are for one thread.

#include <skein/core/error.hpp>
#include <skein/core/result.hpp>
#include <skein/core/time.hpp>
#include <skein/train/checkpoint.hpp>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

namespace skein::net {
class loop_thread;
}

namespace skein::train {

class checkpoint_writer {
public:
    using save_function = std::function<saved_checkpoint()>;

    /// The thread comes with the first save.
    checkpoint_writer();
    checkpoint_writer(const checkpoint_writer&) = delete;
    checkpoint_writer& operator=(const checkpoint_writer&) = delete;
    /// Waits for a save that is being made.
    ~checkpoint_writer();

    /// Only when idle.
    void begin(save_function save);
    [[nodiscard]] bool is_writing() const;
    [[nodiscard]] bool has_ended() const;
    /// Until no save is being made.
    void wait() const;
    /// The same, but no longer than that.
    ///   result  whether no save is being made
    [[nodiscard]] bool wait_for(duration most) const;
    /// It has ended, and not well.
    [[nodiscard]] bool has_failed() const;
    /// What the save that has ended came to; only then.
    [[nodiscard]] result<saved_checkpoint> take();

private:
    void make();

    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    save_function save_;                              // while it is being made
    std::optional<result<saved_checkpoint>> outcome_; // of the one that has ended
    std::unique_ptr<net::loop_thread> thread_;
};

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/checkpoint_writer.ipp>
#endif
