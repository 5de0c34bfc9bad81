// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/runtime.hpp: the calls of this process, and the actors it knows. How calls get
// to workers is in runtime_send.ipp, what links bring in runtime_frames.ipp, what they take along
// in runtime_peers.ipp.

#include <skein/core/check.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/random.hpp>
#include <skein/rt/detail/direct_state.hpp>
#include <skein/rt/detail/runtime_state.hpp>
#include <skein/rt/detail/space_state.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

SKEIN_INLINE void no_current_runtime() {
    SKEIN_CHECK(false, "no skein runtime on this thread: call remote functions and actors from "
                       "inside skein::run, or through a skein::session");
    std::abort();
}

} // namespace detail

SKEIN_INLINE runtime::state::state(runtime& self, runtime_options who)
    : name{std::move(who.name), std::move(who.host), who.pid}, heard(self),
      anchor(new detail::runtime_anchor(self)), actors(dispatch, groups, replies, heard),
      groups(dispatch, replies, group_handles, heard), group_handles(groups, replies, heard),
      replies(name, anchor, borrowed, heard), local_actors(heard),
      executor(anchor, replies, local_actors) {}
SKEIN_INLINE runtime::state::~state() = default;

SKEIN_INLINE runtime::runtime(runtime_options who) {
    state_ = std::make_unique<state>(*this, who);
    state_->incarnation = who.incarnation != 0 ? who.incarnation : system_random().next();
    state_->credit_calls = std::max(who.credit_calls, std::uint32_t{1});
    state_->credit_bytes = std::max(who.credit_bytes, std::size_t{1});
    state_->credit_batch = std::min(state_->credit_calls / 2 + 1, credits::most_batch);
    state_->root = counted_ptr(new detail::call_context(state_->anchor));
    state_->direct = std::make_unique<detail::direct_state>(*this);
    (void)registry::instance(); // numbers the functions
}

SKEIN_INLINE runtime::~runtime() {
    state_->spaces.reset(); // its space clients call through it
    SKEIN_CHECK(
        state_->links.empty() && state_->upstream == nullptr && state_->executor.running() == 0,
        "a runtime is destroyed while it serves {} links and runs {} calls; co_await close() and "
        "the serving tasks first",
        state_->links.size(), state_->executor.running());
    state_->dispatch.ask(nullptr); // it may be gone
    give_up(error(errc::closed, "the runtime has ended"));
    for (auto& [id, queue] : state_->actor_queues) queue->owner = nullptr;
    state_->anchor->self = nullptr;
    if (current_ == this) current_ = nullptr;
}

SKEIN_INLINE std::size_t runtime::workers() const noexcept {
    return static_cast<std::size_t>(
        std::count_if(state_->links.begin(), state_->links.end(),
                      [](auto& l) { return l->up && !l->is_space_client && !l->room.is_aside; }));
}

SKEIN_INLINE void runtime::on_first_call(unique_function<void()> start) {
    state_->start_workers = std::move(start);
}
SKEIN_INLINE void runtime::expect_workers(std::size_t n) {
    state_->dispatch.expect(n);
    pump();
}
SKEIN_INLINE const detail::process_name& runtime::name() const noexcept { return state_->name; }
SKEIN_INLINE const runtime_stats& runtime::stats() const noexcept {
    state_->stats.executed = state_->executor.executed();
    return state_->stats;
}
SKEIN_INLINE std::size_t runtime::pending() const noexcept {
    return state_->stats.submitted - state_->stats.done;
}
SKEIN_INLINE detail::group_handles& runtime::groups() noexcept { return state_->group_handles; }
SKEIN_INLINE std::size_t runtime::actors() const noexcept { return state_->local_actors.size(); }
SKEIN_INLINE std::size_t runtime::running() const noexcept { return state_->executor.running(); }
SKEIN_INLINE bool runtime::is_driver() const noexcept { return state_->upstream == nullptr; }
SKEIN_INLINE std::uint64_t runtime::incarnation() const noexcept { return state_->incarnation; }
SKEIN_INLINE actor_id runtime::new_actor_id() noexcept {
    return actor_id({state_->incarnation, state_->actors.new_number()});
}
SKEIN_INLINE counted_ptr<task_context> runtime::root_context() const noexcept {
    return state_->root;
}
SKEIN_INLINE void runtime::count_outcome(bool failed) noexcept {
    ++state_->stats.done;
    state_->stats.failed += failed;
}
SKEIN_INLINE void runtime::refuse(detail::call_base& call, error why) {
    call.fail({std::move(why), nullptr});
}

