// SPDX-License-Identifier: Apache-2.0
// streams: generators of tasks and methods that the driver, tasks and actors read, slowly or not, to
// their end or not, while workers die and links are cut, reset and slow.
//
// Invariants: items come in order, each once, none is left out, all of one attempt; the end comes
// always, behind all items if the generator came to its own; a stream of which an item was taken does
// not run again; the producer is never further ahead than its window and one item; what was dropped,
// closed or cancelled has cleaned up; after the calm nothing is left.
#include "sim/scenario.hpp"

#include <tests/support/sim_cluster.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/stream.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace streams_scenario {

using namespace skein;
using namespace std::chrono_literals;

/// One stream, as all its processes know it.
struct plan {
    int id = 0;
    int items = 0;
    int longest_ms = 0;  ///< between two items
    bool throws = false; ///< at its end
    bool cleans = false; ///< its clean-up awaits
    std::uint32_t window = 1;
    std::uint64_t window_bytes = 1;
    int bytes = 0;       ///< of an item, beside its numbers
    int reads = 0;       ///< so many items, then it is dropped; -1: all
    bool closes = false; ///< instead of dropping it
    int slow_ms = 0;     ///< the reader, after an item
    int retries = 0;
    int deadline_ms = 0; ///< 0: none
};
struct item {
    int id = 0, attempt = 0, index = 0;
    std::vector<std::byte> more;
};

struct history {
    std::map<int, int> attempts; ///< of a stream, that have begun
    std::map<int, int> taken;    ///< items
    std::map<int, int> of;       ///< the attempt that these are of
    std::map<int, int> made;     ///< of the attempt that runs
    int inside = 0, cleaning = 0, last_id = 0;
    std::string violation;

    void check(bool holds, const plan& p, const std::string& what) {
        if (!holds && violation.empty())
            violation = what + " (stream " + std::to_string(p.id) + ")";
    }
};
thread_local history* now = nullptr;

struct counts_itself {
    explicit counts_itself(int& at) : at_(at) { ++at_; }
    counts_itself(const counts_itself&) = delete;
    counts_itself& operator=(const counts_itself&) = delete;
    ~counts_itself() { --at_; }

private:
    int& at_;
};

std::uint64_t below(std::uint64_t n) { return loop::current().random().below(n); }

task<void> take_long() {
    const counts_itself here(now->cleaning);
    co_await sleep_for(std::chrono::milliseconds(below(20)));
}

generator<item> produce(plan p) {
    const counts_itself here(now->inside);
    struct ends {
        const plan& of;
        bool well = false;
        ~ends() { now->check(well, of, "it is destroyed where it stood: no clean-up ran"); }
    } end{p};
    const int attempt = ++now->attempts[p.id];
    now->check(now->taken[p.id] == 0, p, "it runs again, although items were taken");
    std::exception_ptr why;
    try {
        for (int i = 0; i < p.items; ++i) {
            if (p.longest_ms > 0 && below(3) != 0)
                co_await sleep_for(
                    std::chrono::milliseconds(below(static_cast<std::uint64_t>(p.longest_ms))));
            item one{p.id, attempt, i, std::vector<std::byte>(static_cast<std::size_t>(p.bytes))};
            const auto ahead = i + 1 - now->taken[p.id];
            now->check(ahead <= static_cast<int>(p.window) + 1, p, "it is beyond its window");
            co_yield std::move(one);
        }
        if (p.throws) throw std::runtime_error("as planned");
    } catch (...) {
        why = std::current_exception();
    }
    end.well = true;
    if (!why) co_return;
    if (p.cleans) {
        auto cleaning = shield(take_long());
        co_await cleaning;
    }
    std::rethrow_exception(why);
}

bool is_expected(const plan& p, const error& e) {
    if (e.code() == errc::timeout) return p.deadline_ms != 0;
    return e.code() == errc::worker_lost || e.code() == errc::reset ||
           e.code() == errc::cancelled || e.code() == errc::closed || e.code() == errc::not_found;
}

