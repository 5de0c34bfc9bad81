// SPDX-License-Identifier: Apache-2.0
#pragma once
// runtime: what one process needs to call and to be called. It turns calls into frames, frames into
// calls, and keeps the state: which call is where, which actor lives on which worker, what was lost
// when one died.
//
// A driver has one link to each of its workers, places tasks on them and knows every actor. A
// worker has a link to its driver, executes what arrives in order on its loop, sends its own tasks
// to the driver, and calls actors on other workers over links to these (detail/runtime_direct.ipp).
// Both run unchanged on the real and on the simulated loop.
//
//     rt::runtime driver(rt::runtime_options{"driver", "here", 1});
//     auto serving = driver.serve_worker(connection, nullptr);   // one task per worker
//     // or remote<&f>(7): the current one
//     auto r = skein::remote<&f>.on(driver)(7);
//
// Programs use skein::run, which makes the runtime and its workers.

#include <skein/core/constants.hpp>
#include <skein/core/function.hpp>
#include <skein/core/task.hpp>
#include <skein/proc/claims.hpp>
#include <skein/rt/actor_options.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/given_call.hpp>
#include <skein/rt/detail/peer_id.hpp>
#include <skein/rt/detail/runtime_fwd.hpp>
#include <skein/rt/detail/runtime_mark.hpp>
#include <skein/rt/registry.hpp>
#include <skein/rt/runtime_options.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

namespace skein::rt {

/// The runtime of one process; belongs to one loop. Close it before it is destroyed.
class runtime {
public:
    explicit runtime(runtime_options who);
    runtime(const runtime&) = delete;
    runtime& operator=(const runtime&) = delete;
    ~runtime();

    /// The runtime that remote<&f>(...) and actor<T>(...) use: that of the task that runs now, else
    /// the one that `use` has put in place on this thread.
    [[nodiscard]] static runtime& current() {
        auto* const here = try_current();
        if (here == nullptr) detail::no_current_runtime();
        return *here;
    }
    [[nodiscard]] static runtime* try_current() noexcept {
        const auto* context = detail::call_context::current();
        return context != nullptr ? context->where() : current_;
    }
    /// Runs work, and all that it awaits and spawns, as tasks of this runtime. Several runtimes may
    /// do so on one loop.
    template <class T>
    [[nodiscard]] task<T> run_here(task<T> work) {
        return with_context(root_context(), std::move(work));
    }
    /// While it lives a runtime is the current one of this thread, for all that is no task.
    class use {
    public:
        explicit use(runtime& n) noexcept : before_(std::exchange(current_, &n)) {}
        use(const use&) = delete;
        use& operator=(const use&) = delete;
        ~use() { current_ = before_; }

    private:
        runtime* before_;
    };

    /// The runtime whose incoming call is being decoded on this thread, if any.
    [[nodiscard]] static runtime* executing() noexcept { return detail::executing_mark::current(); }
    /// The call whose arguments are being encoded on this thread, if any.
    [[nodiscard]] static detail::call_base* encoding() noexcept { return encoding_; }
    /// The runtime that encodes a result on this thread, if any.
    [[nodiscard]] static runtime* replying() noexcept { return detail::replying_mark::current(); }

    /// What follows the end of a worker's link: waits for the process and says how it ended, e.g.
    /// "killed by signal 9 (SIGKILL)". May be empty.
    using exit_reason = unique_function<task<std::string>(const peer&)>;

    /// Driver: takes a worker in and serves it until it has gone; then settles the calls it took
    /// along. Never throws but for cancellation, which aborts the link. page: what both share, if
    /// they are on one host.
    [[nodiscard]] task<void> serve_worker(std::shared_ptr<net::channel> wire, exit_reason after,
                                          proc::claims page = {});
    /// The same for a worker that says where it is, or that serves one demand only.
    [[nodiscard]] task<void> serve_worker(std::shared_ptr<net::channel> wire, exit_reason after,
                                          proc::claims page, worker_info info);
    /// Driver: the labels of the worker on that connection, if they were not known when it came.
    void set_labels(const net::channel& wire, const std::vector<std::string>& labels);
    /// Driver: sends the worker on that connection nothing new, and says goodbye to it when what
    /// runs there has ended. Gives why it stays: the actors that it has, or that it has gone
    /// already; "": it has left.
    ///   errors  cancelled: it takes new work again
    [[nodiscard]] task<std::string> retire(std::shared_ptr<net::channel> wire);
    /// Worker: executes the driver's calls until it has gone; then cancels and awaits what runs.
    [[nodiscard]] task<void> serve_driver(std::shared_ptr<net::channel> wire,
                                          proc::claims page = {});
    /// Worker, before it meets its driver: listens for other workers, and calls actors on those
    /// without the driver. Where it cannot listen it does not; then its actors are called through
    /// the driver.
    ///   via     must outlive serve_driver()
    ///   secret  that of all workers of the driver
    ///   near    for workers of this host, far: for those of others; empty host: not at all
    void open_to_workers(net::network& via, const net::token& secret, const net::address& near,
                         const net::address& far);
    // Namespaces, in detail/runtime_spaces.ipp:

