// SPDX-License-Identifier: Apache-2.0
#pragma once
// The implicit local cluster: N copies of this program as worker processes, kept alive while the
// driver runs, gone when it is gone.
//
// A worker is /proc/self/exe started again. It inherits one end of a socket pair and a pipe with
// its name and the token (never in argv or the environment), and nothing is left in the file
// system. Workers listen for each other, at abstract Unix sockets. It dies with the driver
// (PR_SET_PDEATHSIG), and leaves by itself when the socket closes. One that dies is replaced; one
// that cannot start ends the run with its last words.
//
// The pool knows neither processes nor sockets: loop, network and children are given to it, those
// of this host by run(), simulated ones by tests/sim/local_workers_scenario.cpp.

#include <skein/core/bytes.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/task.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/proc/output.hpp>
#include <skein/proc/shared_memory.hpp>
#include <skein/rt/worker_link.hpp>
#include <skein/rt/worker_source.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace skein {
class loop;
}

namespace skein::net {
class network;
class stream;
} // namespace skein::net

namespace skein::objects {
class local_store;
class store_client;
} // namespace skein::objects

namespace skein::proc {
class child;
class children;
} // namespace skein::proc

namespace skein::rt {
class runtime;
}

namespace skein::program {

/// How the workers of a run are started.
struct local_workers_options {
    int count = 0;                             ///< 0: one per core
    std::string executable = "/proc/self/exe"; ///< must be the same build as this program
    std::string program = "skein";             ///< argv[0] that `ps` shows
    bool over_tcp = false;                     ///< loopback TCP instead of a Unix socket pair
    bool direct_calls = true; ///< workers call the actors of each other without the driver
    /// What this host has beside its cores: "gpu=2,memory=16GiB,ssd=1". Gpus and memory that are
    /// not named are those that are there.
    sched::resources offers{};
    /// What CUDA_VISIBLE_DEVICES calls each of its gpus; empty: as many as `offers` has, by the
    /// names that they have for this process, see gpus_to_offer().
    std::vector<std::string> gpu_names{};
    /// The store of objects that workers share with the driver; null: there is none, and large values
    /// travel in messages.
    std::shared_ptr<objects::local_store> store{};
    /// Prints what workers print; empty: their output is that of this process.
    proc::print_lines print{};
    time_constants times{};
};

/// The worker processes of one driver. Its serve() must have ended before it is destroyed.
class local_workers final : public rt::worker_source {
public:
    ///   via     where it listens for workers that come over TCP
    ///   where   what starts them, and says how many cores there are for them
    /// All of them must outlive it.
    local_workers(skein::loop& on, net::network& via, proc::children& where, rt::runtime& driver,
                  local_workers_options how);
    ~local_workers() override;

    [[nodiscard]] int count() const noexcept;
    /// Places that are filled or will be: those whose workers fail again and again are given up.
    [[nodiscard]] int places() const noexcept;

    /// Starts the workers and replaces those that die, until stop() and the runtime's close().
    [[nodiscard]] task<void> serve() override;
    /// No worker is replaced from now on.
    void stop() noexcept override;
    /// Starts workers that hold what a demand asks for, and lends them cores of the others
    /// meanwhile.
    void want(const rt::worker_demand& what) override;
    /// What a worker in a placement group has of its bundle is others' there; the rest of the cores
    /// the runtime takes back itself.
    void blocked(const net::channel& worker, bool on) override;
    /// Kills its process.
    void end_now(const net::channel& worker) override;
    /// Starts one, which shares the cores of that worker and leaves with it.
    [[nodiscard]] bool want_beside(const net::channel& worker) override;
    /// Takes room of this host for the group, as long as it is held.
    void want_group(const rt::worker_group& what) override;
    void drop_group(std::uint64_t number) override;

    /// Pids of the workers that run now, for tests and tools.
    [[nodiscard]] const std::vector<pid_t>& pids() const noexcept;

private:
    class pool; // in detail/local_workers.ipp
    std::unique_ptr<pool> pool_;
};

/// True in a process that was started as a worker.
[[nodiscard]] bool is_worker() noexcept;

/// What a worker does between its boot message and its end, in any world: joins its driver,
/// executes the calls, leaves with it.
///   via        where it connects; must live until the task has ended, as must self
///   order      its boot message
///   inherited  the stream that it was started with; nullptr: it connects
///   memory     what its driver shares with it; may be none
///   files      those of the store that it has inherited, if its order says that there is one
///   errors     malformed (the order); those of connection::connect; cancelled
[[nodiscard]] task<void> work_for_driver(net::network* via, rt::runtime* self, byte_buffer order,
                                         std::unique_ptr<net::stream> inherited,
                                         proc::shared_memory memory,
                                         std::vector<unique_fd> files = {});

/// The whole life of a worker process: joins its driver, executes, leaves with it. Gives the exit
/// code.
[[nodiscard]] int worker_main();

namespace detail {

/// Ends a worker that gives no sign of life any more, though its process is there; until it is
/// cancelled.
[[nodiscard]] task<void> watch_process(proc::child* process, std::shared_ptr<net::channel> wire,
                                       rt::runtime* driver, time_constants times);
/// Has the second process of another worker leave when it has had nothing to do for long; it has
/// left then.
[[nodiscard]] task<void> leave_when_idle(std::shared_ptr<net::channel> aside, rt::runtime* driver,
                                         time_constants times);
/// "w2" for "worker-2": in a process's name there is little space.
[[nodiscard]] std::string short_worker_name(std::string_view name);

/// worker_main(), after which the process ends: in main there may be more, also another run(), that
/// is for the driver only. As at the end of main, static objects are destroyed and the tools that
/// wait for the end of a program (leak check, coverage) do their work; the objects of main itself
/// stay.
[[noreturn]] void live_as_worker();

} // namespace detail

} // namespace skein::program

#if SKEIN_HEADER_ONLY
#include <skein/program/detail/local_worker_main.ipp>
#include <skein/program/detail/local_workers.ipp>
#include <skein/program/detail/worker_watch.ipp>
#endif