// ---- calls of this process -------------------------------------------------------------------

SKEIN_INLINE void runtime::set_demand(detail::call_base& call, const call_options& how) {
    if (!how.on.is_any() || how.on.is_anywhere()) return followers::set_demand(*this, call, how);
    auto& demands = state_->dispatch.demands();
    const auto number = detail::demand_of(demands, how);
    if (!number) {
        call.extra().bad_options = number.error();
        return;
    }
    call.demand = *number;
    call.cpus = demands.at(*number).cpus;
}

namespace detail {

[[gnu::cold, gnu::noinline]] SKEIN_INLINE void refuse_options(call_base& call) {
    const auto& bad = *call.rare->bad_options;
    error why(bad.code(), fmt::format("{} did not run: {}", call.name(), bad.text()));
    if (!bad.hint().empty()) why.with_hint(bad.hint());
    call.fail({std::move(why), nullptr});
}

[[gnu::cold, gnu::noinline]] SKEIN_INLINE void refuse_one_more(call_base& call) {
    error why(errc::exhausted,
              fmt::format("{} did not run: {} calls of {} have no outcome yet, as many as "
                          ".max_pending allows",
                          call.name(), call.queue->max_pending,
                          detail::actor_title(call.queue->id, call.queue->name, call.queue->type)));
    why.with_hint("wait for some of them first, or raise .max_pending");
    call.fail({std::move(why), nullptr});
}

/// False: its deadline is over before it begins, and it has failed with that.
[[gnu::noinline]] SKEIN_INLINE bool begin_deadline(call_base& call) {
    if (call.rare->limit <= duration::zero()) {
        const char* whose =
            call.rare->is_inherited ? "the deadline of the call that made it" : "its deadline";
        call.fail(
            {error(errc::timeout, fmt::format("{} did not run: {} was over when it was called",
                                              call.name(), whose)),
             nullptr});
        return false;
    }
    call.rare->deadline.emplace(call, [](call_base& late) {
        if (late.owner != nullptr) late.owner->deadline_passed(late);
    });
    auto& here = loop::current();
    call.rare->until = deadline_after(here.exact_now(), call.rare->limit);
    here.set_timer(*call.rare->deadline, call.rare->until);
    return true;
}

} // namespace detail

/// False: it does not run, and has failed.
SKEIN_INLINE bool runtime::prepare(detail::call_base& call) {
    call.owner = this;
    call.number = ++state_->last_call;
    ++state_->stats.submitted;
    adopt_child(call);
    if (call.rare && call.rare->bad_options) [[unlikely]] {
        detail::refuse_options(call);
        return false;
    }
    if (call.queue && ++call.queue->pending > call.queue->max_pending &&
        call.queue->max_pending != 0) [[unlikely]] {
        detail::refuse_one_more(call);
        return false;
    }
    return !call.rare || call.rare->limit == no_deadline || detail::begin_deadline(call);
}

/// A call made by a call: is cancelled with it, and ends no later.
SKEIN_INLINE void runtime::adopt_child(detail::call_base& call) {
    auto* const parent = detail::call_context::current();
    if (parent == nullptr || !parent->is_call()) return;
    const auto* const where = parent->where(); // nullptr: it has ended
    if (where == nullptr || (where != this && where != state_->home)) return;
    call.parent = counted_ptr(parent);
    parent->add_child(call);
    if (parent->who.until == time_point::max()) return;
    const duration left = parent->who.until - loop::current().exact_now();
    auto& rare = call.extra();
    if (rare.limit != no_deadline && rare.limit <= left) return;
    rare.limit = left;
    rare.is_inherited = true;
}

