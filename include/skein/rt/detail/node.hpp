// SPDX-License-Identifier: Apache-2.0
#pragma once
// The machinery of rt/node.hpp.

#include <skein/rt/node.hpp>

#include <skein/core/log.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

inline void call_base::rarities::deadline_timer::passed() {
    if (call.owner != nullptr) call.owner->deadline_passed(call);
}

/// A failure whose refs are all gone is told to the log: the first ones of a thread, then ever fewer.
inline void call_base::tell_unseen() const noexcept {
    static constinit thread_local std::uint64_t unseen = 0;
    constexpr std::uint64_t all_of_the_first = 8;
    const auto code = why().what.code();
    if (code == errc::cancelled || code == errc::closed) return; // somebody asked for that
    if (++unseen > all_of_the_first && !std::has_single_bit(unseen)) return;
    try {
        logging::warn("rt",
                  fmt::format("a call failed and nobody holds its ref: {}", why().what.what()),
                  {{"failed_unseen", unseen}});
    } catch (...) { // no memory for a line
    }
}

inline void call_base::finished() {
    // A forwarded call is the business of the worker that made it.
    if (failed() && watchers_ == 0 && !nested && owner != nullptr) tell_unseen();
    if (owner != nullptr) std::exchange(owner, nullptr)->count_outcome(failure_ != nullptr);
    state = phase::done;
    if (rare && rare->deadline) rare->deadline->cancel();
    if (rare) {
        rare->kept.clear();
        rare->arguments.reset(); // a chain of calls must not be freed from its end in one go
    }
    lane = {};
    on_finished();
    while (!waiters.empty()) waiters.front().wake();
    if (rare && !rare->dependents.empty()) release_dependents();
}

inline void call_base::release_dependents() {
    for (const auto& call : std::exchange(rare->dependents, {}))
        if (call->owner != nullptr) call->owner->argument_ready(*call);
}

inline void actor_state::last_use_gone() noexcept {
    if (owner != nullptr) owner->drop_actor(*this);
    delete this;
}

inline void cancel_call(call_base& call) noexcept {
    if (call.owner != nullptr) call.owner->cancel(call);
}

/// A call of a worker that the driver passes on: its outcome goes back as a reply.
class forwarded_call : public call_base {
public:
    forwarded_call(node& self, std::shared_ptr<link> origin, std::uint64_t origin_id)
        : self_(self), origin_(std::move(origin)), origin_id_(origin_id) {}

protected:
    result<void> take_value(byte_span bytes) override {
        if (!origin_->up) return {};
        self_.reply(*origin_, origin_id_, [&](wire::writer& w) {
            if (kind == call_kind::create) {
                w.fixed(target); // the actor's new id
            } else {
                w.raw(bytes);
            }
        });
        return {};
    }
    void take_failure(const failure& why) override {
        if (origin_->up) self_.reply_failure(*origin_, origin_id_, why);
    }
    void on_finished() override { origin_->forwarded.erase(origin_id_); }

private:
    node& self_;
    std::shared_ptr<link> origin_;
    std::uint64_t origin_id_;
};

} // namespace detail

inline node::node(node_options who) {
    name_.name = std::move(who.name);
    name_.host = std::move(who.host);
    name_.pid = who.pid;
    (void)registry::instance(); // numbers the functions
}

inline node::~node() {
    SKEIN_CHECK(
        links_.empty() && upstream_ == nullptr && calls_.size() == 0,
        "a node is destroyed while it serves {} links and runs {} calls; co_await close() and "
        "the serving tasks first",
        links_.size(), calls_.size());
    give_up(error(errc::closed, "the runtime has ended"));
    for (auto& [id, lane] : lanes_) lane->owner = nullptr;
    if (current_ == this) current_ = nullptr;
}

inline std::size_t node::workers() const noexcept {
    return static_cast<std::size_t>(
        std::count_if(links_.begin(), links_.end(), [](auto& l) { return l->up; }));
}

// ---- calls of this process -------------------------------------------------------------------

inline void node::prepare(detail::call_base& call) {
    call.owner = this;
    ++stats_.submitted;
    if (call.rare && call.rare->limit > duration::zero()) {
        call.rare->deadline.emplace(call);
        auto& here = loop::current();
        here.set_timer(*call.rare->deadline, deadline_after(here.now(), call.rare->limit));
    }
}

inline void encode_head(wire::writer& to, const detail::call_base& call) {
    detail::call_head head;
    head.function = call.fn != nullptr ? call.fn->index : 0;
    head.kind = call.kind;
    head.retries = call.retries_left;
    head.cpus = call.cpus;
    head.target = call.target;
    head.encode(to);
}

