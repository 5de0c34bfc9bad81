// SPDX-License-Identifier: Apache-2.0
// requests: typed calls over links that break. Each call gives exactly one outcome; a handler runs
// at most once for each call, also for one that is repeated with its key on other links; what was
// told comes in order; large messages come whole while small ones overtake them. No call has more
// time than its caller gave, by any clock. What peers have in progress keeps its bounds, for each
// and over all, and is nothing in the end. After the calm all calls succeed.
#include "sim/scenario.hpp"

#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/net/requests.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace {

using namespace skein;
using namespace std::chrono_literals;

struct job_request {
    static constexpr std::uint16_t number = 1;
    std::uint64_t job = 0;
    std::uint32_t work_ms = 0;
    byte_buffer load;
};
struct job_reply {
    static constexpr std::uint16_t number = 2;
    std::uint64_t job = 0, runs = 0;
    byte_buffer load;
};
struct job_note {
    static constexpr std::uint16_t number = 3;
    std::uint64_t client = 0, sequence = 0;
};

struct request_town {
    sim::world* w;
    std::map<std::uint64_t, std::uint64_t> runs;  ///< by job
    std::map<std::uint64_t, std::uint64_t> noted; ///< by client: the last sequence
    std::uint64_t overtakes = 0, done = 0;
    std::shared_ptr<net::request_service> service;
    net::request_options how;
    std::string violation;
    net::request_load most = net::request_budget::most_by_default();
    std::map<std::uint64_t, std::size_t> running; ///< handlers, by client
};

net::connection_options request_end(const std::string& name) {
    net::connection_options o;
    const auto secret = net::token::from_hex(std::string(64, '7'));
    o.secret = secret.value();
    o.self.name = name;
    return o;
}

bool is_trouble_of_the_way(const error& e) {
    return e.code() == errc::reset || e.code() == errc::refused || e.code() == errc::timeout ||
           e.code() == errc::closed || e.code() == errc::peer_lost || e.code() == errc::cancelled ||
           e.code() == errc::exhausted || e.code() == errc::corrupt;
}

constexpr duration longest_deadline = 20ms;

task<job_reply> do_job(request_town* t, job_request m, net::caller who) {
    t->w->check(!who.deadline || *who.deadline <= loop::current().exact_now() + longest_deadline,
                "a call has more time than it was given");
    const auto& held = t->service->held();
    t->w->check(held.running <= t->most.running, "more handlers run than may");
    t->w->check(++t->running[m.job / 1000] <= t->how.peer.running, "more of one peer");
    struct leaving {
        std::size_t& count;
        ~leaving() { --count; }
    } const left{t->running[m.job / 1000]};
    auto& runs = t->runs[m.job];
    ++runs;
    t->w->check(runs == 1, "a call with a key ran twice");
    for (const auto b : m.load) t->w->check(b == static_cast<std::byte>(m.job), "a load changed");
    auto pause = sleep_for(std::chrono::milliseconds(m.work_ms));
    co_await pause;
    job_reply out;
    out.job = m.job;
    out.runs = runs;
    out.load = std::move(m.load);
    co_return out;
}

void take_note(request_town* t, job_note m, const net::caller&) {
    auto& last = t->noted[m.client];
    t->w->check(m.sequence > last, "a note was doubled or overtaken");
    last = m.sequence;
}

task<void> serve_requests(request_town* t, net::link::handle l) {
    auto r = net::requests::over(l, t->service, t->how);
    r->set_closed_handler([t](const error* why) { // clients say nothing that is wrong
        if (why != nullptr && why->code() == errc::malformed) t->violation = why->what();
    });
    auto ended = l->wait_closed();
    l.reset();
    std::optional<error> fault;
    try {
        co_await ended;
    } catch (const error& e) {
        fault = e;
    }
    auto closing = r->close();
    co_await closing;
    if (fault) throw *fault;
}