namespace detail {

SKEIN_INLINE void encode_head(wire::writer& to, const call_base& call, std::uint64_t incarnation,
                              bool is_worker, const sched::demand_table& demands) {
    std::string demand; // for the driver, which places the calls of workers
    const bool is_placed = call.rare && !call.rare->place.is(sched::place::kind::any);
    if (is_worker && is_placed)
        demand = demands.text(call.demand, call.rare->place.to_text());
    else if (is_worker && call.demand > sched::one_cpu && !demands.at(call.demand).is_simple)
        demand = demands.text(call.demand);
    call_head head;
    head.function = call.fn != nullptr ? call.fn->index : 0;
    head.kind = call.kind;
    head.retries = call.retries_left;
    head.cpus = call.cpus;
    head.target = call.target;
    head.demand = demand;
    if (is_worker && call.rare && call.rare->retry_on) head.retry_on = call.rare->retry_on->text();
    auto& who = head.who;
    who.id = who.trace = call_id({incarnation, call.number});
    if (call.parent) {
        who.trace = call.parent->who.trace;
        who.parent = call.parent->who.id;
    }
    const bool ends = call.rare && call.rare->deadline;
    if (ends) who.until = call.rare->until;
    head.is_told = is_worker || call.parent || ends;
    head.encode(to, ends ? loop::current().exact_now() : time_point{});
}

/// Many calls may wait: each has the bytes that it needs and no more. The memory of a large one
/// goes with it.
SKEIN_INLINE byte_buffer body_to_keep(wire::writer& written) {
    if (written.size() < limit::inline_bytes) return to_buffer(written.bytes());
    return std::move(written).take();
}

SKEIN_INLINE void call_context::cancel_children(bool by_force) {
    std::vector<counted_ptr<call_base>> all;
    while (!children_.empty()) {
        auto& child = children_.front();
        child.unlink();
        all.emplace_back(&child);
    }
    for (const auto& child : all) {
        if (!child->is_done()) children_.push_back(*child); // force may follow
        cancel_call(*child, by_force);
    }
}

} // namespace detail

namespace detail {

[[gnu::cold, gnu::noinline]] SKEIN_INLINE void refuse_arguments(call_base& call, const error& why) {
    error told(why.code(), fmt::format("{} did not run: its arguments cannot be encoded: {}",
                                       call.name(), why.text()));
    if (!why.hint().empty()) told.with_hint(std::string(why.hint()));
    call.fail({std::move(told), nullptr});
}

} // namespace detail

namespace detail {

/// Which objects are in the arguments, behind them.
[[gnu::noinline]] SKEIN_INLINE void append_objects(wire::writer& to, const call_base& call) {
    append_uses(to, call.rare->objects);
    to.change(call_head::bits_at,
              [](std::byte b) { return b | std::byte{call_head::objects_bit}; });
}

} // namespace detail

/// Appends head and arguments; false: a codec threw, and the call has failed with that.
SKEIN_INLINE bool runtime::encode_call(wire::writer& to, detail::call_base& call,
                                       detail::encoder encode) {
    struct encoding_guard {
        detail::call_base* before = encoding_;
        ~encoding_guard() { encoding_ = before; }
    };
    try {
        const encoding_guard guard;
        encoding_ = &call;
        const bool is_worker = state_->upstream != nullptr;
        if (call.kind == detail::call_kind::method && !call.rare) [[likely]] {
            detail::call_head::encode_method(to, call, state_->incarnation,
                                             is_worker || call.parent);
        } else {
            detail::encode_head(to, call, state_->incarnation, is_worker,
                                state_->dispatch.demands());
            if (call.rare && call.rare->terms) call.rare->terms->encode(to);
        }
        encode(to);
        if (call.rare && !call.rare->objects.empty()) [[unlikely]]
            detail::append_objects(to, call);
        return true;
    } catch (...) {
        detail::refuse_arguments(call, to_error(std::current_exception()));
        return false;
    }
}

