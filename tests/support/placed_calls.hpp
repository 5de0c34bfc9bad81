// SPDX-License-Identifier: Apache-2.0
#pragma once
// Calls, workers and a source of workers for tests of what places calls, without a runtime: nothing
// is sent, and nothing runs.

#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/worker_room.hpp>
#include <skein/rt/registry.hpp>
#include <skein/rt/worker_source.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace skein_test {

/// A call that only waits.
class placed_call final : public skein::rt::detail::call_base {
protected:
    skein::result<void> take_value(skein::byte_span) override { return {}; }
};
using call_ptr = skein::counted_ptr<skein::rt::detail::call_base>;

[[nodiscard]] inline const skein::rt::function_record& plain_function() {
    static const skein::rt::function_record fn = [] {
        skein::rt::function_record r;
        r.name = "plain";
        return r;
    }();
    return fn;
}
[[nodiscard]] inline const skein::rt::function_record& coroutine_function() {
    static const skein::rt::function_record fn = [] {
        skein::rt::function_record r;
        r.name = "coroutine";
        r.is_coroutine = true;
        return r;
    }();
    return fn;
}

/// A task with this demand, of that many cores.
[[nodiscard]] inline call_ptr make_task(skein::sched::demand_id demand, std::uint16_t cpus,
                                        const skein::rt::function_record& fn = plain_function()) {
    call_ptr call(new placed_call);
    call->fn = &fn;
    call->demand = demand;
    call->cpus = cpus;
    return call;
}
[[nodiscard]] inline call_ptr make_task() { return make_task(skein::sched::one_cpu, 1); }

/// A worker that serves all demands.
[[nodiscard]] inline std::unique_ptr<skein::rt::detail::worker_room> make_room(
    std::uint64_t number, std::uint32_t cores) {
    auto room = std::make_unique<skein::rt::detail::worker_room>();
    room->place = skein::sched::place_id(number);
    room->capacity = cores;
    // Never looked into: a source of workers knows the connection by its address.
    room->wire = reinterpret_cast<const skein::net::channel*>(room.get());
    return room;
}

/// Remembers what it is asked for.
class asked_source : public skein::rt::worker_source {
public:
    std::vector<std::size_t> wanted; ///< as want() was told
    std::vector<bool> blocks;        ///< as blocked() was told
    std::size_t asides = 0;          ///< times want_beside() was called
    bool has_asides = true;          ///< what that says

    skein::task<void> serve() override { co_return; }
    void stop() noexcept override {}
    void want(const skein::rt::worker_demand& demand) override { wanted.push_back(demand.wanted); }
    void blocked(const skein::net::channel&, bool on) override { blocks.push_back(on); }
    void end_now(const skein::net::channel&) override {}
    bool want_beside(const skein::net::channel&) override {
        ++asides;
        return has_asides;
    }
    void want_group(const skein::rt::worker_group&) override {}
    void drop_group(std::uint64_t) override {}
};

} // namespace skein_test