/// Reads as planned; what comes is checked where it comes.
task<int> read(item_stream<item> s, plan p) {
    int count = 0;
    try {
        while (p.reads < 0 || count < p.reads) {
            auto one = co_await s.next();
            if (!one) {
                now->check(count == p.items && !p.throws, p, "its end comes too early");
                break;
            }
            if (count == 0) now->of[p.id] = one->attempt;
            now->check(one->id == p.id && one->index == count, p, "an item is not the next one");
            now->check(one->attempt == now->of[p.id], p, "items of two attempts");
            now->check(one->more.size() == static_cast<std::size_t>(p.bytes), p, "an item is cut");
            now->taken[p.id] = ++count;
            if (p.slow_ms > 0)
                co_await sleep_for(
                    std::chrono::milliseconds(below(static_cast<std::uint64_t>(p.slow_ms))));
        }
    } catch (const error& e) {
        const bool is_own = e.code() == errc::remote_exception;
        now->check(!is_own || (p.throws && count == p.items), p,
                   std::string("it fails before its end: ") + e.what());
        now->check(is_own || is_expected(p, e), p, e.what());
        if (e.code() == errc::cancelled) throw;
    }
    if (p.closes) {
        auto closing = s.close();
        co_await closing;
    }
    co_return count;
}

template <class Begin>
item_stream<item> begin(const plan& p, Begin with) {
    call_options how;
    if (p.deadline_ms > 0) how.deadline = std::chrono::milliseconds(p.deadline_ms);
    stream_window window;
    window.items = p.window;
    window.bytes = p.window_bytes;
    return with(how, window);
}
item_stream<item> of_task(const plan& p) {
    return begin(p, [&](call_options how, const stream_window& window) {
        how.retries = p.retries;
        how.cpus = static_cast<int>(below(2));
        return stream<&produce>.with(how).with(window)(p);
    });
}

task<int> read_task(plan p) {
    auto reading = read(of_task(p), p);
    co_return co_await reading;
}

struct press;
using press_handle = actor_handle<press>;
struct press {
    generator<item> print(plan p) { return produce(std::move(p)); }
    task<int> read_of(press_handle other, plan p);
    task<int> read_some(plan p) { return read_task(std::move(p)); }
};
item_stream<item> of_actor(const press_handle& at, const plan& p) {
    return begin(p, [&](const call_options& how, const stream_window& window) {
        return stream<&press::print>.with(how).with(window)(at, p);
    });
}
task<int> press::read_of(press_handle other, plan p) {
    auto reading = read(of_actor(other, p), p);
    co_return co_await reading;
}
task<int> read_actor(press_handle at, plan p) {
    auto reading = read(of_actor(at, p), p);
    co_return co_await reading;
}

plan draw(sim::world* w) {
    const auto some = [&](std::uint64_t n) { return static_cast<int>(w->below(n)); };
    plan p;
    p.id = ++now->last_id;
    p.items = w->chance(0.1) ? 0 : some(w->chance(0.3) ? 400 : 20);
    p.longest_ms = w->chance(0.6) ? 1 + some(30) : 0;
    p.throws = w->chance(0.25);
    p.cleans = w->chance(0.4);
    p.window = 1 + static_cast<std::uint32_t>(w->below(w->chance(0.5) ? 4 : 100));
    p.bytes = w->chance(0.2) ? some(3000) : 0;
    p.window_bytes = w->chance(0.3) ? 1 + w->below(2000) : std::uint64_t{4} << 20;
    p.reads = w->chance(0.7) ? -1 : some(10);
    p.closes = w->chance(0.5);
    p.slow_ms = w->chance(0.3) ? 1 + some(20) : 0;
    p.retries = some(4);
    p.deadline_ms = w->chance(0.1) ? 1 + some(500) : 0;
    return p;
}

/// A reader in the driver, that may wait before it looks, or give up.
task<void> read_here(item_stream<item> s, plan p, int first_look_ms, int longest_ms) {
    co_await sleep_for(std::chrono::milliseconds(first_look_ms));
    auto reading = read(std::move(s), p);
    auto limited = with_timeout(std::move(reading), std::chrono::milliseconds(longest_ms));
    auto asked = as_result(std::move(limited));
    (void)co_await asked;
}

task<void> check_ends(sim::world* w, ref<int> r) {
    auto limited = with_timeout(r, 600s);
    auto asked = as_result(std::move(limited));
    const auto outcome = co_await asked;
    w->check(r.ready(), "a reader has no outcome long after the calm");
    w->loop.trace(outcome ? static_cast<std::uint64_t>(*outcome)
                          : 1000 + static_cast<std::uint64_t>(outcome.error().code()));
}

