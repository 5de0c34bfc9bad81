// SPDX-License-Identifier: Apache-2.0
#pragma once
// executor: the calls that run in this process.
//
//     arrived       a call runs here and now, or waits in the backlog behind calls that have run
//                   for long: replies should leave, and cancellations be heard
//     held back     a plain method waits until coroutine methods of its actor before it have
//                   started, or for a seat at its gate
//     running       a plain call: on the stack; a coroutine call: a task of its own, which its
//                   caller hears of if it suspends
//     replied       by the invoker of its function, over the replies
//
// Calls of one caller start in the order in which they came. An actor that was killed or has left
// runs no more calls; those that wait for their turn at it hear why.
//
//     executor here(home, replies, actors);
//     here.add_caller(*driver);
//     here.arrived(driver, frame);   // throws what ends the link
//     here.cancel(*driver, slot, false);
//     here.close();                  // what waits does not run
//     here.cancel_all();
//     co_await here.join();

#include <skein/core/bytes.hpp>
#include <skein/core/counted_ptr.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/rt/detail/actor_box.hpp>
#include <skein/rt/detail/arrived_call.hpp>
#include <skein/rt/detail/backlog.hpp>
#include <skein/rt/detail/call_context.hpp>
#include <skein/rt/detail/local_actors.hpp>
#include <skein/rt/detail/replies.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace skein::net {
struct frame_view;
}

namespace skein::rt::detail {

struct running_call;

class executor {
public:
    /// home: the runtime that the calls of tasks here go through.
    executor(counted_ptr<runtime_anchor> home, replies& answers, local_actors& actors);
    executor(const executor&) = delete;
    executor& operator=(const executor&) = delete;
    ~executor();

    // Those whose calls run here: the driver, other workers in the order in which they came, and
    // this process itself.
    void add_caller(peer& one);
    void remove_caller(const peer& one) noexcept;
    /// Cancels what runs for a caller.
    static void end_calls(peer& caller);
    /// The same, and what waits for it never runs.
    void drop_calls(peer& caller);

    /// A call has come. Throws malformed, and what its sender should not have sent.
    void arrived(const std::shared_ptr<peer>& from, const net::frame_view& f);
    void arrived(const std::shared_ptr<peer>& from, std::unique_ptr<given_call> call);
    /// The last handle of an actor is gone, after the calls that came before.
    void dropped(const std::shared_ptr<peer>& from, byte_span body);
    void cancel(peer& from, slot_id id, bool by_force);
    /// Of a stream that runs here: throws what its sender should not have sent.
    static void items_were_taken(peer& from, slot_id id, byte_span body);

    /// Nothing of an actor goes on; a plain call that runs ends as it would.
    void kill(actor_id id);

    /// Coroutine calls that run here; calls that ran.
    [[nodiscard]] std::size_t running() const noexcept { return calls_.size(); }
    [[nodiscard]] std::uint64_t executed() const noexcept { return executed_; }
    /// What waits in the backlog does not run any more.
    void close() noexcept { is_closed_ = true; }
    void cancel_all() noexcept { calls_.cancel(); }
    [[nodiscard]] task<void> join() { return calls_.join(); }

    // For the invokers of registered functions:

    [[nodiscard]] replies& answers() noexcept { return replies_; }
    [[nodiscard]] runtime* home() const noexcept { return home_->self; }
    [[nodiscard]] local_actors& actors() noexcept { return actors_; }
    /// Runs a coroutine call; it replies by itself.
    void start(incoming_call& call, task<void> work);
    /// Waits for the turn of a call behind a gate with a limit. False: it has replied.
    [[nodiscard]] task<bool> take_turn(std::shared_ptr<peer> from, slot_id id,
                                       const function_record* fn, counted_ptr<actor_box> box);
    /// The reply to a call whose actor has ended before it.
    void reply_over(peer& to, slot_id id, const function_record& fn, const actor_box& box);

private:
    template <class Form>
    void take(const std::shared_ptr<peer>& from, slot_id id, Form& call);
    void arrived_with_objects(const std::shared_ptr<peer>& from, const net::frame_view& f);
    template <class Form>
    void refuse_objects(peer& from, slot_id id, Form& call);
    template <class Form>
    void run(const std::shared_ptr<peer>& from, slot_id id, Form& call, counted_ptr<actor_box> box);
    template <class Form>
    void hold_back(const std::shared_ptr<peer>& from, slot_id id, Form& call,
                   counted_ptr<actor_box> box);
    [[nodiscard]] task<void> run_later(arrival one, counted_ptr<actor_box> box);
    [[nodiscard]] task<void> run_in_turn(arrival one, const function_record* fn,
                                         counted_ptr<actor_box> box);
    void begin_turn();
    void end_turn();
    [[nodiscard]] task<void> run_backlog();
    void run_waiting(arrival& one);
    [[nodiscard]] counted_ptr<actor_box> box_for(peer& from, slot_id id, const function_record& fn,
                                                 actor_id actor);
    [[nodiscard]] call_context& context_for(const trace_context& who, actor_id actor,
                                            const function_record& fn);
    void begin_call(const std::shared_ptr<peer>& from, slot_id id, bool waits, task<void> work);
    [[nodiscard]] task<void> run_call(std::shared_ptr<peer> from, slot_id id, running_call* running,
                                      task<void> work);
    void tell_soon(const std::shared_ptr<peer>& to, slot_id id);
    [[nodiscard]] task<void> tell_started();

    /// Linked from the first call of a turn of the loop to its end.
    struct turn_mark : turn_hook {
        turn_mark() noexcept : turn_hook([](turn_hook&) {}) {}
    };

    counted_ptr<runtime_anchor> home_;
    replies& replies_;
    local_actors& actors_;
    std::vector<peer*> callers_;
    counted_ptr<call_context> spare_; ///< for the next plain call
    scope calls_;                     ///< coroutine calls that run here
    std::vector<std::pair<std::shared_ptr<peer>, slot_id>> fresh_; ///< started in this turn
    turn_mark in_turn_;
    time_point turn_began_{};
    backlog backlog_;
    std::uint64_t executed_ = 0;
    bool is_closed_ = false;
};

} // namespace skein::rt::detail

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/executor.ipp>
#endif
