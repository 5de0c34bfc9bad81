// SPDX-License-Identifier: Apache-2.0
#pragma once
// The other half of node.hpp: links to other processes, and the frames that come over them.

#include <skein/rt/detail/node.hpp>

namespace skein::rt {

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

namespace detail {

/// What a worker took along, to be told in the error of each call among it.
class loss_report {
public:
    static constexpr const char* runs_again = "runs again";

    void add(const char* state, std::string name) { ++lost_[{state, std::move(name)}]; }
    /// "; lost with it: f(int) x2 (may have run), g() (did not run)": all but one call of that name.
    [[nodiscard]] const std::string& others(const char* state, const std::string& name) {
        constexpr std::size_t shown = 8;
        const key self(state, name);
        auto [at, is_new] = told_.try_emplace(self);
        if (!is_new) return at->second;
        std::size_t listed = 0, left_out = 0;
        for (const auto& [other, all] : lost_) {
            const std::size_t n = all - (other == self ? 1 : 0);
            if (n == 0) continue;
            if (listed == shown) {
                left_out += n;
                continue;
            }
            at->second +=
                fmt::format("{}{}{} ({})", listed++ == 0 ? "; lost with it: " : ", ", other.second,
                            n == 1 ? "" : fmt::format(" x{}", n), other.first);
        }
        if (left_out > 0) at->second += fmt::format(", and {} more", left_out);
        return at->second;
    }

private:
    using key = std::pair<std::string_view, std::string>; // how far it got, its name
    std::map<key, std::size_t> lost_;
    std::map<key, std::string> told_;
};

} // namespace detail

/// Its cancellation was on the way to the worker that is lost.
inline bool is_unwanted(const detail::call_base& call) noexcept {
    return call.rare && call.rare->cancel_requested;
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
    detail::loss_report report;
    for (auto& s : slots_) {
        if (!s.call || s.call->on != &l) continue;
        auto call = free_slot(s.call->id);
        if (call->is_done()) continue;
        const bool sent = call->state != detail::phase::queued;
        const bool is_task = call->kind == detail::call_kind::task;
        if (upstream_ == nullptr && !closing_ && !is_unwanted(*call) && is_task &&
            (call->retries_left > 0 || (!sent && !call->body.empty()))) {
            if (sent) {
                --call->retries_left;
                ++call->lost_attempts;
            }
            report.add(detail::loss_report::runs_again, call->name());
            again.push_back(std::move(call));
            continue;
        }
        if (call->kind == detail::call_kind::create) actors_.erase(call->target);
        if (sent && is_task) ++call->lost_attempts;
        report.add(call->progress(), call->name());
        dead.push_back(std::move(call));
    }
    const std::string summary = fmt::format("{} was lost: {}", l.who, how);

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
        const auto code = is_unwanted(*call)                 ? errc::cancelled
                          : upstream_ != nullptr || closing_ ? errc::closed
                                                             : errc::worker_lost;
        const auto name = call->name();
        std::string text = fmt::format("{} {}: {}", name, call->progress(), summary);
        if (call->lost_attempts > 1)
            text +=
                fmt::format("; {} attempts were made, each lost its worker", call->lost_attempts);
        text += report.others(call->progress(), name);
        call->fail({error(code, std::move(text)), nullptr});
    }
    for (const auto& lane : gone) fail_lane(*lane);
    for (const auto id : orphaned) {
        auto* where = actors_[id].where;
        actors_.erase(id);
        if (where == nullptr) continue; // its constructor runs: settle_create() drops it
        --where->actors;
        if (where->wire->is_open()) where->wire->send(detail::message_drop, 0, id, {}, {});
    }
    // Calls that run again go first; before them those that need no free core: a call that holds one
    // may wait for them.
    const auto needs_no_core = [](const auto& c) { return c->nested || c->cpus == 0; };
    std::vector<detail::counted<detail::call_base>> urgent, others;
    for (const auto& call : again) {
        ++stats_.retried;
        call->on = nullptr;
        call->state = detail::phase::queued;
        (needs_no_core(call) ? urgent : others).push_back(call);
    }
    const auto behind = std::find_if_not(queue_.begin(), queue_.end(), needs_no_core);
    queue_.insert(behind, others.begin(), others.end());
    queue_.insert(queue_.begin(), urgent.begin(), urgent.end());
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
    default:
        throw error(errc::malformed,
                    fmt::format("frame of unknown kind {} from {}", f.kind, from->who));
    }
}

inline void node::on_reply(link& from, const net::frame_view& f) {
    const auto call = free_slot(f.id);
    if (!call) return;
    account(from, *call);
    if (call->kind == detail::call_kind::create && upstream_ == nullptr)
        settle_create(from, *call, f.flags);
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
    const auto lane = lanes_.find(call.target);   // made by this process
    const bool wanted =
        call.nested ? known != actors_.end() : lane != lanes_.end() && !call.is_done();
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
        std::memcpy(call->body.data() + detail::call_head::bytes - sizeof call->target,
                    &call->target, sizeof call->target);
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
            const error gone =
                error(errc::not_found, fmt::format("actor {} is gone", head.target))
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
    struct executing_guard {
        node* before = executing_;
        ~executing_guard() { executing_ = before; }
    } const guard;
    executing_ = this;
    fn->invoke(call);
}

inline task<void> node::execute_later(std::shared_ptr<link> from, std::uint64_t id,
                                      byte_buffer body, std::shared_ptr<detail::actor_box> box) {
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
