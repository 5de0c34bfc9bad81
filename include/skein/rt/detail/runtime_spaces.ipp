// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: namespaces, whose actors outlive the programs that made
// them. Their space server is a driver without an app; processes of programs are its space clients:
// workers on which nothing runs. docs/design/0018-detached-actors.md, docs/design/0022-space
// clients.md

#include <skein/core/awaitable.hpp>
#include <skein/core/backoff.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/link.hpp>
#include <skein/rt/detail/direct_state.hpp>
#include <skein/rt/detail/runtime_state.hpp>
#include <skein/rt/detail/space_state.hpp>
#include <skein/rt/ref.hpp>
#include <skein/rt/worker_link.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE task<runtime*> runtime::enter_space(std::string space) {
    if (space.empty() || space.size() > detail::actor_terms::longest_name)
        throw error(errc::invalid_argument,
                    fmt::format("a namespace has 1 to {} bytes, not {}",
                                detail::actor_terms::longest_name, space.size()));
    if (state_->closing) throw is_closing("get_actor");
    if (detail::space_state::space_server_of(*this) != 0 && state_->space == space)
        co_return this; // an actor of that namespace asks
    if (state_->upstream == nullptr) {
        auto* const source = state_->dispatch.source();
        if (source == nullptr) throw is_closing("get_actor");
        if (source->has_spaces() && state_->start_workers) {
            state_->is_visiting = true;
            source->serve_spaces_only();
            const task_context::use none(nullptr); // it does not belong to who asks first
            std::exchange(state_->start_workers, {})();
        }
    }
    auto entered = detail::space_state::enter(&detail::space_state::of(*this), std::move(space));
    co_return co_await std::move(entered);
}

SKEIN_INLINE void runtime::keep_space(std::string space) {
    state_->space = std::move(space);
    state_->dispatch.serve_apart();
}

SKEIN_INLINE void tell_space_server_ended(runtime& driver, const std::string& space,
                                          std::uint64_t space_server, const std::string& how) {
    detail::space_state::of(driver).lost(space, space_server, how);
}

SKEIN_INLINE error runtime::is_closing(const std::string& call) const {
    if (!state_->space_server_end)
        return error(errc::closed, call + " was called while the runtime is shutting down");
    return error(errc::worker_lost,
                 fmt::format("{} did not run: {}", call, state_->space_server_end->text()))
        .with_hint(std::string(state_->space_server_end->hint()));
}

SKEIN_INLINE std::size_t runtime::known_actors() const noexcept { return state_->actors.size(); }
SKEIN_INLINE std::size_t runtime::space_clients() const noexcept {
    return static_cast<std::size_t>(std::count_if(state_->links.begin(), state_->links.end(),
                                                  [](auto& l) { return l->is_space_client; }));
}