/// Appends head and arguments; false: a codec threw, and the call has failed with that.
template <class Encode>
bool node::encode_call(wire::writer& to, detail::call_base& call, Encode&& encode) {
    struct encoding_guard {
        detail::call_base* before = encoding_;
        ~encoding_guard() { encoding_ = before; }
    };
    try {
        const encoding_guard guard;
        encoding_ = &call;
        encode_head(to, call);
        encode(to);
        return true;
    } catch (...) {
        const error why = to_error(std::current_exception());
        error told(why.code(), fmt::format("{} did not run: its arguments cannot be encoded: {}",
                                           call.name(), why.text()));
        call.fail({std::move(told), nullptr});
        return false;
    }
}

template <class Encode>
void node::submit(detail::counted<detail::call_base> call, Encode&& encode) {
    prepare(*call);
    if (call->kind == detail::call_kind::method) {
        // The common case: nothing waits, the worker is there, nothing has to be kept.
        auto& lane = *call->lane;
        if (lane.first == lane.waiting.size() && lane.on != nullptr && lane.on->wire->is_open() &&
            !closing_) [[likely]] {
            scratch_.clear();
            if (!encode_call(scratch_, *call, encode)) return;
            auto& raw = *call;
            raw.id = take_slot(std::move(call));
            transmit(*lane.on, raw, scratch_.bytes(), nullptr);
            return;
        }
    }
    wire::writer body;
    if (!encode_call(body, *call, encode)) return;
    call->body = std::move(body).take();
    call->state = detail::phase::queued;
    place(std::move(call));
}

inline void node::submit_deferred(detail::counted<detail::call_base> call) {
    prepare(*call);
    if (call->kind == detail::call_kind::method) call->lane->waiting.push_back(call);
    // Held by the refs it waits for.
}

inline void node::argument_ready(detail::call_base& call) {
    if (--call.rare->pending != 0 || call.is_done()) return;
    ready_.emplace_back(&call);
    if (std::exchange(settling_, true)) return; // a long chain must not become a deep stack
    for (std::size_t i = 0; i < ready_.size(); ++i) {
        const auto next = ready_[i];
        if (next->is_done()) continue;
        if (const auto* bad = next->rare->arguments->failed()) {
            // A chain of failures names its ends, not all that lies between.
            constexpr std::string_view because = "did not run: its argument failed: ";
            std::string_view root = bad->what.text();
            if (const auto at = root.rfind(because); at != root.npos)
                root.remove_prefix(at + because.size());
            error why(bad->what.code(), fmt::format("{} {}{}", next->name(), because, root));
            if (!bad->what.where().empty()) why.with_where(bad->what.where());
            if (!bad->what.cause().empty()) why.with_cause(bad->what.cause());
            if (!bad->what.hint().empty()) why.with_hint(bad->what.hint());
            const auto lane = next->lane;
            next->fail({std::move(why), bad->from});
            if (lane) drain(*lane);
            continue;
        }
        wire::writer body;
        const auto lane = next->lane;
        auto& arguments = *next->rare->arguments;
        if (!encode_call(body, *next, [&](wire::writer& to) { arguments.encode(to); })) {
            if (lane) drain(*lane);
            continue;
        }
        next->rare->arguments.reset();
        next->body = std::move(body).take();
        next->state = detail::phase::queued;
        if (next->kind == detail::call_kind::method) {
            drain(*next->lane);
        } else {
            place(next);
        }
    }
    ready_.clear();
    settling_ = false;
}

/// A call with its arguments encoded: to its worker, its lane, or the queue.
inline void node::place(detail::counted<detail::call_base> call) {
    if (closing_)
        return refuse(*call, error(errc::closed, call->name() + " was called while the runtime "
                                                                "is shutting down"));
    if (call->kind == detail::call_kind::method && call->lane) {
        const auto lane = call->lane;
        lane->waiting.push_back(std::move(call));
        return drain(*lane);
    }
    if (upstream_ != nullptr) return send(*upstream_, std::move(call));
    if (call->kind == detail::call_kind::method) { // passed on for a worker
        const auto found = actors_.find(call->target);
        if (found == actors_.end() || found->second.where == nullptr)
            return refuse(*call,
                          error(errc::not_found, fmt::format("actor {} is gone", call->target))
                              .with_hint("the last handle in the process that made it was "
                                         "dropped, or its worker died"));
        return send(*found->second.where, std::move(call));
    }
    if (given_up_) return refuse(*call, *given_up_);
    if (start_workers_) std::exchange(start_workers_, {})();
    if (call->nested || call->cpus == 0) { // must not wait behind those that wait for a free core
        bool possible = true;
        if (auto* where = pick(*call, possible)) return send(*where, std::move(call));
    }
    auto& line = call->kind == detail::call_kind::create ? creations_ : queue_;
    line.push_back(std::move(call));
    pump();
}

