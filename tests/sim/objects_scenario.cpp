// SPDX-License-Identifier: Apache-2.0
// objects: values that are put, made by tasks, passed by ref at any depth, kept by actors and read by
// views, on workers that die, in a store that is often full; on one host, with a disk for what finds no
// room or without one, which may be small, fail, or give back other bytes than it got; or on nodes with a
// store each, whose links break and are cut, and which die.
//
// Invariants: what is read is what was written, whoever reads it and however often it ran before; what
// the driver holds is there, unless its node has died, or an error says which disk has lost it; each call
// has an outcome after the calm; when all is let go of nothing is left in the stores and on the disk.
#include "sim/scenario.hpp"

#include <tests/support/sim_cluster.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/put.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/view.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace objects_scenario {

using namespace skein;
using namespace std::chrono_literals;
using numbers = std::vector<std::uint32_t>;

constexpr std::uint32_t broken = 0xffffffff;

/// All its elements say which value it is.
numbers value_of(std::uint32_t id, std::size_t bytes) {
    return numbers(bytes / sizeof(std::uint32_t), id);
}
std::uint32_t id_of(std::span<const std::uint32_t> all) {
    if (all.empty()) return broken;
    return std::all_of(all.begin(), all.end(), [&](auto one) { return one == all.front(); })
               ? all.front()
               : broken;
}

numbers make(std::uint32_t id, std::uint32_t bytes) { return value_of(id, bytes); }
task<numbers> make_slowly(std::uint32_t id, std::uint32_t bytes, int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return value_of(id, bytes);
}
std::uint32_t look(view<numbers> at) { return id_of(*at); }
std::uint32_t look_at_span(std::span<const std::uint32_t> at) { return id_of(at); }
std::uint32_t take(numbers all) { return id_of(all); }
task<std::uint32_t> look_twice(view<numbers> at, int ms) {
    const auto first = id_of(*at);
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return id_of(*at) == first ? first : broken;
}
std::vector<std::uint32_t> look_at_all(std::vector<view<numbers>> all) {
    std::vector<std::uint32_t> out;
    for (const auto& one : all) out.push_back(id_of(*one));
    return out;
}
/// Gives the refs back that it got, and one that it has made.
task<std::vector<ref<numbers>>> pass_back(std::vector<ref<numbers>> all, std::uint32_t id,
                                          std::uint32_t bytes) {
    auto putting = put(value_of(id, bytes));
    all.push_back(co_await putting);
    co_return all;
}
/// Made on one worker and read on another, by a third.
task<std::uint32_t> make_and_look(std::uint32_t id, std::uint32_t bytes) {
    const auto made = remote<&make>.with({.cpus = 0})(id, bytes);
    const auto seen = remote<&look>.with({.cpus = 0})(made);
    co_return co_await seen;
}

struct keeper {
    std::map<int, view<numbers>> views;
    std::map<int, ref<numbers>> refs;
    std::uint32_t keep(int place, view<numbers> one) {
        views[place] = std::move(one);
        return id_of(*views[place]);
    }
    void hold(int place, ref<numbers> one) { refs[place] = std::move(one); }
    ref<numbers> give(int place) { return refs.contains(place) ? refs[place] : ref<numbers>(); }
    std::uint32_t check(int place) { return views.contains(place) ? id_of(*views[place]) : 0; }
    void forget(int place) {
        views.erase(place);
        refs.erase(place);
    }
};

bool is_expected(const error& why, bool disk_fails) {
    if (why.code() == errc::io || why.code() == errc::corrupt) return disk_fails;
    constexpr errc may_be[] = {errc::worker_lost, errc::cancelled, errc::timeout,    errc::closed,
                               errc::reset,       errc::not_found, errc::object_lost};
    return std::find(std::begin(may_be), std::end(may_be), why.code()) != std::end(may_be);
}

/// What the driver has.
struct held_value {
    std::uint32_t id = 0;
    ref<numbers> value;
};

class game {
public:
    /// disk: null: it does not fail.
    game(sim::world& w, test::sim_cluster& c, sim::disk* failing)
        : w_(w), cluster_(c), failing_(failing) {}