SKEIN_INLINE void runtime::submit(counted_ptr<detail::call_base> call, detail::encoder encode,
                                  detail::given_maker give) {
    if (!prepare(*call)) return;
    if (call->kind == detail::call_kind::method) {
        // The common case: nothing waits, the worker is there, nothing has to be kept.
        auto& queue = *call->queue;
        if (queue.by_driver) [[unlikely]]
            look_for_way(queue);
        if (queue.first == queue.waiting.size() && queue.on != nullptr && queue.on->is_open() &&
            !queue.lasts && !state_->closing && credits::has(*state_, queue.credit) &&
            !credits::stands_aside(*state_, queue, *call)) [[likely]] {
            if (give && queue.on->role == detail::peer_role::here)
                return state_->direct->give(std::move(call), give);
            state_->scratch.clear();
            if (!encode_call(state_->scratch, *call, encode)) return;
            if (large_arguments::are(*this, *call, state_->scratch.size())) [[unlikely]]
                return large_arguments::begin(*this, call, std::move(state_->scratch).take());
            auto& raw = *call;
            raw.slot = take_slot(std::move(call));
            credits::take(*state_, *queue.on, raw, state_->scratch.size());
            if (state_->scratch.size() < limit::inline_bytes) [[likely]] {
                (void)transmit(*queue.on, raw, state_->scratch.bytes(), nullptr);
                return;
            }
            auto body = std::move(state_->scratch).take(); // its memory goes with it
            (void)transmit(*queue.on, raw, body, &body);
            return;
        }
    }
    state_->scratch.clear();
    if (!encode_call(state_->scratch, *call, encode)) return;
    if (large_arguments::are(*this, *call, state_->scratch.size())) [[unlikely]]
        return large_arguments::begin(*this, call, std::move(state_->scratch).take());
    if (call->kind == detail::call_kind::method) return credits::line_up(*this, std::move(call));
    call->body = detail::body_to_keep(state_->scratch);
    call->state = detail::phase::queued;
    place(std::move(call));
}

SKEIN_INLINE void runtime::submit_deferred(const counted_ptr<detail::call_base>& call,
                                           std::size_t pending,
                                           std::unique_ptr<detail::deferred_arguments> arguments) {
    call->extra().pending = pending;
    call->extra().arguments = std::move(arguments);
    if (!prepare(*call)) return;
    if (call->kind == detail::call_kind::method) call->queue->waiting.push_back(call);
    // Held by the refs it waits for.
}

SKEIN_INLINE void runtime::argument_ready(detail::call_base& call) {
    if (--call.rare->pending != 0 || call.is_done()) return;
    state_->ready.emplace_back(&call);
    if (std::exchange(state_->settling, true)) return; // a long chain must not become a deep stack
    for (std::size_t i = 0; i < state_->ready.size(); ++i) {
        const auto next = state_->ready[i];
        if (!next->is_done()) settle_ready(next);
    }
    state_->ready.clear();
    state_->settling = false;
}

/// All refs among a call's arguments have an outcome: it is sent, or fails with one of them.
SKEIN_INLINE void runtime::settle_ready(const counted_ptr<detail::call_base>& call) {
    const auto queue = call->queue;
    std::vector<counted_ptr<detail::call_base>> unread;
    call->rare->arguments->unread(*call, unread);
    if (!unread.empty()) [[unlikely]] {
        call->rare->pending = unread.size();
        for (const auto& one : unread) one->add_dependent(call);
        for (const auto& one : unread) one->read_value();
        return;
    }
    if (const auto* bad = call->rare->arguments->failed()) {
        // A chain of failures names its ends, not all that lies between.
        constexpr std::string_view because = "did not run: its argument failed: ";
        std::string_view root = bad->what.text();
        if (const auto at = root.rfind(because); at != root.npos)
            root.remove_prefix(at + because.size());
        const auto& of = bad->what.where(); // the call that gives the argument, and its worker
        error why(bad->what.code(), fmt::format("{} {}{}{}{}", call->name(), because, of,
                                                of.empty() ? "" : ": ", root));
        if (!bad->what.cause().empty()) why.with_cause(bad->what.cause());
        if (!bad->what.hint().empty()) why.with_hint(bad->what.hint());
        call->fail({std::move(why), bad->from});
        if (queue) drain(*queue);
        return;
    }
    state_->scratch.clear();
    auto& arguments = *call->rare->arguments;
    if (!encode_call(state_->scratch, *call, [&](wire::writer& to) { arguments.encode(to); })) {
        if (queue) drain(*queue);
        return;
    }
    call->rare->arguments.reset();
    if (large_arguments::are(*this, *call, state_->scratch.size())) [[unlikely]]
        return large_arguments::go_on(*this, call, std::move(state_->scratch).take());
    call->body = detail::body_to_keep(state_->scratch);
    call->state = detail::phase::queued;
    if (call->kind == detail::call_kind::method) {
        drain(*call->queue);
        credits::waits_here(*this, *call);
    } else {
        place(call);
    }
}