/// Sends what is complete at the front of an actor's line.
inline void node::drain(detail::actor_state& lane) {
    const detail::counted<detail::actor_state> hold(&lane);
    while (lane.first != lane.waiting.size()) {
        auto& front = lane.waiting[lane.first];
        if (front->state == detail::phase::preparing) break;
        auto call = std::exchange(front, {});
        ++lane.first;
        if (call->is_done()) continue;
        if (lane.lost) {
            call->fail(
                {error(errc::worker_lost, call->name() + " did not run: " + lane.lost->what.text()),
                 nullptr});
        } else if (lane.on == nullptr) {
            refuse(*call, error(errc::not_found, fmt::format("actor {} is gone", lane.id)));
        } else {
            send(*lane.on, std::move(call));
        }
    }
    if (lane.first == lane.waiting.size()) {
        lane.waiting.clear();
        lane.first = 0;
    }
}

/// Where a task or a new actor goes now; nullptr: nowhere yet, or (possible = false) never.
inline link* node::pick(const detail::call_base& call, bool& possible) {
    link* best = nullptr;
    std::uint32_t largest = 0;
    bool any = false;
    for (const auto& l : links_) {
        if (!l->up) continue;
        any = true;
        largest = std::max(largest, l->capacity);
        if (call.cpus > l->capacity) continue;
        if (call.kind == detail::call_kind::create) {
            if (best == nullptr || l->actors < best->actors) best = l.get();
            continue;
        }
        const bool room =
            call.nested || call.cpus == 0 || l->busy + call.cpus <= l->capacity * l->window;
        if (room && (best == nullptr || l->busy < best->busy)) best = l.get();
    }
    possible = !any || call.cpus <= largest;
    // An actor stays where it is put: rather wait for a worker that is about to come.
    if (best != nullptr && call.kind == detail::call_kind::create && best->actors > 0 &&
        workers() < expected_)
        return nullptr;
    return best;
}

inline void node::pump() {
    pump(creations_);
    pump(queue_);
}

inline void node::pump(std::deque<detail::counted<detail::call_base>>& line) {
    while (!line.empty()) {
        auto& front = line.front();
        if (front->is_done()) {
            line.pop_front();
            continue;
        }
        bool possible = true;
        auto* where = pick(*front, possible);
        if (where == nullptr && possible) return;
        auto call = std::move(front);
        line.pop_front();
        if (where == nullptr) {
            refuse(*call,
                   error(errc::exhausted, fmt::format("{} asks for {} cpus, more than any worker "
                                                      "has",
                                                      call->name(), call->cpus))
                       .with_hint("start fewer workers with more cores each, or lower .cpus"));
        } else {
            send(*where, std::move(call));
        }
    }
}

inline std::uint64_t node::take_slot(detail::counted<detail::call_base> call) {
    if (free_.empty()) {
        free_.push_back(static_cast<std::uint32_t>(slots_.size()));
        slots_.emplace_back();
    }
    const auto index = free_.back();
    free_.pop_back();
    slots_[index].call = std::move(call);
    return std::uint64_t{slots_[index].generation} << 32 | index;
}

/// The call of an id, taken out of its slot; nothing if it is not (or no longer) known.
inline detail::counted<detail::call_base> node::free_slot(std::uint64_t id) {
    const auto index = static_cast<std::uint32_t>(id);
    if (index >= slots_.size() || slots_[index].generation != id >> 32 || !slots_[index].call)
        return {};
    ++slots_[index].generation;
    free_.push_back(index);
    return std::move(slots_[index].call);
}

inline void node::send(link& to, detail::counted<detail::call_base> call) {
    auto& raw = *call;
    raw.id = take_slot(std::move(call));
    if (raw.kind == detail::call_kind::task && upstream_ == nullptr) {
        if (to.busy == 0) {
            to.mark = loop::current().now();
            to.finished = 0;
        }
        to.busy += raw.cpus;
    } else if (raw.kind == detail::call_kind::create && upstream_ == nullptr) {
        ++to.actors;
    }
    // Only a call that may have to run again keeps its arguments, and one that was not sent.
    const bool keep =
        raw.kind == detail::call_kind::task && raw.retries_left > 0 && upstream_ == nullptr;
    if (keep) {
        transmit(to, raw, raw.body, nullptr);
    } else {
        const detail::counted<detail::call_base> hold(&raw);
        auto body = std::move(raw.body);
        raw.body = {};
        transmit(to, raw, body, &body);
        if (raw.state == detail::phase::queued) raw.body = std::move(body);
    }
}