    task<void> play() {
        auto making = as_result(with_timeout(actor<keeper>.with({.restarts = -1})(), 30s));
        if (auto made = co_await making) keeper_ = *made;
        if (cluster_.nodes() != 0 && w_.chance(0.3)) {
            raise_firewall();
            co_await sleep_for(20s); // until both know
        }
        const int steps = 10 + static_cast<int>(w_.below(60));
        for (int i = 0; i < steps; ++i) {
            auto step = one_step();
            co_await step;
            if (w_.chance(0.4)) co_await sleep_for(std::chrono::milliseconds(w_.below(30)));
            if (cluster_.nodes() != 0) {
                auto shaking = shake_nodes();
                co_await shaking;
            }
            if (failing_ != nullptr && w_.chance(0.1)) spoil();
            if (w_.chance(0.06) && !firewall_)
                cluster_.kill(static_cast<int>(w_.below(std::uint64_t(cluster_.workers()))));
        }
        auto healed = cuts_.join();
        co_await healed;
        auto checked = check_all();
        co_await checked;
        check_views();
        views_.clear();
        held_.clear();
        keeper_ = {};
        co_await sleep_for(100s);
        w_.check(cluster_.driver().pending() == 0, "a call has no outcome long after the calm");
        w_.check(cluster_.nodes() == 0 || firewall_ || cluster_.are_stores_linked(),
                 "stores have not met again" + cluster_.describe_stores());
        const auto left = cluster_.stored();
        w_.check(left.objects == 0,
                 "an object is left that nobody holds" + cluster_.describe_stores());
        w_.check(left.kept == 0, "pages were not given back");
        w_.check(left.pinned == 0, "what is gone is counted as read");
        w_.check(left.away == 0, "what is gone is counted");
        w_.check(cluster_.stored_in_files().bytes == 0, "a file is left of what is gone");
    }

private:
    static task<void> heal_later(sim::world* w, std::string one, std::string other) {
        // Sometimes both take each other for lost meanwhile.
        const std::uint64_t most = w->chance(0.2) ? 30'000 : 4'000;
        co_await sleep_for(std::chrono::milliseconds(w->below(most)));
        w->network.heal(one, other);
    }
    /// Two stores never reach each other; what is told of below is the same all the same.
    void raise_firewall() {
        const auto n = std::uint64_t(cluster_.nodes());
        const auto one = w_.below(n);
        const auto other = (one + 1 + w_.below(n - 1)) % n;
        w_.network.partition(cluster_.host_of_node(int(one)), cluster_.host_of_node(int(other)));
        firewall_ = true;
    }
    /// What befalls the links of nodes, and nodes.
    task<void> shake_nodes() {
        if (firewall_) co_return;
        const auto any_node = [&] {
            return static_cast<int>(w_.below(std::uint64_t(cluster_.nodes())));
        };
        const auto one = cluster_.host_of_node(any_node()),
                   other = cluster_.host_of_node(any_node());
        if (one != other && w_.chance(0.1)) w_.network.reset(one, other);
        if (one != other && w_.chance(0.05)) {
            w_.network.partition(one, other);
            cuts_.spawn(heal_later(&w_, one, other));
        }
        if (!w_.chance(0.02)) co_return;
        auto killing =
            cluster_.kill_node(1 + static_cast<int>(w_.below(std::uint64_t(cluster_.nodes() - 1))));
        co_await killing;
    }
    [[nodiscard]] bool is_expected(const error& why) const {
        // Who is cut off for long is taken for lost, too.
        const bool may_be_lost = cluster_.nodes() != 0 && !firewall_;
        return objects_scenario::is_expected(why, failing_ != nullptr) &&
               (may_be_lost || why.code() != errc::object_lost);
    }
    /// The disk changes a bit of what lies on it.
    void spoil() {
        const auto files = failing_->list("spill");
        if (!files || files->empty()) return;
        const auto& one = (*files)[w_.below(files->size())];
        if (one.bytes != 0) (void)failing_->flip_bit("spill/" + one.name, w_.below(8 * one.bytes));
    }
    [[nodiscard]] std::uint32_t size() {
        return static_cast<std::uint32_t>(4 * (1 + w_.below(w_.chance(0.3) ? 2'000 : 40'000)));
    }
    [[nodiscard]] std::uint32_t next_id() { return ++last_id_; }
    [[nodiscard]] held_value& any() { return held_[w_.below(held_.size())]; }

    /// What a call says of a value.
    task<void> expect(ref<std::uint32_t> said, std::uint32_t id, const char* what,
                      bool of_actor = false) {
        auto asked = as_result(with_timeout(std::move(said), 1000s));
        const auto got = co_await asked;
        if (got)
            w_.check(*got == id, what);
        else // an actor may be gone, an object that the driver holds may not
            w_.check(is_expected(got.error()) ||
                         (of_actor && got.error().code() == errc::not_found),
                     std::string(to_string(got.error().code())) + ": " + got.error().what());
    }