task<void> everything(sim::world* w, test::sim_cluster* cluster) {
    {
        std::vector<press_handle> presses;
        for (auto i = w->below(3); i > 0; --i) {
            auto limited = with_timeout(skein::actor<press>(), 5s);
            auto asked = as_result(std::move(limited));
            auto made = co_await asked;
            if (made) presses.push_back(std::move(*made));
        }
        scope readers;
        std::vector<ref<int>> tasks;
        const double kill_rate = w->chance(0.6) ? 0.15 : 0.0;
        for (int rounds = 3 + static_cast<int>(w->below(15)); rounds > 0; --rounds) {
            const auto p = draw(w);
            const auto kind = presses.empty() ? w->below(2) : w->below(6);
            const auto& press_at =
                presses.empty() ? press_handle() : presses[w->below(presses.size())];
            const auto look = static_cast<int>(w->chance(0.3) ? w->below(300) : 0);
            const auto longest = static_cast<int>(w->chance(0.2) ? 1 + w->below(400) : 600'000);
            switch (kind) {
            case 0: readers.spawn(read_here(of_task(p), p, look, longest)); break;
            case 1: tasks.push_back(remote<&read_task>.with({.retries = 0})(p)); break;
            case 2: readers.spawn(read_here(of_actor(press_at, p), p, look, longest)); break;
            case 3: tasks.push_back(remote<&read_actor>.with({.retries = 0})(press_at, p)); break;
            case 4:
                tasks.push_back(
                    press_at.call<&press::read_of>(presses[w->below(presses.size())], p));
                break;
            default: tasks.push_back(press_at.call<&press::read_some>(p));
            }
            if (w->chance(0.05) && !tasks.empty()) tasks[w->below(tasks.size())].cancel();
            if (w->chance(kill_rate))
                cluster->kill(
                    static_cast<int>(w->below(static_cast<std::uint64_t>(cluster->workers()))));
            co_await sleep_for(std::chrono::milliseconds(w->below(150)));
            w->check(now->violation.empty(), now->violation);
        }
        co_await sleep_for(std::chrono::milliseconds(w->below(3000)));
        w->network.stop_faults();
        for (auto& t : tasks) {
            auto ends = check_ends(w, t);
            co_await ends;
        }
        auto read_all = readers.join();
        auto limited = with_timeout(std::move(read_all), 3600s);
        co_await limited;
    }
    // Who has called a dead worker's actor hears of it at once; an actor whose caller has died hears
    // it when that link is given up, after 30 s.
    for (int i = 0;
         i < 450 && (cluster->driver().pending() + cluster->running() + cluster->actors()) != 0;
         ++i)
        co_await sleep_for(100ms);
    w->check(now->violation.empty(), now->violation);
    w->check(cluster->driver().pending() == 0, "a call is left");
    w->check(cluster->running() == 0, "a coroutine is left on a worker");
    w->check(cluster->actors() == 0, "an actor is left on a worker");
    w->check(now->inside == 0 && now->cleaning == 0, "a generator is left");
    for (const auto& [id, count] : now->taken) {
        w->loop.trace(static_cast<std::uint64_t>(count));
        w->check(count == 0 || now->attempts[id] == now->of[id],
                 "an attempt has begun after items were taken");
    }
}

task<void> scenario(sim::world& w) {
    history seen;
    now = &seen;
    w.network.draw_clocks();
    if (w.chance(0.2)) w.network.stop_faults();
    const int workers = 1 + static_cast<int>(w.below(4));
    test::sim_cluster cluster(w.loop, w.network, workers,
                              static_cast<std::uint16_t>(1 + w.below(3)));
    if (w.chance(0.5)) cluster.share_no_memory();
    if (w.chance(0.3)) cluster.call_through_driver();
    auto body = [&](test::sim_cluster& c) { return everything(&w, &c); };
    auto running = sim::run_on(w.network.loop_of("driver"), cluster.run(body));
    co_await running;
}

const sim::scenario registered("streams", &scenario);

} // namespace streams_scenario