    /// The runtime through which the actors of a namespace are called from here.
    ///   errors  see get_actor
    [[nodiscard]] task<runtime*> enter_space(std::string space);
    /// Driver: it keeps a namespace: detached actors stay, and each actor has a process of its own.
    void keep_space(std::string space);
    /// What a worker tells of itself to its driver.
    [[nodiscard]] detail::worker_hello hello() const;
    /// Driver: nothing runs on the worker of this connection, and no actor is there.
    [[nodiscard]] bool is_idle(const std::shared_ptr<net::channel>& wire) const;
    /// Says goodbye to all peers; calls that are not done fail with errc::closed.
    [[nodiscard]] task<void> close();

    /// Driver: called once, when the first call needs a worker.
    void on_first_call(unique_function<void()> start);
    /// Driver: how many workers there are or will soon be. New actors wait for them, to be spread.
    void expect_workers(std::size_t n);
    /// Driver: there will be no more workers; fails what waits for one, now and later.
    void give_up(error why);
    /// Driver: who is asked for workers for demands that others cannot serve; must outlive it, or
    /// nullptr be said before. Without it such tasks fail.
    void ask(worker_source* source) noexcept;
    /// Driver: no worker comes for this demand: what waits for it now fails.
    void refuse_demand(sched::demand_id demand, const error& why);
    /// Driver: what becomes of a placement group: all its bundles have places, or not any more; it
    /// can never have them, and is forgotten; nothing of it is left after drop_group().
    void group_placed(std::uint64_t number, bool on);
    void group_refused(std::uint64_t number, const error& why);
    void group_gone(std::uint64_t number);
    /// Driver: a worker gives no sign of life, or does so again. Nothing new goes to it meanwhile,
    /// and what it has not begun runs elsewhere.
    void suspect(const net::channel& worker, bool on);
    /// Driver: it will not answer any more, for this reason: its process is being ended.
    void give_up_worker(const net::channel& worker, std::string why);
    /// Driver: no second process comes to that worker, see worker_source::want_beside().
    void refuse_aside(const net::channel& worker);
    /// Driver: so many cores of its workers are others' from now on: no task is sent there.
    void lend(std::uint32_t cores);
    /// Driver: ends when no task runs on the cores that are lent.
    [[nodiscard]] task<void> lent_is_free();

    [[nodiscard]] const detail::process_name& name() const noexcept;
    [[nodiscard]] std::uint64_t incarnation() const noexcept;
    [[nodiscard]] std::size_t workers() const noexcept;
    [[nodiscard]] const runtime_stats& stats() const noexcept;
    /// Calls without an outcome yet.
    [[nodiscard]] std::size_t pending() const noexcept;
    /// Driver: actors that it knows; space clients.
    [[nodiscard]] std::size_t known_actors() const noexcept;
    [[nodiscard]] std::size_t space_clients() const noexcept;
    /// Actors that live in this process.
    [[nodiscard]] std::size_t actors() const noexcept;
    /// As messages name it: actor "table"; where its name is not known, actor counter#7.
    [[nodiscard]] std::string actor_title(actor_id id) const;
    /// Coroutines that run here for other processes.
    [[nodiscard]] std::size_t running() const noexcept;
    [[nodiscard]] bool is_driver() const noexcept;

    // For remote<>, actor<> and the invokers of registered functions.

    /// Submits a call whose arguments are there; encode(writer&) appends them.
    /// give: makes it for an actor of this process, instead.
    void submit(counted_ptr<detail::call_base> call, detail::encoder encode,
                detail::given_maker give = {});
    /// What a task needs, before it is submitted.
    void set_demand(detail::call_base& call, const call_options& how);
    /// Submits a call that waits for refs: it is sent when `pending` argument_ready() have come.
    void submit_deferred(const counted_ptr<detail::call_base>& call, std::size_t pending,
                         std::unique_ptr<detail::deferred_arguments> arguments);
    void argument_ready(detail::call_base& call);
    /// by_force: of a task; see ref::cancel_by_force().
    void cancel(detail::call_base& call, bool by_force = false) noexcept;
    /// It has been cancelled by force, and has not ended.
    void end_by_force(detail::call_base& call);
    void deadline_passed(detail::call_base& call);
    void drop_actor(detail::actor_queue& queue) noexcept;
    [[nodiscard]] task<void> wait_credit(counted_ptr<detail::actor_queue> queue);
    /// The state behind handles to an actor: one per runtime and actor, so that order is kept.
    [[nodiscard]] counted_ptr<detail::actor_queue> queue_for(actor_id id);
    [[nodiscard]] actor_id new_actor_id() noexcept;