namespace detail {

SKEIN_INLINE runtime& space_state::home_of(runtime& any) noexcept {
    return any.state_->home != nullptr ? *any.state_->home : any;
}
SKEIN_INLINE space_state& space_state::of(runtime& any) {
    auto& home = home_of(any);
    auto& mine = home.state_->spaces;
    if (!mine) mine = std::make_unique<space_state>(home);
    return *mine;
}
SKEIN_INLINE std::uint64_t space_state::space_server_of(const runtime& any) noexcept {
    return any.state_->space.empty() ? 0 : any.state_->space_server;
}
SKEIN_INLINE const std::string& space_state::name_of(const runtime& any) noexcept {
    return any.state_->space;
}
SKEIN_INLINE void space_state::meet(runtime& worker, const net::channel& wire) {
    auto& state = *worker.state_;
    const auto hello = wire::decode<worker_hello>(wire.peer().extra);
    if (!hello || hello->space.empty() || state.home != nullptr) return;
    state.space = hello->space;
    state.space_server = hello->incarnation;
}

SKEIN_INLINE task<void> pause_for(duration d) { co_await sleep_for(d); }

// ---- the way to a namespace --------------------------------------------------------------------

SKEIN_INLINE task<runtime*> space_state::enter(space_state* b, std::string space) {
    if (const auto found = b->present.find(space); found != b->present.end()) {
        const auto v = found->second;
        const bool lives = !v->is_over && !v->told.is_set() && v->wire && v->wire->is_open();
        if (lives) co_return v->self.get();
        if (!v->is_over) { // it is ending; who asks now finds the next one
            auto ending = v->over.wait();
            co_await ending;
        }
    }
    if (b->closing) throw error(errc::closed, "a namespace was asked for while the program ends");
    auto& known = b->arriving[space];
    if (!known) {
        known = std::make_shared<arrival>();
        const task_context::use none(nullptr); // it belongs to nobody who asks
        b->tasks.spawn(arrive(b, space, known));
    }
    const auto a = known;
    auto waiting = a->done.wait();
    co_await waiting;
    if (a->failed) throw error(*a->failed);
    co_return a->got->self.get();
}

/// Who asks first starts it; it goes on also if he does not wait for it.
SKEIN_INLINE task<void> space_state::arrive(space_state* b, std::string space,
                                            std::shared_ptr<arrival> into) {
    const auto most = time_constants::lan().space_enter;
    const auto last = deadline_after(loop::current().now(), most);
    backoff pauses(std::chrono::milliseconds(5), std::chrono::milliseconds(200));
    try {
        for (;;) {
            auto finding = find(b, space, 0);
            auto place = co_await finding;
            const auto space_server = place.space_server;
            const auto v = b->visit_of(space, space_server, std::move(place));
            auto waiting = v->settled.wait();
            co_await waiting;
            if (!v->is_over) {
                into->got = b->present[space] = v;
                break;
            }
            if (v->failed && !net::reconnect_policy::is_transient(v->failed->code()) &&
                v->failed->code() != errc::timeout && v->failed->code() != errc::worker_lost)
                throw error(*v->failed);
            if (loop::current().now() >= last)
                throw error(
                    errc::timeout,
                    fmt::format("namespace \"{}\" was not reached within {:.0f} s: {}", space,
                                to_seconds(most),
                                v->failed ? v->failed->what() : "its space server has ended"));
            auto sleeping = with_cancel(b->stop.token(), pause_for(pauses.next()));
            co_await sleeping;
        }
    } catch (...) {
        into->failed = to_error(std::current_exception());
        if (b->closing)
            into->failed = error(errc::closed, "a namespace was asked for while the program ends");
    }
    b->arriving.erase(space);
    into->done.set();
}

/// Where a space server is, as the head knows.
SKEIN_INLINE task<space_place> space_state::find(space_state* b, std::string space,
                                                 std::uint64_t space_server) {
    if (b->closing) throw error(errc::closed, "the program ends");
    auto& state = *b->home.state_;
    if (state.upstream != nullptr) {
        auto asking = with_cancel(b->stop.token(),
                                  ask_driver(b, space_question{std::move(space), space_server}));
        co_return co_await std::move(asking);
    }
    auto* const source = state.dispatch.source();
    if (source == nullptr) throw error(errc::closed, "the program ends");
    auto asking = with_cancel(b->stop.token(), source->find_space(std::move(space), space_server));
    co_return co_await std::move(asking);
}

SKEIN_INLINE space_state::visit_ptr space_state::visit_of(const std::string& space,
                                                          std::uint64_t space_server,
                                                          std::optional<space_place> place) {
    auto& known = visits[{space, space_server}];
    // With a place the head says that it lives, whatever was told before.
    if (known && (!known->is_over || (known->told.is_set() && !place))) return known;
    if (known) past.push_back(known);
    auto v = std::make_shared<space_visit>();
    known = v;
    v->space = space;
    v->space_server = space_server;
    v->place = std::move(place);
    const auto& here = home.name();
    runtime_options who;
    who.name = fmt::format("{}{}", space_client_name, here.name);
    who.host = here.host;
    who.pid = here.pid;
    while (who.incarnation == 0) who.incarnation = loop::current().random().next();
    v->self = std::make_unique<runtime>(who);
    auto& space_client = *v->self->state_;
    space_client.home = &home;
    space_client.space = space;
    space_client.space_server = space_server;
    space_client.awaits_space_server = true;
    if (closing) {
        give_up(*v, error(errc::closed, "the program ends"));
    } else {
        const task_context::use none(nullptr); // it belongs to no call
        tasks.spawn(reach(this, v));
    }
    return v;
}

SKEIN_INLINE counted_ptr<actor_queue> space_state::queue_of(const std::string& space,
                                                            std::uint64_t space_server, actor_id id,
                                                            std::uint32_t max_pending) {
    if (space_server_of(home) == space_server && name_of(home) == space)
        return home.borrow_actor(id, max_pending);
    const auto v = visit_of(space, space_server, std::nullopt);
    auto queue = v->self->borrow_actor(id, max_pending);
    if (v->is_over && !queue->lost) {
        const auto& why = v->self->state_->space_server_end;
        queue->moving = false;
        queue->lost = failure{why ? *why : error(errc::closed, "the program ends"), nullptr};
    }
    return queue;
}

// ---- at a space server --------------------------------------------------------------------------

SKEIN_INLINE task<void> space_state::reach(space_state* b, visit_ptr v) {
    try {
        if (!v->place) {
            auto finding = with_cancel(v->stop.token(), find(b, v->space, v->space_server));
            v->place = co_await finding;
        }
        auto dialling = with_cancel(v->stop.token(), dial(v));
        v->wire = co_await dialling;
    } catch (...) {
        b->give_up(*v, to_error(std::current_exception()));
        co_return;
    }
    if (b->closing) v->wire->abort(error(errc::closed, "the program ends"));
    if (v->told.is_set()) v->wire->abort(error(errc::worker_lost, v->how));
    auto living = live(b, v);
    co_await living;
}

SKEIN_INLINE task<std::shared_ptr<net::channel>> space_state::dial(visit_ptr v) {
    const auto& there = *v->place;
    const auto at = there.where();
    auto* const network = there.via;
    if (network == nullptr || there.secret.size() != net::token::size)
        throw error(errc::malformed, "an answer about a namespace that cannot be read");
    auto& space_client = *v->self;
    worker_link ours{net::token::from_hex(to_hex(there.secret)).value()};
    constexpr auto times = time_constants::lan();
    ours.start = times.handshake_timeout;
    space_client.open_to_workers(*network, ours.secret, {}, {}); // it calls, and is not called
    auto links = worker_links(space_client, times.worker_resume);
    links.first.max_tries = 0;
    links.first.until = deadline_after(loop::current().now(), times.worker_resume);
    auto dialling = with_timeout(
        net::link::connect(*network, at, worker_connection(space_client, ours), std::move(links)),
        times.worker_resume);
    net::link::handle made = co_await dialling;
    co_return made;
}

/// Nobody was reached: what was called through this visit, and will be, fails.
SKEIN_INLINE void space_state::give_up(space_visit& v, const error& why) {
    auto& space_client = *v.self->state_;
    v.failed = why;
    if (!closing) {
        const bool is_told = v.told.is_set() || why.code() == errc::worker_lost;
        const std::string text =
            v.told.is_set()
                ? fmt::format("the space server of namespace \"{}\" was lost: {}", v.space, v.how)
            : is_told ? std::string(why.text())
                      : fmt::format("the space server of namespace \"{}\" was not reached: {}",
                                    v.space, why.what());
        space_client.space_server_end =
            error(errc::worker_lost, text).with_hint("get_actor says what is there now");
        if (is_told) v.failed = space_client.space_server_end;
        if (is_told &&
            !v.told.is_set()) { // for good: a later handle of that space server asks nobody
            v.how = std::string(why.text());
            v.told.set();
        }
    }
    v.is_over = true;
    space_client.closing = true;
    space_client.groups.close();
    space_client.actors.close();
    space_client.executor.close();
    v.self->close_queues();
    v.over.set();
    v.settled.set();
}

/// From the first word to the space server to the last.
SKEIN_INLINE task<void> space_state::live(space_state* b, visit_ptr v) {
    v->self->state_->after_space_server = [b, one = v.get()](const peer&) {
        return how_it_ended(b->visits.at({one->space, one->space_server}));
    };
    scope beside;
    beside.spawn(knock(v));
    auto served = as_result(v->self->serve_driver(v->wire));
    (void)co_await served;
    beside.cancel();
    auto asked = as_result(shield(beside.join()));
    (void)co_await asked;
    v->is_over = true;
    v->over.set();
    v->settled.set();
    auto closed = shield(v->wire->close());
    co_await closed;
    v->wire = nullptr;
}

/// What waits for the space server goes to it; and it answers who it has taken in, which one that
/// is ending does not.
SKEIN_INLINE task<void> space_state::knock(visit_ptr v) {
    co_await yield(); // until serve_driver() is at work
    auto& space_client = *v->self;
    auto& state = *space_client.state_;
    state.awaits_space_server = false;
    std::vector<actor_id> all;
    for (const auto& [id, queue] : state.actor_queues) all.push_back(id);
    std::sort(all.begin(), all.end());
    for (const auto id : all)
        if (const auto queue = state.actor_queues.find(id); queue != state.actor_queues.end())
            space_client.drain(*queue->second);
    for (const auto id : std::exchange(state.kills, {}))
        if (state.upstream != nullptr) send_actor(*state.upstream, detail::message_kill, id);
    counted_ptr<ref_state<void>> call(new ref_state<void>);
    (void)space_client.find_actor(call, {}, typeid(void));
    auto asked = as_result(as_task(ref<void>(std::move(call))));
    const auto answer = co_await asked;
    if (answer || answer.error().code() != errc::not_found) co_return;
    v->settled.set();
}

SKEIN_INLINE task<std::string> space_state::end_of_space_server(runtime* space_client,
                                                                std::shared_ptr<peer> l) {
    auto& state = *space_client->state_;
    std::string how = l->orderly ? "it has ended" : l->why.what();
    if (of(*space_client).closing) co_return how; // it is this process that leaves
    try {
        auto asked = state.after_space_server(*l);
        auto said = co_await asked;
        if (!said.empty()) how = std::move(said);
    } catch (const error&) { // then the link alone tells
    }
    state.space_server_end =
        error(errc::worker_lost,
              fmt::format("the space server of namespace \"{}\" was lost: {}", state.space, how))
            .with_hint("get_actor says what is there now");
    co_return how;
}

/// As the head says, which hears it from the agent.
SKEIN_INLINE task<std::string> space_state::how_it_ended(visit_ptr v) {
    auto waiting = v->told.wait_for(time_constants::lan().suspect_after);
    co_await waiting;
    co_return v->how;
}

/// Its last replies may be on the way; and where it is cut off its connection does not tell.
SKEIN_INLINE task<void> space_state::cut_later(std::shared_ptr<net::channel> wire,
                                               std::string why) {
    if (wire->is_connected()) co_await sleep_for(time_constants::lan().last_word);
    wire->abort(error(errc::peer_lost, std::move(why)));
}

SKEIN_INLINE void space_state::lost(const std::string& space, std::uint64_t space_server,
                                    const std::string& how) {
    if (const auto found = visits.find({space, space_server}); found != visits.end()) {
        auto& v = *found->second;
        v.how = how;
        v.told.set();
        if (v.wire == nullptr)
            v.stop.request();
        else
            tasks.spawn(cut_later(v.wire, how));
    }
    const auto who = told.find({space, space_server});
    if (who == told.end()) return;
    const auto body = wire::encode(space_end{space, space_server, how});
    for (const auto number : who->second)
        if (auto* const l = home.link_at(number); l != nullptr && l->is_open())
            l->send(message_space_end, 0, 0, body);
    told.erase(who);
}

SKEIN_INLINE task<void> space_state::leave(space_state* b) {
    b->closing = true;
    b->stop.request();
    std::vector<std::shared_ptr<net::channel>> open;
    for (const auto& [key, v] : b->visits) {
        v->stop.request();
        if (v->wire) open.push_back(v->wire);
    }
    scope goodbyes;
    for (const auto& wire : open) goodbyes.spawn(say_goodbye(wire));
    auto said = as_result(shield(goodbyes.join()));
    (void)co_await said;
    auto gone = as_result(shield(b->tasks.join()));
    (void)co_await gone;
}

// ---- workers ask their driver ------------------------------------------------------------------

SKEIN_INLINE task<space_place> space_state::ask_driver(space_state* b, space_question what) {
    auto& up = *b->home.state_->upstream;
    if (b->via == nullptr)
        throw error(errc::not_supported,
                    fmt::format("not supported: namespace \"{}\" from a worker that reaches "
                                "nobody but its driver",
                                what.space));
    if (!up.is_open()) throw error(errc::closed, "the driver has gone");
    struct asked : question {
        asked(space_state& in, std::uint64_t n) : all(in), number(n) { all.questions[n] = this; }
        asked(const asked&) = delete;
        asked& operator=(const asked&) = delete;
        ~asked() { all.questions.erase(number); }
        space_state& all;
        std::uint64_t number;
    } one(*b, ++b->last_question);
    up.send(message_space, 0, one.number, wire::encode(what));
    auto waiting = one.answered.wait();
    co_await waiting;
    if (one.failed) throw error(*one.failed);
    const auto& said = *one.place;
    space_place out;
    out.space_server = said.space_server;
    out.host = said.host;
    out.port = said.port;
    out.address = said.address;
    out.head_host = b->head_host;
    out.via = b->via;
    out.secret = seal_secret(b->secret, said.space_server, said.sealed);
    co_return out;
}

/// Driver: a worker asks where a space server is.
SKEIN_INLINE void space_state::on_question(runtime& driver, peer& from, const net::frame_view& f) {
    auto what = wire::decode<space_question>(f.body);
    if (!what || what->space.empty() || what->space.size() > actor_terms::longest_name)
        throw error(errc::malformed,
                    fmt::format("a question that cannot be read from {}", from.who));
    if (driver.state_->closing) return; // its link ends
    auto& b = of(driver);
    if (from.asks >= b.most_asked)
        throw error(errc::exhausted,
                    fmt::format("{} asks for namespaces without end: {} have no answer; ask for "
                                "fewer at a time",
                                from.who, from.asks));
    if (b.answering >= b.most_answering) return b.refuse_question(from, f.id);
    ++from.asks;
    ++b.answering;
    const task_context::use none(nullptr);
    b.tasks.spawn(answer(&b, from.number, f.id, std::move(*what)));
}

/// There are too many of them, whoever asks.
SKEIN_INLINE void space_state::refuse_question(peer& from, std::uint64_t id) const {
    wire::writer body;
    encode_failure(
        body, {error(errc::exhausted,
                     fmt::format("{} questions for namespaces have no answer yet", most_answering))
                   .with_hint("ask again later"),
               nullptr});
    from.send(message_space_there, 1, id, body.bytes());
}

SKEIN_INLINE task<void> space_state::answer(space_state* b, peer_id asker, std::uint64_t id,
                                            space_question what) {
    wire::writer body;
    std::uint16_t flags = 0;
    try {
        auto finding = find(b, what.space, what.space_server);
        const auto place = co_await finding;
        wire::encode(body, space_answer{place.space_server, place.host, place.port, place.address,
                                        place.sealed});
        auto& known = b->told[{what.space, place.space_server}];
        if (std::find(known.begin(), known.end(), asker) == known.end()) known.push_back(asker);
        std::erase_if(known, [&](peer_id n) { return b->home.link_at(n) == nullptr; });
    } catch (...) {
        flags = 1;
        encode_failure(body, {to_error(std::current_exception()), nullptr});
    }
    --b->answering;
    auto* const to = b->home.link_at(asker);
    if (to != nullptr) --to->asks;
    if (to != nullptr && to->is_open()) to->send(message_space_there, flags, id, body.bytes());
}

SKEIN_INLINE void space_state::on_answer(runtime& worker, const net::frame_view& f) {
    auto& b = of(worker);
    const auto found = b.questions.find(f.id);
    if (f.flags > 1) throw error(errc::malformed, "an answer about a namespace of unknown kind");
    if (found == b.questions.end()) return; // nobody waits for it any more
    auto& one = *found->second;
    if (f.flags != 0) {
        one.failed = decode_failure(f.body).what;
    } else if (auto said = wire::decode<space_answer>(f.body); said && said->space_server != 0) {
        one.place = std::move(*said);
    } else {
        throw error(errc::malformed, "an answer about a namespace that cannot be read");
    }
    one.answered.set();
}

SKEIN_INLINE void space_state::on_end(runtime& worker, const net::frame_view& f) {
    const auto said = wire::decode<space_end>(f.body);
    if (!said) throw error(errc::malformed, "news of a namespace that cannot be read");
    of(worker).lost(said->space, said->space_server, said->how);
}

} // namespace detail

} // namespace skein::rt