/// One job until it has succeeded, on as many links as that takes.
task<void> one_job(request_town* t, net::requests::handle* way, net::request_keys* keys,
                   std::uint64_t job) {
    sim::world* const w = t->w;
    // Far below the network's window: behind a full one the simulation moves bytes in crumbs.
    const std::size_t load = w->chance(0.2) ? 1 + w->below(40'000) : w->below(200);
    const auto work = static_cast<std::uint32_t>(w->below(40));
    const auto key = keys->next();
    std::string last;
    int refusals = 0; // for want of room: each costs nothing, and others have it meanwhile
    for (int attempt = 0;; ++attempt) {
        w->check(attempt < 400 && refusals < 20'000, "no call succeeds after the calm: " + last);
        const auto over = *way;
        if (over && over->is_open()) {
            try {
                job_request m;
                m.job = job;
                m.work_ms = work;
                m.load.assign(load, static_cast<std::byte>(job));
                net::request_call_options how;
                how.key = &key;
                auto asking = over->call<job_reply>(std::move(m), how);
                const auto reply = co_await asking;
                w->check(reply.job == job && reply.runs == 1, "the reply of another call");
                w->check(reply.load.size() == load, "a load was cut");
                ++t->done;
                co_return;
            } catch (const error& e) {
                if (!is_trouble_of_the_way(e)) throw;
                last = e.what();
                if (e.code() == errc::exhausted) --attempt, ++refusals;
            }
        }
        auto pause = sleep_for(20ms * (1 + std::min(refusals, 20))); // refused: it backs off
        co_await pause;
    }
}

/// Large messages whose caller does not wait for long: what was on its way is dropped, the next one
/// comes whole.
task<void> give_up_early(request_town* t, net::requests::handle* way, std::uint64_t first) {
    sim::world* const w = t->w;
    const auto rounds = w->below(15);
    for (std::uint64_t k = 0; k < rounds; ++k) {
        auto pause = sleep_for(w->loop.draw_delay(1ms, 100ms));
        co_await pause;
        const auto over = *way;
        if (!over || !over->is_open()) continue;
        try {
            job_request m;
            m.job = first + k;
            m.load.assign(1 + w->below(60'000), static_cast<std::byte>(m.job));
            net::request_call_options how;
            how.deadline = std::chrono::microseconds(1 + w->below(longest_deadline / 1us));
            auto asking = over->call<job_reply>(std::move(m), how);
            const auto reply = co_await asking;
            w->check(reply.job == first + k, "the reply of another call");
        } catch (const error& e) {
            if (!is_trouble_of_the_way(e)) throw;
        }
    }
}

task<void> send_notes(request_town* t, net::requests::handle* way, std::uint64_t client,
                      std::uint64_t count) {
    std::uint64_t sequence = 0;
    while (sequence < count) {
        const auto over = *way;
        if (over && over->is_open()) {
            try {
                over->tell(job_note{client, ++sequence});
            } catch (const error& e) {
                if (!is_trouble_of_the_way(e)) throw;
            }
        }
        auto pause = sleep_for(t->w->loop.draw_delay(1ms, 40ms));
        co_await pause;
    }
}

/// Keeps a link to the server: another one when it has ended.
task<void> keep_way(request_town* t, std::uint64_t number, net::address to,
                    net::requests::handle* way, const bool* over) {
    sim::world* const w = t->w;
    const auto name = fmt::format("client-{}", number);
    while (!*over) {
        if (!*way || !(*way)->is_open()) {
            if (const auto old = std::exchange(*way, nullptr)) {
                auto closing = old->close();
                co_await closing;
            }
            try {
                net::link_options how;
                how.incarnation = 100 + number; // as its keys say
                how.resume_within = w->chance(0.5) ? 200ms : 3000ms;
                auto dialing =
                    net::link::connect(w->network.host(name), to, request_end(name), how);
                auto l = co_await dialing;
                *way = net::requests::over(std::move(l), nullptr, t->how);
            } catch (const error& e) {
                if (!is_trouble_of_the_way(e)) throw;
            }
        } else if (w->chance(0.02)) { // links end, too, not only connections
            (*way)->abort(error(errc::closed, "a drawn end"));
        }
        auto pause = sleep_for(10ms);
        co_await pause;
    }
    auto closing = (*way)->close();
    co_await closing;
    way->reset();
}

task<void> request_client(request_town* t, std::uint64_t number, net::address to) {
    net::request_keys keys(100 + number);
    net::requests::handle way;
    bool over = false;
    scope connecting, jobs;
    connecting.spawn(keep_way(t, number, to, &way, &over));
    const auto count = 1 + t->w->below(30);
    for (std::uint64_t k = 0; k < count; ++k) {
        jobs.spawn(one_job(t, &way, &keys, number * 1000 + k));
    }
    jobs.spawn(send_notes(t, &way, number, t->w->below(40)));
    jobs.spawn(give_up_early(t, &way, number * 1000 + 500));
    std::optional<error> fault;
    try {
        auto joined = jobs.join();
        co_await joined;
    } catch (const error& e) {
        fault = e;
    }
    while (!way) { // keep_way closes it
        auto pause = sleep_for(10ms);
        co_await pause;
    }
    over = true;
    auto ended = connecting.join();
    co_await ended;
    if (fault) throw *fault;
}

task<void> reset_now_and_then(sim::world* w, std::uint64_t clients) {
    const auto blows = w->below(10);
    for (std::uint64_t k = 0; k < blows; ++k) {
        auto pause = sleep_for(w->loop.draw_delay(1ms, 300ms));
        co_await pause;
        w->network.counts().add(sim::fault::reset);
        w->network.reset(fmt::format("client-{}", w->below(clients)), "server");
    }
    auto pause = sleep_for(3s);
    co_await pause;
    w->network.stop_faults();
}

task<void> calls(sim::world& w) {
    request_town town{&w, {}, {}, 0, 0, nullptr, {}, {}, net::request_budget::most_by_default(),
                      {}};
    if (w.chance(0.5)) { // narrow: most calls are refused now and then
        town.how.peer = {1 + w.below(8), 20'000 + w.below(60'000), 50'000,
                         20'000 + w.below(60'000)};
        town.how.call_bytes = 10'000 + w.below(60'000);
        town.most = {1 + w.below(12), 100'000, 60'000 + w.below(60'000), 100'000};
    }
    net::request_service::bounds bounds;
    bounds.all = town.most;
    town.service = std::make_shared<net::request_service>(bounds);
    town.how.control_bytes = 1000 + w.below(20'000);
    town.how.chunk_bytes = 1024 + w.below(10'000);
    town.service->on<job_request, job_reply>([&](job_request m, net::caller who) {
        return do_job(&town, std::move(m), std::move(who));
    });
    town.service->on_tell<job_note>([&](job_note m, net::caller who) { take_note(&town, m, who); });
    net::link_options how;
    how.resume_within = 3s;
    w.network.draw_clocks();
    auto& home = w.network.loop_of("server");
    net::link_endpoint server(w.network.host("server"), net::address::sim("server", 1),
                              request_end("server"), how);
    scope clients, serving, others;
    serving.spawn(sim::run_on(home, server.serve([&](net::link::handle l) {
        return serve_requests(&town, std::move(l));
    })));
    const auto count = 1 + w.below(3);
    others.spawn(reset_now_and_then(&w, count));
    for (std::uint64_t k = 0; k < count; ++k) {
        clients.spawn(sim::run_on(w.network.loop_of(fmt::format("client-{}", k)),
                                  request_client(&town, k, server.local())));
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
    if (fault) serving.cancel();
    auto ended = with_timeout(serving.join(), 60s);
    co_await ended;
    auto ending = sim::run_on(home, town.service->close());
    co_await ending;
    if (fault) throw *fault;
    w.check(town.violation.empty(), town.violation);
    w.check(town.service->held() == net::request_load(),
            "something is held for peers that have gone");
    w.loop.trace(town.done);
}
const sim::scenario calls_registered("requests", &calls);

} // namespace
