// SPDX-License-Identifier: Apache-2.0
#pragma once
// worker_room: a driver's worker as those see it who give tasks to workers: its cores, what is
// under way there, who holds some of it, and whether new tasks go there. Part of detail/dispatch.hpp,
// which changes it; the link to the worker fills in who it is and says when it is lost.
//
//     worker_room room;
//     room.place = sched::place_id(3);
//     room.capacity = 4;
//     parts.add(room, "worker-3");   // a dispatch; until remove()

#include <skein/core/intrusive_list.hpp>
#include <skein/core/time.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/lease_line.hpp>
#include <skein/sched/demands.hpp>
#include <skein/sched/scheduler.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace skein::net {
class channel;
}

namespace skein::rt {

struct peer;

namespace detail {

/// How fast a worker ends tasks, and so how many it is sent ahead of time for each core: as many as
/// take about a millisecond (one, where tasks are long).
struct worker_pace {
    std::uint32_t window = 1; ///< tasks that are under way for each core at most
    double service = 1e-3;    ///< seconds per task, smoothed
    time_point mark{};        ///< since when `finished` counts
    std::uint32_t finished = 0;

    /// A task goes to the worker, which had none.
    void begin(time_point now) noexcept {
        mark = now;
        finished = 0;
    }
    /// A task has ended there.
    void note_end(time_point now) noexcept {
        ++finished;
        if (now <= mark) return;
        const double each = to_seconds(now - mark) / finished;
        service = each < service ? each : (service + each) / 2;
        window = static_cast<std::uint32_t>(std::clamp(1e-3 / service, 1.0, 1024.0));
        begin(now);
    }
};

/// Whether a worker has a second process beside it, see detail/dispatch.hpp.
enum class second_process : std::uint8_t {
    none,    ///< it has none, or it is there: `aside`
    asked,   ///< the source of workers was asked for one
    refused, ///< it cannot have one
};

/// In the list of free workers while it has nothing to do and nobody needs its loop.
struct worker_room : list_node<worker_room> {
    peer* link = nullptr;               ///< the link to it; only carried along
    const net::channel* wire = nullptr; ///< its connection: so the source of workers knows it
    sched::place_id place;              ///< its number, also in the scheduler
    sched::demand_id demand;            ///< the only demand that it serves; none: all
    std::vector<std::string> labels;    ///< of its node
    bool labels_follow = false;         ///< the labels are not known yet
    bool up = true;                     ///< its link has not ended
    bool is_place = false;              ///< the scheduler knows it
    bool retiring = false;              ///< nothing new goes there
    bool suspected = false;             ///< the same, for it gives no sign of life
    bool lent = false;                  ///< its cores are others'
    bool is_aside = false;              ///< it is a second process, see `principal`
    bool spent = false;                 ///< it was for one actor, which has ended: it leaves
    std::uint32_t capacity = 1;         ///< cores
    std::uint32_t busy = 0;             ///< cores of tasks there, also of those sent ahead of time
    worker_pace pace;
    // Who needs its loop: a plain task there would make them wait.
    std::size_t actors = 0;
    std::size_t coroutines = 0;       ///< tasks there that suspend
    std::size_t parents = 0;          ///< of them, that wait for calls that they have made
    std::size_t calls_made = 0;       ///< by what runs there, which the driver passed on
    worker_room* aside = nullptr;     ///< a second process, which runs its plain tasks meanwhile
    worker_room* principal = nullptr; ///< of a second process: whose tasks it runs, on whose cores
    second_process aside_is = second_process::none;
    credit_line credit;                               ///< of tasks that occupy no cores
    const call_base* alone = nullptr;                 ///< a task behind which no other is sent
    sched::request_id whole;                          ///< the lease of all its cores, for that task
    std::vector<std::unique_ptr<lease_share>> shares; ///< its leases, by line
    std::uint32_t unleased = 0; ///< cores of `busy` that tasks have without a lease

    [[nodiscard]] bool takes_tasks() const noexcept { return up && !retiring && !suspected; }
    /// Whose tasks it runs: a second process those of the worker beside which it is.
    [[nodiscard]] worker_room& for_whom() noexcept {
        return principal != nullptr ? *principal : *this;
    }
    [[nodiscard]] bool is_needed() const noexcept { return actors + coroutines > 0; }
    [[nodiscard]] bool has_label(const std::string& label) const {
        return std::find(labels.begin(), labels.end(), label) != labels.end();
    }
};

} // namespace detail
} // namespace skein::rt