    task<void> one_step() {
        const auto kind = held_.empty() ? 0 : w_.below(19);
        const auto id = next_id();
        switch (kind) {
        case 0: {
            auto putting = put(value_of(id, size()));
            auto stored = co_await putting;
            held_.push_back({id, std::move(stored)});
            break;
        }
        case 1: held_.push_back({id, remote<&make>.with({.retries = 100})(id, size())}); break;
        case 2: {
            const auto large = size();
            const int pause = static_cast<int>(w_.below(100));
            held_.push_back({id, remote<&make_slowly>.with({.retries = 100})(id, large, pause)});
            break;
        }
        case 3: {
            const auto one = any();
            auto checked = expect(remote<&look>(one.value), one.id, "a view shows another value");
            co_await checked;
            break;
        }
        case 4: {
            const auto one = any();
            auto checked =
                expect(remote<&look_at_span>(one.value), one.id, "a span shows another value");
            co_await checked;
            break;
        }
        case 5: {
            const auto one = any();
            auto checked = expect(remote<&take>(one.value), one.id, "a copy is another value");
            co_await checked;
            break;
        }
        case 6: {
            const auto one = any();
            const auto called = remote<&look_twice>(one.value, static_cast<int>(w_.below(200)));
            if (w_.chance(0.3)) called.cancel();
            auto checked = expect(called, one.id, "a view changes");
            co_await checked;
            break;
        }
        case 7: {
            auto checked = look_at_some();
            co_await checked;
            break;
        }
        case 8: {
            auto passed = pass_some(id);
            co_await passed;
            break;
        }
        case 9: {
            auto checked = expect(remote<&make_and_look>.with({.cpus = 0})(id, size()), id,
                                  "what a worker made another one saw otherwise");
            co_await checked;
            break;
        }
        case 10:
        case 11: {
            auto used = use_keeper();
            co_await used;
            break;
        }
        case 12: {
            const auto large = value_of(id, size());
            auto checked = expect(remote<&take>(large), id, "an argument has changed");
            co_await checked;
            break;
        }
        case 13:
        case 14: {
            const auto one = any();
            auto looking = as_result(with_timeout(keep_view(one.value), 1000s));
            const auto seen = co_await looking;
            if (seen)
                views_.emplace_back(one.id, *seen);
            else
                w_.check(is_expected(seen.error()), seen.error().what());
            break;
        }
        case 15:
            check_views();
            if (w_.chance(0.5)) views_.clear();
            break;
        case 16:
        case 17: {
            auto all = many_at_once();
            co_await all;
            break;
        }
        default:
            if (keeps_much_ && w_.chance(0.7)) break;
            held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(w_.below(held_.size())));
        }
    }

    task<void> look_at_some() {
        std::vector<ref<numbers>> refs;
        std::vector<std::uint32_t> ids;
        for (std::uint64_t n = 1 + w_.below(5); n > 0; --n) {
            const auto& one = any();
            refs.push_back(one.value);
            ids.push_back(one.id);
        }
        auto asked = as_result(with_timeout(remote<&look_at_all>(refs), 1000s));
        const auto got = co_await asked;
        if (got)
            w_.check(*got == ids, "views in a vector show other values");
        else
            w_.check(is_expected(got.error()), got.error().what());
    }

    task<void> pass_some(std::uint32_t id) {
        std::vector<ref<numbers>> refs;
        std::vector<std::uint32_t> ids;
        for (std::uint64_t n = w_.below(4); n > 0; --n) {
            const auto& one = any();
            refs.push_back(one.value);
            ids.push_back(one.id);
        }
        ids.push_back(id);
        auto asked = as_result(
            with_timeout(remote<&pass_back>.with({.retries = 100})(refs, id, size()), 1000s));
        auto got = co_await asked;
        if (!got) {
            w_.check(is_expected(got.error()), got.error().what());
            co_return;
        }
        w_.check(got->size() == ids.size(), "refs are missing in a result");
        for (std::size_t i = 0; i < ids.size(); ++i)
            if (w_.chance(0.7)) held_.push_back({ids[i], (*got)[i]});
    }

    task<void> use_keeper() {
        if (!keeper_) co_return;
        const auto one = any();
        const int place = static_cast<int>(w_.below(4));
        switch (w_.below(5)) {
        case 0: {
            auto checked = expect(keeper_.call<&keeper::keep>(place, one.value), one.id,
                                  "an actor keeps another value", true);
            co_await checked;
            places_[place].push_back(one.id);
            break;
        }
        case 1: {
            auto held =
                as_result(with_timeout(keeper_.call<&keeper::hold>(place, one.value), 1000s));
            (void)co_await held;
            places_[place].push_back(one.id);
            break;
        }
        case 2: {
            auto asked = as_result(with_timeout(keeper_.call<&keeper::check>(place), 1000s));
            const auto got = co_await asked;
            if (got) w_.check(*got == 0 || knows(place, *got), "what an actor keeps has changed");
            break;
        }
        case 3: {
            auto asked = as_result(with_timeout(keeper_.call<&keeper::give>(place), 1000s));
            const auto got = co_await asked;
            if (!got || !*got) break;
            auto looking = as_result(with_timeout(look_here(*got), 1000s));
            const auto seen = co_await looking;
            if (seen) w_.check(knows(place, *seen), "what an actor gives is another value");
            break;
        }
        default: keeper_.call<&keeper::forget>(place);
        }
    }
    [[nodiscard]] bool knows(int place, std::uint32_t id) {
        const auto& all = places_[place];
        return std::find(all.begin(), all.end(), id) != all.end();
    }
    /// Values are made while others are read.
    task<void> many_at_once() {
        std::vector<std::pair<std::uint32_t, ref<std::uint32_t>>> said;
        for (std::uint64_t n = 2 + w_.below(8); n > 0; --n) {
            if (w_.chance(0.4)) {
                const auto id = next_id();
                held_.push_back({id, remote<&make>.with({.retries = 100})(id, size())});
            }
            const auto one = any();
            said.emplace_back(one.id,
                              remote<&look_twice>(one.value, static_cast<int>(w_.below(20))));
        }
        for (const auto& [id, one] : said) {
            auto checked = expect(one, id, "one of many views changes");
            co_await checked;
        }
    }
    static task<view<numbers>> keep_view(ref<numbers> at) {
        auto looking = view(at);
        co_return co_await looking;
    }
    void check_views() {
        for (const auto& [id, one] : views_)
            w_.check(id_of(*one) == id, "a view that the driver keeps has changed");
    }
    static task<std::uint32_t> look_here(ref<numbers> at) {
        auto looking = view(at);
        const auto seen = co_await looking;
        co_return id_of(*seen);
    }

    task<void> check_all() {
        check_views();
        if (w_.chance(0.5)) views_.clear();
        for (const auto& one : held_) {
            auto looking = as_result(with_timeout(look_here(one.value), 1000s));
            const auto seen = co_await looking;
            if (seen)
                w_.check(*seen == one.id, "what the driver holds is another value");
            else
                w_.check(is_expected(seen.error()), seen.error().what());
            auto copying = as_result(with_timeout(one.value, 1000s));
            const auto copy = co_await copying;
            if (copy)
                w_.check(id_of(*copy) == one.id, "a copy of what the driver holds is another");
        }
    }

    sim::world& w_;
    test::sim_cluster& cluster_;
    sim::disk* failing_;
    const bool keeps_much_ = w_.chance(0.5);
    bool firewall_ = false;
    std::uint32_t last_id_ = 0;
    std::vector<held_value> held_;
    std::vector<std::pair<std::uint32_t, view<numbers>>> views_; ///< and which values they are
    std::map<int, std::vector<std::uint32_t>> places_; ///< what was to be kept there, ever
    actor_handle<keeper> keeper_;
    scope cuts_;
};

task<void> scenario(sim::world& w) {
    // On one host connections do not break while both processes live.
    w.network.stop_faults();
    sim::disk_options how;
    const bool has_disk = w.chance(0.8), fails = has_disk && w.chance(0.25);
    if (w.chance(0.2)) how.capacity = (1 + w.below(4)) << 20;
    if (fails) how.io_error = 0.03;
    sim::disk disk(w.loop.random(), how, &w.network.counts());
    test::sim_cluster cluster(w.loop, w.network, 1 + static_cast<int>(w.below(3)));
    const auto least = has_disk && w.chance(0.5) ? 18 : 19;
    const auto bytes = (1 + w.below(4)) << least;
    if (w.chance(0.5))
        cluster.share_stores(bytes, 1 + static_cast<int>(w.below(3)));
    else
        cluster.share_store(bytes, has_disk ? &disk : nullptr);
    auto body = [&](test::sim_cluster& c) -> task<void> {
        game g(w, c, fails ? &disk : nullptr);
        auto playing = g.play();
        co_await playing;
    };
    auto running = cluster.run(body);
    co_await running;
}

const sim::scenario registered("objects", &scenario);

} // namespace objects_scenario