    // For actor<T>, get_actor<T>, kill() and leave_actor(); in detail/runtime_actors.ipp,
    // runtime_handles.ipp and runtime_ends.ipp.

    /// The queue of the actor that `call` will make; or of the one that has its name already, and
    /// `exists`.
    ///   errors  the call fails: already_exists, mismatch
    [[nodiscard]] counted_ptr<detail::actor_queue> declare_actor(detail::call_base& call,
                                                                 const actor_options& how,
                                                                 bool& exists);
    /// Asks for the actor of that name: gives its queue, or lets `call` get it or fail.
    [[nodiscard]] counted_ptr<detail::actor_queue> find_actor(
        const counted_ptr<detail::call_base>& call, std::string_view name,
        const std::type_info& type);
    void kill_actor(actor_id id);
    void leave_actor();

    /// For placement_group.
    [[nodiscard]] detail::group_handles& groups() noexcept;

    /// The queue of a handle that is decoded here.
    [[nodiscard]] counted_ptr<detail::actor_queue> borrow_actor(actor_id id,
                                                                std::uint32_t max_pending);
    /// The same of a handle that the driver counts as held here.
    [[nodiscard]] counted_ptr<detail::actor_queue> hold_actor(actor_id id,
                                                              std::uint32_t max_pending);
    /// The outcomes of what runs here, and the handles in them.
    [[nodiscard]] detail::replies& answers() noexcept;
    void create_failed(actor_id id, const failure& why);
    /// What the tasks of this process that are no call belong to.
    [[nodiscard]] counted_ptr<task_context> root_context() const noexcept;

    void count_outcome(bool failed) noexcept;
    /// Of a worker's call that its driver does not know of.
    void direct_call_ended(detail::call_base& call) noexcept;

private:
    friend struct detail::direct_state;
    friend struct detail::space_state;
    friend class detail::actor_queue;
    struct state; // in detail/runtime_state.hpp
    struct losses;
    struct credits;
    struct followers;
    struct streams;
    struct object_replies;
    struct large_arguments;

    void on_frame(const std::shared_ptr<peer>& from, const net::frame_view& f);
    [[nodiscard]] detail::call_base* call_at(const peer& from, slot_id id);
    void on_reply(peer& from, const net::frame_view& f);
    void settle(peer& from, counted_ptr<detail::call_base> call, const net::frame_view& f);
    [[nodiscard]] bool runs_again(detail::call_base& call, failure& why);
    void on_cancel(peer& from, slot_id id, bool by_force);
    void force_soon(detail::call_base& call);
    [[nodiscard]] bool waits_at(const peer& at, const detail::call_base& call) const;
    void take_reply(peer& from, detail::call_base& call, const net::frame_view& f);

    void tell_holds();
    [[nodiscard]] error is_closing(const std::string& call) const;

    void set_demand(detail::call_base& call, const actor_options& how);
    void join_group(detail::call_base& call);

    [[nodiscard]] bool keeps_body(const detail::call_base& call) const;
    [[nodiscard]] bool take_moved(const counted_ptr<detail::call_base>& call, bool sent,
                                  losses& into);
    void resume_restarts(losses& lost);
    void adopt_child(detail::call_base& call);
    void forward(peer& from, const net::frame_view& f);
    void set_demand(detail::call_base& call, const detail::call_head& head);