/// A call with its arguments encoded, of no actor's line: to its worker, or the queue.
SKEIN_INLINE void runtime::place(counted_ptr<detail::call_base> call) {
    if (state_->closing) return refuse(*call, is_closing(call->name()));
    if (state_->upstream != nullptr) return send(*state_->upstream, std::move(call));
    if (call->kind == detail::call_kind::method) { // passed on for a worker
        const auto* const found = state_->actors.find(call->target);
        if (found == nullptr)
            return refuse(*call,
                          error(errc::not_found, actor_title(call->target) + " is gone")
                              .with_hint("its last handle was dropped, it was killed or left, or "
                                         "its worker died"));
        if (found->where == nullptr) return state_->actors.wait_for(call->target, call);
        return send(*found->where, std::move(call));
    }
    if (state_->given_up) return refuse(*call, *state_->given_up);
    if (!state_->actors.may_go(call)) return;
    state_->begin_work();
    if (detail::demand_lines::is_lined_up(*call)) {
        if (auto* to = state_->dispatch.straight_to(*call)) return send(*to->link, std::move(call));
        state_->actors.line_up(std::move(call));
        return pump_leases();
    }
    state_->dispatch.place(std::move(call), state_->heard);
}

/// Sends what is complete at the front of an actor's line.
SKEIN_INLINE void runtime::drain(detail::actor_queue& queue) {
    const counted_ptr<detail::actor_queue> hold(&queue);
    queue.returned = 0;
    if (queue.moving && !queue.asked && state_->upstream != nullptr) find_way(queue);
    credits::send_held(*this, queue);
    while (queue.first != queue.waiting.size()) {
        auto& front = queue.waiting[queue.first];
        const bool is_done = front->is_done();
        if (!is_done && (front->state == detail::phase::preparing || queue.moving || is_cut(queue)))
            break;
        const bool goes = !is_done && !queue.lost && queue.on != nullptr;
        const bool aside = goes && credits::stands_aside(*state_, queue, *front);
        if (goes && !aside && !credits::has(*state_, queue.credit)) break;
        auto call = std::exchange(front, {});
        ++queue.first;
        if (is_done) {
            (void)credits::take_arguments(queue, *call);
            continue;
        }
        if (goes && !aside) {
            credits::look_ahead(queue);
            credits::send(*this, queue, std::move(call));
            continue;
        }
        if (call->kept != 0) call->body = to_buffer(credits::take_arguments(queue, *call));
        if (aside) {
            queue.gates[call->fn->group].waiting.push_back(std::move(call));
            continue;
        }
        if (queue.lost) {
            call->fail({error(queue.lost->what.code(),
                              call->name() + " did not run: " + queue.lost->what.text()),
                        nullptr});
        } else {
            refuse(*call, error(errc::not_found, actor_title(queue.id) + " is gone"));
        }
    }
    if (queue.first == queue.waiting.size()) queue.arguments.clear();
    constexpr std::size_t few = 64;
    if (queue.first == queue.waiting.size() ||
        (queue.first >= few && queue.first * 2 > queue.waiting.size())) {
        queue.waiting.erase(queue.waiting.begin(),
                            queue.waiting.begin() + static_cast<std::ptrdiff_t>(queue.first));
        queue.first = 0;
        if (queue.waiting.empty() && queue.waiting.capacity() > few * few)
            queue.waiting.shrink_to_fit();
    }
    credits::tell_credit(*state_, queue);
}

