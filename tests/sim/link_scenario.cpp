// SPDX-License-Identifier: Apache-2.0
// link: messages come in order and each exactly once through resets, cuts, half-open ends, stale
// and duplicate connections and crashes of hosts; what a link keeps stays bounded; after the calm
// all links that live deliver everything and close in order.
#include "sim/scenario.hpp"

#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/detail/link_hello.hpp>
#include <skein/net/link.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/wire/encode.hpp>

#include <map>
#include <string>
#include <vector>

namespace {

using namespace skein;
using namespace std::chrono_literals;

net::connection_options link_end_named(const std::string& name) {
    net::connection_options o;
    o.bounds.max_send_queue =
        1 + loop::current().random().next() % 60'000; // who waits for room, and when
    const auto secret = net::token::from_hex(std::string(64, '7'));
    o.secret = secret.value();
    o.self.name = name;
    return o;
}

std::size_t body_size(std::uint64_t i) {
    return i % 17 == 16 ? 9000 + i * 13 % 40000 : i * 37 % 600;
}

/// What one direction of one link has brought.
struct queue {
    std::uint64_t sent = 0, got = 0;
};

/// One link as the scenario sees it: both directions, by the number of its client.
struct session {
    queue up, down;
    std::uint64_t wanted = 0; ///< messages in each direction
    bool complete = false;
};

struct link_town {
    sim::world* w;
    net::link_options how;
    std::map<std::string, session*> sessions; ///< by the client's name
    std::uint64_t resumes = 0;
};

void say_next(net::link* l, queue* out) {
    const byte_buffer body(body_size(out->sent), static_cast<std::byte>(out->sent));
    l->send(static_cast<std::uint16_t>(1 + out->sent % 5), 3, out->sent, body);
    ++out->sent;
}

/// Sends messages until all are out; never more than the window waits.
task<void> talk(link_town* t, net::link* l, queue* out, std::uint64_t wanted) {
    while (out->sent < wanted) {
        auto room = l->send_ready();
        co_await room;
        const auto burst = 1 + t->w->below(30);
        for (std::uint64_t k = 0; k < burst && out->sent < wanted; ++k) say_next(l, out);
        t->w->check(l->kept_messages() <= t->how.window_messages + 31,
                    "more is kept than the window");
        t->w->check(l->kept_bytes() <= t->how.window_bytes + 31 * 50000,
                    "more bytes than the window");
        if (t->w->chance(0.5)) {
            auto pause = sleep_for(t->w->loop.draw_delay(duration(0), 60ms));
            co_await pause;
        }
    }
}

void take(sim::world* w, queue* in, std::uint64_t sent, const net::frame_view& f) {
    w->check(f.id == in->got, "a message was lost, doubled or overtaken");
    w->check(f.id < sent, "a message that was never sent");
    w->check(f.kind == 1 + f.id % 5 && f.flags == 3, "a header changed on the way");
    w->check(f.body.size() == body_size(f.id) &&
                 (f.body.empty() || f.body.back() == static_cast<std::byte>(f.id)),
             "a body changed on the way");
    ++in->got;
}

/// Takes a message, and may answer it at once: in the turn in which it came, whatever waits for the
/// network.
void take_and_answer(link_town* t, net::link* l, queue* in, std::uint64_t sent, queue* out,
                     std::uint64_t wanted, const net::frame_view& f) {
    take(t->w, in, sent, f);
    if (out->sent < wanted && l->is_open() && l->kept_messages() <= t->how.window_messages &&
        l->kept_bytes() <= t->how.window_bytes && t->w->chance(0.3))
        say_next(l, out);
}

task<void> serve_link(link_town* t, net::link::handle l) {
    const auto found = t->sessions.find(l->peer().name);
    t->w->check(found != t->sessions.end(), "a link from nobody");
    session* const s = found->second;
    s->up.got = s->down.sent = s->down.got = 0; // a new link of the same client begins again
    const bool first = t->w->chance(0.3);       // it closes first, and early
    const auto wanted = first ? t->w->below(s->wanted + 1) : s->wanted;
    l->set_handler([t, s, wanted, over = l.get()](const net::frame_view& f) {
        take_and_answer(t, over, &s->up, s->up.sent, &s->down, wanted, f);
    });
    try {
        auto talking = talk(t, l.get(), &s->down, wanted);
        co_await talking;
        // The peer loses its connection and comes over another one, while the last messages wait
        // here for the first.
        if (t->w->chance(0.2)) t->w->network.crash(l->peer().name, false);
        if (first) {
            auto closing = l->close();
            co_await closing;
        }
        auto ended = l->wait_closed();
        co_await ended;
    } catch (const error& e) {
        if (e.code() == errc::internal) throw;
    }
    if (l->failure() && l->failure()->code() == errc::internal) throw *l->failure();
    l->set_handler(nullptr);
}

task<void> reset_soon(sim::world* w, std::string name) {
    auto pause = sleep_for(w->loop.draw_delay(duration(0), 3ms));
    co_await pause;
    w->network.counts().add(sim::fault::reset);
    w->network.reset(name, "server");
}

/// One link until all is delivered both ways and it is closed, or it has ended with an error.
task<void> use_link(link_town* t, std::string name, net::link::handle l, session* s) {
    l->set_handler([t, s, over = l.get()](const net::frame_view& f) {
        take_and_answer(t, over, &s->down, s->down.sent, &s->up, s->wanted, f);
    });
    std::optional<error> fault;
    try {
        auto talking = talk(t, l.get(), &s->up, s->wanted);
        co_await talking;
        while (s->down.got < s->wanted && l->is_open()) {
            auto pause = sleep_for(5ms);
            co_await pause;
        }
    } catch (const error& e) {
        fault = e;
    }
    scope beside;
    if (t->w->chance(0.3)) beside.spawn(reset_soon(t->w, std::move(name)));
    auto closing = l->close();
    co_await closing;
    auto done = beside.join();
    co_await done;
    t->resumes += l->statistics().resumes;
    if (l->failure() && l->failure()->code() == errc::internal) throw *l->failure();
    if (fault && fault->code() == errc::internal) throw *fault;
    if (l->ending() == net::link_end::orderly) {
        t->w->check(s->up.got == s->up.sent, "an orderly end without all messages");
        s->complete = s->up.got == s->wanted && s->down.got == s->wanted;
    }
    t->w->loop.trace(static_cast<std::uint64_t>(l->ending()));
    l->set_handler(nullptr);
}

task<void> client_of(link_town* t, std::string name, net::address to, session* s) {
    sim::world* const w = t->w;
    auto how = t->how;
    for (int attempt = 0; !s->complete; ++attempt) { // liveness: after the calm one completes
        w->check(attempt < 300, "no link completes after the calm");
        try {
            *s = {{}, {}, s->wanted, false};
            how.first.max_tries = 1 + static_cast<int>(w->below(4));
            auto dialing = net::link::connect(w->network.host(name), to, link_end_named(name), how);
            auto l = co_await dialing;
            auto using_it = use_link(t, name, std::move(l), s);
            co_await using_it;
        } catch (const error& e) {
            if (e.code() == errc::internal || e.code() == errc::malformed ||
                e.code() == errc::permission_denied || e.code() == errc::mismatch)
                throw; // nothing that the way does may look like that
        }
        if (!s->complete) {
            auto pause = sleep_for(4 * how.resume_within); // the other side has given up, too
            co_await pause;
        }
    }
}

/// Comes with hellos that a late or doubled connection of the past would bring: one of a generation
/// that is not newer than one that was taken must be refused.
task<void> bring_stale_hellos(sim::world* w, std::string name, net::address to) {
    const auto rounds = w->below(12);
    std::map<std::uint64_t, std::uint64_t> taken; ///< generations, by the link's number
    for (std::uint64_t k = 0; k < rounds; ++k) {
        auto pause = sleep_for(w->loop.draw_delay(1ms, 800ms));
        co_await pause;
        try {
            auto dialing =
                net::connection::connect(w->network.host(name), to, link_end_named(name));
            auto c = co_await dialing;
            net::detail::link_hello h;
            h.from = 4711; // the incarnation of all clients of this scenario
            h.number = 1 + w->below(3);
            h.generation = 1 + w->below(3);
            h.fresh = w->chance(0.3);
            h.received = h.fresh || w->chance(0.7) ? 0 : w->below(50);
            const auto before = h.fresh ? 0 : taken[h.number];
            if (h.fresh)
                taken[h.number] = 0; // until the answer says otherwise, there may be a new link
            h.window_messages = h.window_bytes = 1000;
            w->network.counts().add(sim::fault::stale);
            c->send(net::detail::link_hello_kind, 0, 0, wire::encode(h));
            if (w->chance(0.5)) c->send(1, 3, 0, {}); // what it would have sent next
            auto next = with_timeout(c->receive(), 2s);
            const auto f = co_await next;
            auto closing = c->close();
            co_await closing;
            const auto answer = f ? net::detail::read_greeting<net::detail::link_answer>(*f)
                                  : result<net::detail::link_answer>(error(errc::closed, ""));
            if (!answer || answer->verdict != 0) continue;
            w->check(h.generation > before, "an older generation of a link was taken");
            taken[h.number] = h.generation;
        } catch (const error& e) { // it is refused, or breaks
            if (e.code() == errc::internal) throw;
        }
    }
}

task<void> trouble(sim::world* w, std::uint64_t clients) {
    const auto blows = w->below(8);
    for (std::uint64_t k = 0; k < blows; ++k) {
        auto pause = sleep_for(w->loop.draw_delay(1ms, 400ms));
        co_await pause;
        const auto who = fmt::format("client-{}", w->below(clients));
        switch (w->below(4)) {
        case 0:
            w->network.reset(who, "server");
            w->network.counts().add(sim::fault::reset);
            break;
        case 1: w->network.block("server", who); break;
        case 2:
            w->network.crash(who, w->chance(0.5));
            break; // its streams only: the process lives on
        case 3: w->network.heal("server", who); break;
        }
    }
}

task<void> be_calm_after(sim::world* w, duration time) {
    auto pause = sleep_for(time);
    co_await pause;
    w->network.stop_faults();
}

task<void> links(sim::world& w) {
    w.network.draw_clocks();
    link_town town{&w, {}, {}, 0};
    town.how.window_messages = 1 + w.below(200);
    town.how.window_bytes = 1000 + w.below(200'000);
    const auto most_queued = w.chance(0.5) ? 2000U : 100'000U;
    town.how.queue_bytes = 1 + w.below(most_queued);
    town.how.ack_messages = 1 + w.below(100);
    town.how.resume_within = w.chance(0.3) ? duration(300ms) : duration(3s);
    auto& home = w.network.loop_of("server");
    net::link_endpoint server(w.network.host("server"), net::address::sim("server", 1),
                              link_end_named("server"), town.how);
    scope clients, serving, others;
    serving.spawn(sim::run_on(
        home, server.serve([&](net::link::handle l) { return serve_link(&town, std::move(l)); })));
    const auto count = 1 + w.below(3);
    std::vector<session> sessions(count);
    for (std::uint64_t k = 0; k < count; ++k) {
        const auto name = fmt::format("client-{}", k);
        sessions[k].wanted = 1 + w.below(400);
        town.sessions[name] = &sessions[k];
    }
    others.spawn(be_calm_after(&w, 4s));
    others.spawn(trouble(&w, count));
    session stale;
    town.sessions["stale"] = &stale;
    others.spawn(
        sim::run_on(w.network.loop_of("stale"), bring_stale_hellos(&w, "stale", server.local())));
    for (std::uint64_t k = 0; k < count; ++k) {
        const auto name = fmt::format("client-{}", k);
        clients.spawn(sim::run_on(w.network.loop_of(name),
                                  client_of(&town, name, server.local(), &sessions[k])));
    }
    std::optional<error> fault;
    try {
        auto joined = clients.join();
        co_await joined;
    } catch (const error& e) {
        fault = e;
    }
    auto rest = others.join();
    co_await rest;
    {
        const skein::loop::use there(home);
        server.close();
    }
    auto ended = with_timeout(serving.join(), 60s); // each link ends by itself
    co_await ended;
    if (fault) throw *fault;
    w.check(server.table().links() == 0, "a link is left behind");
    w.loop.trace(town.resumes);
}
const sim::scenario links_registered("link", &links);

} // namespace
