// SPDX-License-Identifier: Apache-2.0
#pragma once
// A scenario of the simulated world: a protocol run once per seed under random faults.
//
//     skein::task<void> my_scenario(skein::sim::world& w) { ... w.check(ok, "echo differs"); }
//     static const skein::sim::scenario registered("rt_calls", &my_scenario);
//
// Put it into tests/sim/<name>_scenario.cpp; the program skein_sim links all of them. The world
// outlives the task. Nothing may depend on wall time, addresses or the order of unordered maps.

#include <skein/core/task.hpp>
#include <skein/sim/faults.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

namespace skein::sim {

/// One seed's world: a loop with virtual time, a network with faults drawn from the seed.
struct world {
    sim::loop& loop;
    sim::network& network; ///< network.host("a") is a net::network&
    std::uint64_t seed;

    /// Uniform in [0, bound).
    std::uint64_t below(std::uint64_t bound) { return loop.random().below(bound); }
    /// True with probability p.
    bool chance(double p) { return loop.random().unit() < p; }

    /// An invariant of the scenario; a false one fails the seed with this message.
    void check(bool holds, std::string_view message) {
        if (!holds) throw error(errc::internal, fmt::format("invariant broken: {}", message));
    }
};

/// Registers a scenario; a static object of namespace scope.
class scenario {
public:
    using function = task<void> (*)(world&);

    scenario(std::string name, function body) : name_(std::move(name)), body_(body) {
        all().push_back(this);
    }
    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    task<void> run(world& in) const { return body_(in); }

    static std::vector<const scenario*>& all() {
        static std::vector<const scenario*> list;
        return list;
    }

private:
    std::string name_;
    function body_;
};

} // namespace skein::sim
