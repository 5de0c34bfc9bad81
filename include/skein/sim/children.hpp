// SPDX-License-Identifier: Apache-2.0
#pragma once
// Child processes of the simulated world: coroutines that start, hang, stand still and die like
// processes.
//
//     sim::children here(net, "a");                               // proc::children on the host "a"
//     here.add("worker", [](sim::process* self) -> task<int> {    // its main(), in that role
//         auto stream = self->take_stream();                      // connected with the parent
//         co_return 0;                                            // its exit code
//     });
//     here.faults() = sim::child_faults::draw(loop.random());
//     // kills and pauses at random times
//     here.begin_faults();
//
// What a process does reaches others through its streams only. They are closed when it ends or is
// killed, as a kernel does; the tasks of a killed one are cancelled and see broken streams. While
// it stands still (SIGSTOP) nothing leaves its streams and nothing is read from them; its timers go
// on.

#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/function.hpp>
#include <skein/core/time.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/network.hpp>
#include <skein/net/stream.hpp>
#include <skein/proc/children.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein::sim {

class process;

namespace detail {
class process_end;
class process_network;
class simulated_child;
struct children_state;
} // namespace detail

/// What a program does, from its start to its exit code. An error is its last words, and exit code
/// 1. SIGTERM and SIGINT cancel it: unless it gives a code then, it ends by the signal. The process
/// outlives it; what it spawns it joins, whatever happens.
using program = unique_function<task<int>(process*)>;

/// How often starts fail and processes break. All zero = none of it.
struct child_faults {
    time_span least_start = std::chrono::microseconds(200); ///< until start() returns
    time_span most_start = std::chrono::milliseconds(5);
    double slow_start = 0; ///< of starts: the program loads for up to `slow_load`
    time_span slow_load = std::chrono::seconds(3);
    double no_descriptors = 0, not_found = 0, not_permitted = 0; ///< of starts: they fail so
    double hang = 0;                                             ///< of starts: they never end
    time_span kill_every{};  ///< between two kills of any child; zero = none by themselves
    time_span pause_every{}; ///< between two pauses of any child; zero = none
    time_span pause_lasts = std::chrono::milliseconds(800); ///< at most

    /// A mix drawn from `random`; the lasting failures (no such program, no permission) are rare in
    /// it.
    static child_faults draw(random_source& random);
};

/// A simulated process, as its program sees it.
class process : public std::enable_shared_from_this<process> {
public:
    process(const process&) = delete;
    process& operator=(const process&) = delete;
    ~process();

    /// Role, name, message and what else its parent asked for.
    [[nodiscard]] const proc::child_options& started_with() const noexcept { return how_; }
    [[nodiscard]] std::int64_t pid() const noexcept { return pid_; }
    [[nodiscard]] const std::string& host() const noexcept { return host_; }
    /// The network of its host. Its streams and listeners are closed with the process.
    [[nodiscard]] net::network& network() noexcept;
    /// Its end of the socket, once; nullptr if the parent wanted none.
    [[nodiscard]] std::unique_ptr<net::stream> take_stream();
    /// What its parent reads when it has ended. The first text stands.
    void leave_last_words(std::string text) {
        if (last_words_.empty()) last_words_ = std::move(text);
    }
    /// Writes to its standard output or error; nothing happens where its parent does not read that.
    /// Suspends while the parent has much to read, as before a full pipe.
    task<void> print(bool is_error, std::string text);
    /// It has had its SIGKILL: what it still does here, nobody sees.
    [[nodiscard]] bool is_killed() const noexcept { return killed_; }
    /// What child::usage() gives from now on.
    void set_usage(proc::process_usage now) noexcept { usage_ = now; }

private:
    friend class children;
    friend class detail::process_end;
    friend class detail::process_network;
    friend class detail::simulated_child;
    friend struct detail::children_state;

    process(detail::children_state& in, proc::child_options how, std::int64_t pid);
    void signal(int number) noexcept;
    void kill() noexcept;
    void pause() noexcept { paused_ = !ended_; }
    void resume() noexcept;
    void ask_to_leave(int number) noexcept;
    void close_all() noexcept;
    /// While it stands still, not even its cancellation is seen.
    task<void> stand_still();

    proc::child_options how_;
    std::int64_t pid_;
    std::string host_;
    std::unique_ptr<detail::process_network> network_;
    std::unique_ptr<net::stream> stream_;
    std::vector<detail::process_end*>
        open_; // its streams and listeners, in the order they were made
    cancel_source stop_;
    int asked_ = 0, pending_ = 0; ///< the signal that asked it to leave; that will when it goes on
    bool paused_ = false, killed_ = false, ended_ = false;
    bool computes_ = false; ///< that is why it stands still
    wait_queue resumed_;
    proc::process_usage usage_;
    std::string last_words_;
    std::array<std::string, 2> written_; ///< to its output and error, and not read yet
    wait_queue written_changed_;
    proc::exit_status status_;
    event gone_; ///< its parent may know
};

/// What `ps` would show.
struct running_process {
    std::int64_t pid = 0;
    std::string name;
};

/// Processes on one host of the simulated network. Must outlive the loop's run, as the network
/// must.
class children final : public proc::children {
public:
    children(sim::network& in, std::string host,
             proc::host_resources offers = {4, std::uint64_t{8} << 30});
    ~children() override;

    /// What runs for children that are started in this role.
    void add(std::string role, program entry);

    ///   errors  as proc::children::start; not_found: also a role without a program
    [[nodiscard]] task<std::unique_ptr<proc::child>> start(proc::child_options how) override;
    [[nodiscard]] proc::host_resources resources() override;

    [[nodiscard]] child_faults& faults() noexcept;
    /// Children cannot be started there from now on.
    void remove_folder(std::string path);

    /// Kills and pauses children at random times from now on, as faults() says.
    void begin_faults();
    /// No new faults; those that stand still go on. A start that hangs does so until it is
    /// cancelled.
    void stop_faults();

    /// Those that have not ended, the oldest first.
    [[nodiscard]] std::vector<running_process> running() const;
    /// SIGKILL from outside, counted as a fault; nothing happens if it has ended.
    void kill(std::int64_t pid);
    /// SIGSTOP, counted as a fault, and SIGCONT so much later.
    void pause(std::int64_t pid, duration length);
    /// The same of one whose function computes so long: /proc says nothing of that.
    void compute(std::int64_t pid, duration length);

private:
    std::shared_ptr<detail::children_state> state_; // shared with processes and events under way
};

} // namespace skein::sim

#if SKEIN_HEADER_ONLY
#include <skein/sim/detail/children.ipp>
#include <skein/sim/detail/process_network.ipp>
#endif
