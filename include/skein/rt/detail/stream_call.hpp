// SPDX-License-Identifier: Apache-2.0
#pragma once
// stream_call: a call whose function gives items, as its submitter sees it.
//
// It is a call as all others, with one outcome; what comes before that are items, which wait here,
// encoded, until somebody takes them. The outcome is told behind the items: it counts them, so that
// one which came another way (a reply over the driver) waits for those that are still to come.
//
//     running   items come; who takes them gives room back
//     spent     one was taken: the call does not run again
//     left      nobody will take more: it was cancelled, what still comes is dropped
//     done      value (how many there were) or failure; items may still wait here

#include <skein/core/bytes.hpp>
#include <skein/core/counted_ptr.hpp>
#include <skein/core/wait.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/stream_window.hpp>

#include <coroutine>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

namespace skein::rt::detail {

class stream_call final : public call_base {
public:
    explicit stream_call(stream_window window) noexcept : debt_(window) {}

    // Users count it as what it is: see ref_state.
    void add_use() noexcept {
        ++watchers_;
        call_base::add_use();
    }
    void drop_use() noexcept {
        --watchers_;
        call_base::drop_use();
    }

    /// Waits for an item or the outcome. One at a time.
    class item_waiter : public waiter {
    public:
        explicit item_waiter(stream_call& of) noexcept : of_(of) {}
        [[nodiscard]] bool await_ready() const noexcept {
            return !of_.items_.empty() || of_.is_done();
        }
        template <skein::detail::promise_with_context Promise>
        bool await_suspend(std::coroutine_handle<Promise> h) {
            of_.check_alone();
            if (!arm(h)) return false;
            of_.waiters.push_back(*this);
            return true;
        }
        /// The item; nothing: there are no more. Throws the failure, or cancelled: then no item is
        /// taken.
        std::optional<byte_buffer> await_resume();

    private:
        friend class stream_call;
        stream_call& of_;
        std::optional<byte_buffer> item_; ///< handed over
    };

    /// Nobody takes more: asks it to end. What waits here is dropped.
    void leave() noexcept;
    /// Items that were taken.
    [[nodiscard]] std::uint64_t taken() const noexcept { return taken_; }

    void take_item(const net::frame_view& f) override;
    void begin_again() override;

    /// What was told of its end before all items had come.
    struct early_end {
        std::uint64_t count = 0;
        std::uint16_t outcome = 0;
        byte_buffer body;
    };
    /// It has ended behind so many items. False: some are still to come; it is kept.
    [[nodiscard]] bool ends_behind(std::uint64_t count, std::uint16_t outcome, byte_span rest);
    /// What was kept, if it is its turn now.
    [[nodiscard]] std::optional<early_end> end_that_is_due();
    [[nodiscard]] std::uint64_t came() const noexcept { return came_; }

protected:
    result<void> take_value(byte_span bytes) override;

private:
    void was_taken(std::size_t bytes);
    void check_alone() const;

    item_debt debt_;
    std::deque<byte_buffer> items_;
    std::uint64_t came_ = 0, taken_ = 0;
    std::unique_ptr<early_end> early_;
    bool is_left_ = false;
};

/// A call with a window of nothing fails when it is submitted: nothing could ever be sent.
void refuse_window(call_base& call, const stream_window& window);

} // namespace skein::rt::detail

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/stream_call.ipp>
#endif