SKEIN_INLINE void runtime::cancel(detail::call_base& call, bool by_force) noexcept {
    const counted_ptr<detail::call_base> hold(&call);
    const bool was_sent = call.state == detail::phase::sent || call.state == detail::phase::started;
    if (was_sent && call.on == nullptr) // its answer is there, and the objects of that come
        return call.fail({error(errc::cancelled, fmt::format("{} was cancelled; its value was on "
                                                             "the way",
                                                             call.name())),
                          nullptr});
    const auto queue = call.queue;
    const bool is_free = take_back(call);
    if (!is_free && was_sent) {
        by_force = by_force && call.kind == detail::call_kind::task;
        if (std::exchange(call.extra().cancel_requested, true) && !by_force) return;
        if (call.on != nullptr && call.on->is_open())
            call.on->send(detail::message_cancel, by_force ? detail::flag_by_force : 0,
                          call.slot.value(), {});
        if (by_force) force_soon(call);
        return;
    }
    if (call.state == detail::phase::queued && call.on != nullptr) {
        call.extra().cancel_requested = true; // for lose(), which settles its link
        return;
    }
    call.fail({error(errc::cancelled,
                     fmt::format("{} was cancelled; it {}", call.name(), call.progress())),
               nullptr});
    if (queue) credits::forget(*queue, call);
    if (queue) drain(*queue);
    // No answer comes that would do so; and who waited in front of others lets them go.
    if (is_free || state_->dispatch.holds_up(call)) pump();
}

SKEIN_INLINE void runtime::deadline_passed(detail::call_base& call) {
    const counted_ptr<detail::call_base> hold(&call);
    const auto queue = call.queue;
    const bool is_free = take_back(call);
    const bool sent =
        !is_free && call.on != nullptr && call.on->is_open() && call.state != detail::phase::queued;
    // The slot stays taken until the worker answers: the late answer finds a call that is done.
    if (sent) call.on->send(detail::message_cancel, 0, call.slot.value(), {});
    if (sent && call.rare->force) end_by_force(call); // nobody can ask for it later
    call.fail(
        {error(errc::timeout,
               fmt::format("{} gave no answer within {:.3g} s{}; it {}", call.name(),
                           to_seconds(call.rare->limit),
                           call.rare->is_inherited ? ", what the call that made it had left" : "",
                           call.progress())),
         nullptr});
    if (queue && !sent) credits::forget(*queue, call);
    if (queue) drain(*queue);
    if (is_free || state_->dispatch.holds_up(call)) pump();
}

SKEIN_INLINE void runtime::give_up(error why) {
    state_->given_up = why;
    state_->groups.give_up(why);
    state_->start_workers = {};
    for (const auto& call : state_->take_waiting())
        if (!call->is_done()) refuse(*call, why);
    state_->dispatch.tell_all();
    state_->groups.fail_all(why);
}

// ---- actors ------------------------------------------------------------------------------------

SKEIN_INLINE counted_ptr<detail::actor_queue> runtime::queue_for(actor_id id) {
    auto& queue = state_->actor_queues[id];
    if (queue != nullptr) return counted_ptr<detail::actor_queue>(queue);
    queue = new detail::actor_queue;
    queue->owner = this;
    queue->id = id;
    credits::leave(*state_, *queue);
    if (state_->upstream != nullptr || state_->awaits_space_server) {
        queue->moving = true; // until it is called, see find_way()
    } else if (const auto* const found = state_->actors.find(id)) {
        queue->on = found->where;
        queue->moving = found->where == nullptr;
        queue->lasts = found->lasts();
        if (found->plan) queue->max_pending = found->plan->terms.max_pending;
        if (found->plan) queue->name = found->plan->terms.name;
    }
    return counted_ptr<detail::actor_queue>(queue);
}

/// The actor is lost: the calls that wait in its line did not run. Some of their arguments are
/// still to come; that does not matter any more.
SKEIN_INLINE void runtime::fail_queue(detail::actor_queue& queue) {
    const counted_ptr<detail::actor_queue> hold(&queue);
    const std::vector<counted_ptr<detail::call_base>> all(
        queue.waiting.begin() + static_cast<std::ptrdiff_t>(queue.first), queue.waiting.end());
    for (const auto& call : all) {
        if (!call->is_done())
            call->fail({error(queue.lost->what.code(),
                              call->name() + " did not run: " + queue.lost->what.text()),
                        nullptr});
    }
    drain(queue);
}

} // namespace skein::rt
