// SPDX-License-Identifier: Apache-2.0
#pragma once
// The machinery of rt/node.hpp.

#include <skein/rt/node.hpp>

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

inline void call_base::rarities::deadline_timer::passed() {
    if (call.owner != nullptr) call.owner->deadline_passed(call);
}

inline void call_base::finished() {
    if (owner != nullptr) std::exchange(owner, nullptr)->count_outcome(failure_ != nullptr);
    state = phase::done;
    if (rare && rare->deadline) rare->deadline->cancel();
    if (rare) rare->kept.clear();
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
    SKEIN_CHECK(links_.empty() && upstream_ == nullptr && calls_.size() == 0,
                "a node is destroyed while it serves {} links and runs {} calls; co_await close() and "
                "the serving tasks first", links_.size(), calls_.size());
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
        loop::current().set_timer(*call.rare->deadline, loop::current().now() + call.rare->limit);
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

template <class Encode>
void node::submit(detail::counted<detail::call_base> call, Encode&& encode) {
    prepare(*call);
    if (call->kind == detail::call_kind::method) {
        // The common case: nothing waits, the worker is there, nothing has to be kept.
        auto& lane = *call->lane;
        if (lane.first == lane.waiting.size() && lane.on != nullptr && lane.on->wire->is_open() &&
            !closing_) [[likely]] {
            scratch_.clear();
            encode_head(scratch_, *call);
            encode(scratch_);
            auto& raw = *call;
            raw.id = take_slot(std::move(call));
            transmit(*lane.on, raw, scratch_.bytes(), nullptr);
            return;
        }
    }
    wire::writer body;
    encode_head(body, *call);
    encode(body);
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
            error why(bad->what.code(), fmt::format("{} did not run: its argument failed: {}",
                                                    next->name(), bad->what.text()));
            if (!bad->what.where().empty()) why.with_where(bad->what.where());
            if (!bad->what.cause().empty()) why.with_cause(bad->what.cause());
            if (!bad->what.hint().empty()) why.with_hint(bad->what.hint());
            const auto lane = next->lane;
            next->fail({std::move(why), bad->from});
            if (lane) drain(*lane);
            continue;
        }
        wire::writer body;
        encode_head(body, *next);
        next->rare->arguments->encode(body);
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
    if (closing_) return refuse(*call, error(errc::closed, call->name() + " was called while the runtime "
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
            return refuse(*call, error(errc::not_found, fmt::format("actor {} is gone", call->target))
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
            call->fail({error(errc::worker_lost, call->name() + " did not run: " + lane.lost->what.text()),
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
        const bool room = call.nested || call.cpus == 0 ||
                          l->busy + call.cpus <= l->capacity * l->window;
        if (room && (best == nullptr || l->busy < best->busy)) best = l.get();
    }
    possible = !any || call.cpus <= largest;
    // An actor stays where it is put: rather wait for a worker that is about to come.
    if (best != nullptr && call.kind == detail::call_kind::create && best->actors > 0 && workers() < expected_)
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
            refuse(*call, error(errc::exhausted, fmt::format("{} asks for {} cpus, more than any worker "
                                                             "has", call->name(), call->cpus))
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
    if (index >= slots_.size() || slots_[index].generation != id >> 32 || !slots_[index].call) return {};
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
    // Only a call that may have to run again keeps its arguments.
    const bool keep = raw.kind == detail::call_kind::task && raw.retries_left > 0 && upstream_ == nullptr;
    if (keep) {
        transmit(to, raw, raw.body, nullptr);
    } else {
        auto body = std::move(raw.body);
        raw.body = {};
        transmit(to, raw, body, &body);
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
    if (call.state == detail::phase::queued && call.on != nullptr) return; // its link is being settled
    call.fail({error(errc::cancelled, fmt::format("{} was cancelled; it {}", call.name(), call.progress())),
               nullptr});
    if (lane) drain(*lane);
}

inline void node::deadline_passed(detail::call_base& call) {
    const detail::counted<detail::call_base> hold(&call);
    const auto lane = call.lane;
    const bool sent = call.on != nullptr && call.on->wire->is_open() && call.state != detail::phase::queued;
    // The slot stays taken until the worker answers: the late answer finds a call that is done.
    if (sent) call.on->wire->send(detail::message_cancel, 0, call.id, {}, {});
    call.fail({error(errc::timeout, fmt::format("{} gave no answer within {:.3g} s; it {}", call.name(),
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
            call->fail({error(errc::worker_lost, call->name() + " did not run: " + lane.lost->what.text()),
                        nullptr});
    }
    drain(lane);
}

// ---- links -------------------------------------------------------------------------------------

inline std::shared_ptr<link> node::attach(std::shared_ptr<net::connection> wire) {
    auto l = std::make_shared<link>();
    l->wire = std::move(wire);
    l->number = ++last_link_;
    const auto& peer = l->wire->peer();
    l->who = fmt::format("{} (pid {} at {})", peer.name, peer.pid, peer.host);
    if (const auto hello = wire::decode<detail::worker_hello>(peer.extra))
        l->capacity = std::max<std::uint32_t>(1, hello->cpus);
    const std::weak_ptr<link> weak = l;
    l->wire->set_closed_handler([weak](const error* why) {
        if (const auto here = weak.lock()) {
            here->orderly = why == nullptr;
            if (why != nullptr) here->why = *why;
            here->up = false;
            here->ended.set();
        }
    });
    l->wire->set_handler([this, weak](const net::frame_view& f) {
        if (const auto here = weak.lock()) on_frame(here, f);
    });
    return l;
}

inline task<void> node::wait_end(std::shared_ptr<link> l) {
    try {
        co_await l->ended.wait();
    } catch (const error&) { // cancelled
        l->wire->abort(cancelled_error());
        l->up = false;
    }
}

inline task<void> node::serve_worker(std::shared_ptr<net::connection> wire, obituary after) {
    SKEIN_CHECK(upstream_ == nullptr, "a worker cannot have workers of its own");
    auto l = attach(std::move(wire));
    links_.push_back(l);
    pump();
    auto ended = wait_end(l);
    co_await ended;

    std::string how = l->orderly ? "it left" : l->why.what();
    if (after) {
        auto asked = after(*l);
        auto sure = shield(std::move(asked));
        auto said = co_await sure;
        if (!said.empty()) how = std::move(said);
    }
    std::erase(links_, l);
    lose(*l, how);
    pump();
}

inline task<void> node::serve_driver(std::shared_ptr<net::connection> wire) {
    SKEIN_CHECK(links_.empty() && upstream_ == nullptr, "a worker has one driver");
    auto l = attach(std::move(wire));
    upstream_ = l.get();
    auto ended = wait_end(l);
    co_await ended;

    closing_ = true;
    calls_.cancel();
    try {
        auto joined = calls_.join();
        auto sure = shield(std::move(joined));
        co_await sure;
    } catch (...) { // a call's own errors were told to the driver
    }
    lose(*l, "the driver has gone");
    boxes_.clear();
    upstream_ = nullptr;
}

inline task<void> node::close() {
    closing_ = true;
    const error why(errc::closed, "the program ended before the call was done");
    start_workers_ = {};
    for (auto* line : {&creations_, &queue_})
        for (auto& call : std::exchange(*line, {}))
            if (!call->is_done()) refuse(*call, why);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const auto call = slots_[i].call;
        if (call && !call->is_done()) call->fail({why, nullptr});
    }
    scope goodbyes;
    auto open = links_;
    for (const auto& l : open) goodbyes.spawn(l->wire->close());
    auto joined = goodbyes.join();
    auto sure = shield(std::move(joined));
    co_await sure;
}

/// Settles everything that a broken link took along: calls run again, or fail and say how far they got.
inline void node::lose(link& l, const std::string& how) {
    if (upstream_ == nullptr && !closing_) ++stats_.workers_lost;
    l.up = false;

    // What ran here for that peer ends; what the driver passed on for it is of no use to anybody.
    for (auto& [id, call] : l.running) call.stop.request();
    std::vector<detail::counted<detail::call_base>> orphans;
    for (auto& [id, call] : l.forwarded) orphans.emplace_back(call);
    for (const auto& call : orphans)
        if (!call->is_done()) cancel(*call);

    std::vector<detail::counted<detail::call_base>> again, dead;
    std::map<std::string, std::size_t> did_not, may_have, had;
    for (auto& s : slots_) {
        if (!s.call || s.call->on != &l) continue;
        auto call = free_slot(s.call->id);
        if (call->is_done()) continue;
        const bool sent = call->state != detail::phase::queued;
        const bool is_task = call->kind == detail::call_kind::task;
        if (upstream_ == nullptr && !closing_ && ((is_task && call->retries_left > 0) || (!sent && is_task && !call->body.empty()))) {
            if (sent) {
                --call->retries_left;
                call->ran_before = true;
            }
            again.push_back(std::move(call));
            continue;
        }
        if (call->kind == detail::call_kind::create) actors_.erase(call->target);
        auto& names = call->state == detail::phase::started ? had
                      : sent || call->ran_before          ? may_have
                                                          : did_not;
        ++names[call->name()];
        dead.push_back(std::move(call));
    }

    std::string summary = fmt::format("{} was lost: {}", l.who, how);
    std::string list;
    for (const auto& [label, names] : {std::pair<const char*, const std::map<std::string, std::size_t>&>(
                                           "did not run", did_not),
                                       {"may have run", may_have},
                                       {"had started", had}}) {
        if (names.empty()) continue;
        list += fmt::format("{}{}:", list.empty() ? "" : "; ", label);
        std::size_t shown = 0;
        for (const auto& [name, n] : names) {
            if (++shown > 8) {
                list += " ...";
                break;
            }
            list += n == 1 ? fmt::format(" {}", name) : fmt::format(" {} x{}", name, n);
        }
    }
    if (!again.empty()) list += fmt::format("{}run again: {} tasks", list.empty() ? "" : "; ", again.size());

    // The actors are gone before any call fails: what that sets free must not go to the dead link.
    const failure lost{error(errc::worker_lost, summary), nullptr};
    std::vector<std::uint64_t> orphaned;
    std::vector<detail::counted<detail::actor_state>> gone;
    if (upstream_ == nullptr) {
        for (const auto& [id, entry] : actors_)
            if (entry.where != &l && entry.owner == l.number) orphaned.push_back(id);
        std::erase_if(actors_, [&](const auto& item) { return item.second.where == &l; });
    }
    for (const auto& [id, lane] : lanes_)
        if (lane->on == &l) gone.emplace_back(lane);
    std::sort(gone.begin(), gone.end(), [](auto& a, auto& b) { return a->id < b->id; });
    std::sort(orphaned.begin(), orphaned.end());
    for (const auto& lane : gone) {
        lane->on = nullptr;
        lane->lost = lost;
    }

    for (const auto& call : dead) {
        const auto code = upstream_ != nullptr || closing_ ? errc::closed : errc::worker_lost;
        error why(code, fmt::format("{} {}: {}", call->name(), call->progress(), summary));
        if (dead.size() > 1 || !again.empty()) why.with_cause("calls lost with it: " + list);
        call->fail({std::move(why), nullptr});
    }
    for (const auto& lane : gone) fail_lane(*lane);
    for (const auto id : orphaned) {
        auto* where = actors_[id].where;
        actors_.erase(id);
        if (where == nullptr) continue; // its constructor runs: settle_create() drops it
        --where->actors;
        if (where->wire->is_open()) where->wire->send(detail::message_drop, 0, id, {}, {});
    }
    // Calls that run again go first, in the order in which they were made.
    for (auto it = again.rbegin(); it != again.rend(); ++it) {
        ++stats_.retried;
        (*it)->on = nullptr;
        (*it)->state = detail::phase::queued;
        queue_.push_front(*it);
    }
}

// ---- frames ------------------------------------------------------------------------------------

inline void node::on_frame(const std::shared_ptr<link>& from, const net::frame_view& f) {
    switch (f.kind) {
    case detail::message_reply: return on_reply(*from, f);
    case detail::message_call:
        if (upstream_ == nullptr) return forward(*from, f);
        return execute(from, f.id, f.body, nullptr);
    case detail::message_started: {
        const auto index = static_cast<std::uint32_t>(f.id);
        if (index < slots_.size() && slots_[index].generation == f.id >> 32 && slots_[index].call &&
            slots_[index].call->state == detail::phase::sent)
            slots_[index].call->state = detail::phase::started;
        return;
    }
    case detail::message_cancel:
        if (const auto found = from->running.find(f.id); found != from->running.end())
            found->second.stop.request();
        if (const auto found = from->forwarded.find(f.id); found != from->forwarded.end())
            cancel(*found->second);
        return;
    case detail::message_drop: {
        if (upstream_ != nullptr) {
            boxes_.erase(f.id);
            return;
        }
        const auto found = actors_.find(f.id);
        if (found == actors_.end() || found->second.owner != from->number) return;
        auto* where = found->second.where;
        actors_.erase(found);
        if (where == nullptr) return;
        --where->actors;
        if (where->wire->is_open()) where->wire->send(detail::message_drop, 0, f.id, {}, {});
        return;
    }
    default: throw error(errc::malformed, fmt::format("frame of unknown kind {} from {}", f.kind, from->who));
    }
}

inline void node::on_reply(link& from, const net::frame_view& f) {
    const auto call = free_slot(f.id);
    if (!call) return;
    account(from, *call);
    if (call->kind == detail::call_kind::create && upstream_ == nullptr) settle_create(from, *call, f.flags);
    if (!call->is_done()) {
        if (f.flags == detail::reply_ok) {
            call->finish_with_bytes(f.body);
        } else {
            call->fail(detail::decode_failure(f.body));
        }
    }
    if (!queue_.empty() || !creations_.empty()) pump();
}

/// Driver: an actor was made, or its constructor threw.
inline void node::settle_create(link& from, const detail::call_base& call, std::uint16_t outcome) {
    const auto known = actors_.find(call.target); // made by a worker that is still there
    const auto lane = lanes_.find(call.target);          // made by this process
    const bool wanted = call.nested ? known != actors_.end() : lane != lanes_.end() && !call.is_done();
    if (outcome == detail::reply_ok && wanted) {
        actors_[call.target].where = &from;
        if (lane != lanes_.end()) lane->second->on = &from;
        return;
    }
    if (known != actors_.end()) actors_.erase(known);
    --from.actors;
    if (outcome == detail::reply_ok && from.wire->is_open())
        from.wire->send(detail::message_drop, 0, call.target, {}, {});
}

/// Driver: a call of a worker goes on to where it belongs.
inline void node::forward(link& from, const net::frame_view& f) {
    wire::reader in(f.body);
    detail::call_head head;
    const auto* fn = head.decode(in) ? registry::instance().at(head.function) : nullptr;
    if (fn == nullptr)
        throw error(errc::malformed, fmt::format("a call that cannot be read from {}", from.who));
    std::shared_ptr<link> origin;
    for (const auto& l : links_)
        if (l.get() == &from) origin = l;
    if (!origin) return;
    detail::counted<detail::call_base> call(new detail::forwarded_call(*this, origin, f.id));
    call->fn = fn;
    call->kind = head.kind;
    call->cpus = head.cpus;
    call->retries_left = head.kind == detail::call_kind::task ? head.retries : 0;
    call->target = head.target;
    call->nested = true;
    call->body = f.take_body();
    if (head.kind == detail::call_kind::create) {
        call->target = new_actor_id();
        actors_[call->target] = {nullptr, from.number};
        std::memcpy(call->body.data() + detail::call_head::bytes - sizeof call->target, &call->target,
                    sizeof call->target);
    }
    from.forwarded[f.id] = call.get();
    prepare(*call);
    call->state = detail::phase::queued;
    place(std::move(call));
}

template <class Encode>
void node::reply(link& to, std::uint64_t id, Encode&& encode) {
    if (!to.wire->is_open()) return;
    scratch_.clear();
    encode(scratch_);
    to.wire->send(detail::message_reply, detail::reply_ok, id, scratch_.bytes(), {});
}

inline void node::reply_failure(link& to, std::uint64_t id, const failure& why) {
    if (!to.wire->is_open()) return;
    scratch_.clear();
    detail::encode_failure(scratch_, why);
    to.wire->send(detail::message_reply, detail::reply_failed, id, scratch_.bytes(), {});
}

/// Worker: runs one call. box: the actor, if the call has waited for its turn. A plain call that has
/// just arrived lets coroutine calls of its actor go first that have not started yet; coroutine calls
/// start from the run queue, so in order.
inline void node::execute(const std::shared_ptr<link>& from, std::uint64_t id, byte_span body,
                          std::shared_ptr<detail::actor_box> box) {
    wire::reader in(body);
    detail::call_head head;
    const auto* fn = head.decode(in) ? registry::instance().at(head.function) : nullptr;
    if (fn == nullptr)
        throw error(errc::malformed, fmt::format("a call that cannot be read from {}", from->who));
    if (head.kind == detail::call_kind::method && !box) {
        const auto found = boxes_.find(head.target);
        if (found == boxes_.end()) {
            const error gone = error(errc::not_found, fmt::format("actor {} is gone", head.target))
                                   .with_hint("the last handle in the process that made it was dropped");
            return reply_failure(*from, id, {gone, nullptr});
        }
        box = found->second;
        if (box->not_started > 0 && !fn->is_coroutine) {
            ++box->not_started;
            calls_.spawn(execute_later(from, id, to_buffer(body), std::move(box)));
            return;
        }
    }
    ++stats_.executed;
    detail::incoming_call call{*this, from, id, *fn, head.target, in, std::move(box)};
    const auto before = std::exchange(executing_, this);
    fn->invoke(call);
    executing_ = before;
}

inline task<void> node::execute_later(std::shared_ptr<link> from, std::uint64_t id, byte_buffer body,
                                      std::shared_ptr<detail::actor_box> box) {
    --box->not_started;
    execute(from, id, body, std::move(box));
    co_return;
}

inline void node::start(detail::incoming_call& call, task<void> work) {
    auto& running = call.from->running[call.id];
    auto guarded = with_cancel(running.stop.token(), std::move(work));
    calls_.spawn(run_call(call.from, call.id, std::move(guarded)));
    fresh_.push_back(call.id);
    if (fresh_.size() == 1) calls_.spawn(tell_started(call.from));
}

inline task<void> node::run_call(std::shared_ptr<link> from, std::uint64_t id, task<void> work) {
    co_await work;
    from->running.erase(id);
}

/// Runs after the first steps of the calls that have just started: those that are not done by then
/// have suspended, and their submitter is told.
inline task<void> node::tell_started(std::shared_ptr<link> to) {
    co_await yield();
    for (const auto id : std::exchange(fresh_, {})) {
        const auto found = to->running.find(id);
        if (found == to->running.end() || found->second.told || !to->wire->is_open()) continue;
        found->second.told = true;
        to->wire->send(detail::message_started, 0, id, {}, {});
    }
    co_return;
}

} // namespace skein::rt