inline void node::transmit(link& to, detail::call_base& call, byte_span body, byte_buffer* owned) {
    call.on = &to;
    // A connection that has just broken: the call stays in its slot as "did not run" until the link
    // is settled.
    call.state = detail::phase::queued;
    if (!to.wire->is_open()) return;
    try {
        if (owned != nullptr && owned->size() >= limit::inline_bytes) {
            net::frame f;
            f.kind = detail::message_call;
            f.id = call.id;
            f.body = std::move(*owned);
            to.wire->send(std::move(f));
        } else {
            to.wire->send(detail::message_call, 0, call.id, body, {});
        }
        call.state = detail::phase::sent;
    } catch (const error& e) {
        if (e.code() != errc::too_large) return; // closed or reset: as above
        const auto held = free_slot(call.id);
        account(to, call);
        if (call.kind == detail::call_kind::create && upstream_ == nullptr) --to.actors;
        call.fail({e, nullptr});
    }
}

/// A task has left its worker: its cores are free, and the worker's pace is known better.
inline void node::account(link& from, const detail::call_base& call) {
    if (upstream_ != nullptr || call.kind != detail::call_kind::task || call.cpus == 0) return;
    from.busy -= std::min<std::uint32_t>(from.busy, call.cpus);
    const auto now = loop::current().now();
    ++from.finished;
    if (now <= from.mark) return;
    const double each = to_seconds(now - from.mark) / from.finished;
    from.service = each < from.service ? each : (from.service + each) / 2;
    from.window = static_cast<std::uint32_t>(std::clamp(1e-3 / from.service, 1.0, 1024.0));
    from.mark = now;
    from.finished = 0;
}

inline void node::cancel(detail::call_base& call) noexcept {
    const detail::counted<detail::call_base> hold(&call);
    const auto lane = call.lane;
    if (call.state == detail::phase::sent || call.state == detail::phase::started) {
        if (std::exchange(call.extra().cancel_requested, true)) return;
        if (call.on != nullptr && call.on->wire->is_open())
            call.on->wire->send(detail::message_cancel, 0, call.id, {}, {});
        return;
    }
    if (call.state == detail::phase::queued && call.on != nullptr) {
        call.extra().cancel_requested = true; // for lose(), which settles its link
        return;
    }
    call.fail({error(errc::cancelled,
                     fmt::format("{} was cancelled; it {}", call.name(), call.progress())),
               nullptr});
    if (lane) drain(*lane);
}

inline void node::deadline_passed(detail::call_base& call) {
    const detail::counted<detail::call_base> hold(&call);
    const auto lane = call.lane;
    const bool sent =
        call.on != nullptr && call.on->wire->is_open() && call.state != detail::phase::queued;
    // The slot stays taken until the worker answers: the late answer finds a call that is done.
    if (sent) call.on->wire->send(detail::message_cancel, 0, call.id, {}, {});
    call.fail(
        {error(errc::timeout, fmt::format("{} gave no answer within {:.3g} s; it {}", call.name(),
                                          to_seconds(call.rare->limit), call.progress())),
         nullptr});
    if (lane) drain(*lane);
}

inline void node::give_up(error why) {
    given_up_ = why;
    start_workers_ = {};
    for (auto* line : {&creations_, &queue_})
        for (auto& call : std::exchange(*line, {}))
            if (!call->is_done()) refuse(*call, why);
}

// ---- actors ------------------------------------------------------------------------------------

inline detail::counted<detail::actor_state> node::actor_lane(std::uint64_t id) {
    auto& lane = lanes_[id];
    if (lane != nullptr) return detail::counted<detail::actor_state>(lane);
    lane = new detail::actor_state;
    lane->owner = this;
    lane->id = id;
    if (upstream_ != nullptr) {
        lane->on = upstream_;
    } else if (const auto found = actors_.find(id); found != actors_.end()) {
        lane->on = found->second.where;
    }
    return detail::counted<detail::actor_state>(lane);
}

inline void node::drop_actor(detail::actor_state& lane) noexcept {
    lanes_.erase(lane.id);
    if (!lane.owned || lane.on == nullptr) return;
    if (upstream_ == nullptr) {
        --lane.on->actors;
        actors_.erase(lane.id);
    }
    if (lane.on->wire->is_open()) lane.on->wire->send(detail::message_drop, 0, lane.id, {}, {});
}

/// The actor is lost: the calls that wait in its line did not run. Some of their arguments are still
/// to come; that does not matter any more.
inline void node::fail_lane(detail::actor_state& lane) {
    const detail::counted<detail::actor_state> hold(&lane);
    for (std::size_t i = lane.first; i < lane.waiting.size(); ++i) {
        const auto call = lane.waiting[i];
        if (call && !call->is_done())
            call->fail(
                {error(errc::worker_lost, call->name() + " did not run: " + lane.lost->what.text()),
                 nullptr});
    }
    drain(lane);
}

} // namespace skein::rt

#include <skein/rt/detail/node_links.hpp> // IWYU pragma: keep