    // Calls between workers. The worker's side, in detail/runtime_direct.ipp and
    // detail/runtime_callers.ipp:
    void find_way(detail::actor_queue& queue);
    void look_for_way(detail::actor_queue& queue);
    [[nodiscard]] static bool is_cut(const detail::actor_queue& queue) noexcept;
    [[nodiscard]] peer& here();
    void ask_where(detail::actor_queue& queue, bool is_cut_off);
    [[nodiscard]] bool on_driver_says(peer& from, const net::frame_view& f);
    void on_there(const net::frame_view& f);
    void on_end(const net::frame_view& f);
    void on_relayed(const net::frame_view& f);
    void refuse_relayed(std::uint64_t worker, const net::frame_view& f);
    void give_back(detail::call_base& call, std::uint64_t worker, const net::frame_view& f);
    static task<void> reach(runtime* self, std::uint64_t incarnation);
    task<std::shared_ptr<net::channel>> dial(std::uint64_t incarnation);
    static task<void> talk(runtime* self, std::uint64_t incarnation,
                           std::shared_ptr<net::channel> wire);
    static task<void> hear_of_end(runtime* self, std::uint64_t incarnation);
    void lose_target(detail::direct_target& at, peer& l);
    void close_queue(actor_id id, const failure& why);
    void close_queues();
    void direct_call_began(detail::call_base& call);
    void tell_wait(const detail::call_context& waiting, bool on) noexcept;
    void on_direct_frame(const std::shared_ptr<peer>& from, const net::frame_view& f);
    static task<void> serve_door(runtime* self, net::link_endpoint* door);
    [[nodiscard]] static task<void> serve_caller(runtime* self, std::shared_ptr<net::channel> wire);
    void cut_caller(std::uint64_t incarnation);
    [[nodiscard]] task<void> leave_others();
    // The driver's side, in detail/runtime_meetings.ipp:
    [[nodiscard]] bool on_worker_asks(peer& from, const net::frame_view& f);
    void on_where(peer& from, const net::frame_view& f);
    void tell_where(peer_id asker, actor_id id, peer* where, std::string_view how = {});
    void on_lost(peer& from, std::uint64_t incarnation);
    static task<void> say_it_lives(runtime* self, std::uint64_t incarnation);
    void tell_end(peer& of, bool has_ended, const std::string& how);
    void pass_on(peer& from, const net::frame_view& f);
    void on_waits(peer& from, const net::frame_view& f);
    [[nodiscard]] peer* link_of(std::uint64_t incarnation) const;
    [[nodiscard]] peer* link_at(peer_id number) const;

    std::shared_ptr<peer> attach(std::shared_ptr<net::channel> wire, proc::claims page);
    void listen_to(const std::shared_ptr<peer>& l);
    [[nodiscard]] task<void> wait_end(std::shared_ptr<peer> l);
    [[nodiscard]] task<void> part_from(std::shared_ptr<peer> l);
    void lose(peer& l, const std::string& how);
    [[nodiscard]] bool has_calls(const peer& at) const;
    void take_lost(peer& l, losses& into);
    void fail_lost(losses& lost);
    void run_again(const losses& lost);
    void fail_queue(detail::actor_queue& queue);

    [[nodiscard]] bool prepare(detail::call_base& call);
    [[nodiscard]] bool encode_call(wire::writer& to, detail::call_base& call,
                                   detail::encoder encode);
    void settle_ready(const counted_ptr<detail::call_base>& call);
    void place(counted_ptr<detail::call_base> call);
    void drain(detail::actor_queue& queue);
    void pump();
    void pump_leases();
    void send(peer& to, counted_ptr<detail::call_base> call);
    bool transmit(peer& to, detail::call_base& call, byte_span body, byte_buffer* owned);
    void account(peer& from, const detail::call_base& call);
    [[nodiscard]] bool take_back(detail::call_base& call);
    void feed(peer& idle);
    [[nodiscard]] bool has_own_incarnation(const peer& newcomer) const;
    slot_id take_slot(counted_ptr<detail::call_base> call);
    counted_ptr<detail::call_base> free_slot(slot_id id);
    void refuse(detail::call_base& call, error why);

    static inline constinit thread_local runtime* current_ = nullptr;
    static inline constinit thread_local detail::call_base* encoding_ = nullptr;

    std::unique_ptr<state> state_;
};

} // namespace skein::rt

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/call.ipp>
#include <skein/rt/detail/demand_lines.ipp>
#include <skein/rt/detail/dispatch.ipp>
#include <skein/rt/detail/lease_book.ipp>
#include <skein/rt/detail/lent_cores.ipp>
#include <skein/rt/detail/ref_codec.ipp>
#include <skein/rt/detail/runtime.ipp>
#include <skein/rt/detail/runtime_actors.ipp>
#include <skein/rt/detail/runtime_callers.ipp>
#include <skein/rt/detail/runtime_credits.ipp>
#include <skein/rt/detail/runtime_direct.ipp>
#include <skein/rt/detail/runtime_dispatch.ipp>
#include <skein/rt/detail/runtime_ends.ipp>
#include <skein/rt/detail/runtime_frames.ipp>
#include <skein/rt/detail/runtime_given.ipp>
#include <skein/rt/detail/runtime_handles.ipp>
#include <skein/rt/detail/runtime_meetings.ipp>
#include <skein/rt/detail/runtime_objects.ipp>
#include <skein/rt/detail/runtime_peers.ipp>
#include <skein/rt/detail/runtime_send.ipp>
#include <skein/rt/detail/runtime_spaces.ipp>
#include <skein/rt/detail/runtime_streams.ipp>
#endif
