// SPDX-License-Identifier: Apache-2.0
#pragma once
// Child processes as one part: starting copies of this program with a boot message, seeing their
// end, asking them to leave and insisting. What is above decides what they are for and when one is
// started again.
//
//     proc::local_children here(loop);
//     proc::child_options how;
//     how.role = "worker";
//     how.name = "worker-1";
//     how.message = wire::encode(order);              // the child: proc::take_boot("worker")
//     auto starting = here.start(std::move(how));
//     auto worker = co_await starting;
//     auto stream = worker->take_stream();            // connected with the child's socket
//     auto leaving = proc::stop(*worker, 100ms, 2s);
//     const proc::child_end end = co_await leaving;     // "exited with 1", and why, if it said so
//
// `children` is an interface: processes of this host here, those of a cluster's nodes
// (cluster/leased_ranks.hpp) or of a simulated world (sim/children.hpp) elsewhere. Who starts several
// that belong together need not know which:
//
//     auto opening = where.open();                    // once
//     co_await opening;
//     auto reserving = where.reserve(4);              // of each attempt
//     const auto places = co_await reserving;         // local ranks, in the order of the starts
//     const auto door = where.door();                 // listen there, with that secret

#include <skein/core/bytes.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/function.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/net/address.hpp>
#include <skein/net/stream.hpp>
#include <skein/net/token.hpp>
#include <skein/proc/place_news.hpp>
#include <skein/proc/process.hpp>
#include <skein/proc/shared_memory.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace skein::net {
class real_loop;
}

namespace skein::proc {

/// Of a boot message: with its frame it fits the smallest pipe of Linux, 64 KiB.
inline constexpr std::size_t most_boot_bytes = std::size_t{32} << 10;

/// Files that one child inherits beside its socket and memory.
inline constexpr std::size_t most_inherited = 16;

/// What is started.
struct child_options {
    /// What the child asks proc::take_boot() for. Empty: it is any program, which knows nothing of
    /// that: it gets neither message nor socket.
    std::string role{};
    std::string name{};     ///< as messages name it: "worker-2"
    byte_buffer message{};  ///< for the child alone; at most most_boot_bytes
    bool socket = true;     ///< a connected socket between it and us
    shared_memory memory{}; ///< memory that it shares with us; may be none
    /// Open files that it inherits beside, in this order; at most most_inherited.
    std::vector<std::shared_ptr<const unique_fd>> files{};
    std::string executable = "/proc/self/exe"; ///< this program
    std::vector<std::string> argv{};           ///< empty: those of this process
    std::string cwd{}; ///< its working directory; empty: the one in which this process was started
    /// OMP_NUM_THREADS there, unless the user has set that, here or in `env`; 0: it is not set.
    int threads = 0;
    /// What it writes to its standard output and error is for child::read_output(); else these are
    /// ours.
    bool reads_output = false;
    /// Added to what it inherits. Other users of the host may read it: no secrets.
    std::vector<std::pair<std::string, std::string>> env{};
    time_span stop_grace{}; ///< from its SIGTERM to the kill, where not we but its host counts
    /// Told of its place, where children::are_placed_later(); may be empty.
    place_listener on_place{};
};

/// How a child ended.
struct child_end {
    exit_status status;
    std::string last_words; ///< why it left, if it said so with leave_last_words()
    /// Why there is no such status: it could not be started, or its host is lost. Empty: the status
    /// says how it ended.
    std::string lost{};
    bool is_lasting = false; ///< it could not be started, and could not the next time
    bool was_asked = false;  ///< to end, before it had started
    bool is_moved = false;   ///< its place was taken from it by force: no failure of anybody
};

/// What a process takes.
struct process_usage {
    std::uint64_t resident_bytes = 0;
    duration cpu_time{0}; ///< of all its threads since its start
};

/// What the kernel says of a process that gives no sign of life. One that computes, or waits for a
/// disk or a peer of its own, shows none of it.
struct process_look {
    bool is_stopped = false;      ///< SIGSTOP and the like; not by a debugger
    bool is_ending = false;       ///< the kernel takes it apart: no signal reaches it any more
    bool holds_socket = false;    ///< its end of our socket waits in reads: it reads there itself
    std::uint64_t executable = 0; ///< which one; another one later: exec. 0: not known
};

/// What a host has for its processes, as far as this one may use it.
struct host_resources {
    int cores = 1;
    std::uint64_t memory_bytes = 0; ///< 0: the host does not tell
};

/// A process that was started. Destroying it kills it, and waits until it is gone.
class child {
public:
    child() = default;
    child(const child&) = delete;
    child& operator=(const child&) = delete;
    virtual ~child();

    [[nodiscard]] virtual const std::string& name() const noexcept = 0;
    [[nodiscard]] virtual std::int64_t pid() const noexcept = 0;
    /// False as soon as its end was seen by ended().
    [[nodiscard]] virtual bool running() const noexcept = 0;

    /// Suspends until it has ended; any number of tasks may wait, also afterwards. What it has sent
    /// can still be read from its stream, which then ends, also if somebody it left behind holds
    /// the socket.
    ///   errors  cancelled: the child is not touched, wait again later
    [[nodiscard]] virtual task<child_end> ended() = 0;

    /// Sends it a signal: SIGTERM asks it to leave. Nothing happens if it has ended.
    virtual void signal(int number) noexcept = 0;
    /// Sends it to its process group, too: to all that it has started and that did not leave it.
    virtual void signal_group(int number) noexcept { signal(number); }
    /// Ends it now, with all that it has started and that did not leave its process group.
    virtual void kill() noexcept = 0;
    /// Its place was asked back, and it stays there for this reason.
    virtual void keep_place(const std::string& why) noexcept { (void)why; }

    /// What it takes now; zeros when it has ended.
    [[nodiscard]] virtual process_usage usage() = 0;
    /// What it looks like now, from outside.
    [[nodiscard]] virtual process_look look() { return {}; }

    /// Our end of its socket; nullptr if it has none, or when it has been taken.
    [[nodiscard]] virtual std::unique_ptr<net::stream> take_stream() = 0;

    /// Suspends until it has written something (is_error: to its standard error), and gives how
    /// many bytes of it are in `into`. 0: all has been read and it has ended, or has closed that
    /// file. One task at a time per file. While nobody reads, the child waits as soon as some 64
    /// KiB are there.
    ///   errors  cancelled: nothing is lost
    [[nodiscard]] virtual task<std::size_t> read_output(bool is_error,
                                                        std::span<std::byte> into) = 0;
};

/// What all processes with a mark are sent.
struct marked_signal {
    std::string mark;         ///< "NAME=value", in the environment that they were started with
    int number = 0;           ///< the signal; 0: none, they are counted
    std::int64_t but_not = 0; ///< this process group has been told already: counted alone; 0: none
    std::size_t found = 0;    ///< how many there are: the answer
};

/// One of several that belong together, among those of its host.
struct child_place {
    int local_rank = 0;
    int local_size = 1;
};

/// Where who has started children listens for them. Port 0: any.
struct children_door {
    net::address at{};
    net::token secret{};
};

/// Where children run: this host, a cluster, a simulated world. On one loop.
class children {
public:
    children() = default;
    children(const children&) = delete;
    children& operator=(const children&) = delete;
    virtual ~children();

    ///   errors  not_found, permission_denied (the executable); exhausted: no descriptors or processes
    ///           left; too_large: the message cancelled: what was started has been killed
    [[nodiscard]] virtual task<std::unique_ptr<child>> start(child_options how) = 0;

    /// Finds all processes of this user with the marks, whoever started them, sends them their
    /// signals and says how many there are. One that this process has started and not waited for,
    /// and that has ended, is none. Reads /proc once, however many marks there are: a millisecond
    /// for a hundred processes.
    virtual void signal_marked(std::span<marked_signal* const> all) { (void)all; }

    /// Whether start() gives a child before there is room for it; place_news tells when there is.
    [[nodiscard]] virtual bool are_placed_later() const noexcept { return false; }

    /// Who is asked from outside for another number of children that belong together; gives what to
    /// say of it, or throws.
    virtual void set_scaler(std::function<std::string(int many)> scaler) { (void)scaler; }

    /// What the host offers to all children together. May read files: ask once.
    [[nodiscard]] virtual host_resources resources() { return {}; }

    // Of several that belong together, as the ranks of a training do.

    /// Before the first of them; e.g. joins a cluster.
    ///   errors  whatever makes all starts impossible: nothing has been started
    [[nodiscard]] virtual task<void> open() { co_return; }
    /// Suspends until there is room for so many together; gives their places, which the next starts
    /// take in turn.
    ///   errors  cancelled: what was reserved goes back; what makes it impossible
    [[nodiscard]] virtual task<std::vector<child_place>> reserve(int many);
    /// Of those that were reserved last: all of them reach it. Another one at each call.
    [[nodiscard]] virtual children_door door();
    /// All that were reserved have ended.
    virtual void release() {}
    /// Calls back, on the loop, whenever those that were reserved are to give their places back, and
    /// says why. They have others after that: end them, release() and reserve() again.
    virtual void on_leave(std::function<void(const std::string& why)> tell) { (void)tell; }
    /// After everything else, also after a failed open(). Suspends until what they have printed is
    /// out, for some seconds at most: a reader may have stopped.
    [[nodiscard]] virtual task<void> close() { co_return; }
};

namespace detail {
class starter;
}

namespace detail {
/// Of a process of this host that was started with a socket.
[[nodiscard]] process_look look_at(std::int64_t pid, bool has_socket);

/// Looks at a worker now and then, and ends when it has looked for as long as the silence of a dead
/// host lasts as if it would not answer any more; gives how long, and why. Whoever asks ends the
/// process.
///   suspected  told when it has looked so for a shorter time, and when that is over; may be empty
///   errors     cancelled
[[nodiscard]] task<std::string> until_silent(child* process, time_constants times,
                                             unique_function<void(bool on)> suspected);
} // namespace detail

/// Processes of this host. They get no Ctrl-C from the terminal: that is for the parent, which
/// tells them.
///
/// A thread of its own starts them, one after the other, and the loop goes on meanwhile: a start
/// may wait for a file system, and costs the same however much memory this process has. They die
/// with this process, however it ends (Linux ends them with the thread that started them, which
/// lives as long as this object and all children that it started), and each with its object. The
/// end of the thread that runs the loop ends them only through these objects.
class local_children final : public children {
public:
    explicit local_children(net::real_loop& on) noexcept : loop_(on) {}
    [[nodiscard]] task<std::unique_ptr<child>> start(child_options how) override;
    void signal_marked(std::span<marked_signal* const> all) override;
    [[nodiscard]] host_resources resources() override;

private:
    net::real_loop& loop_;
    std::shared_ptr<detail::starter> starter_; // from the first start on
};

/// Sees a child's end: waits for it, asks (SIGTERM) after `before_asking`, insists (kill) after
/// `before_killing` more. No time between the two: it is killed and not asked, for whoever has asked
/// already.
///   errors  cancelled: the child may still run
[[nodiscard]] task<child_end> stop(child& which, time_span before_asking, time_span before_killing);

/// When something that failed is started again, and after how long.
struct restart_rules {
    int most = 3;                                                      ///< restarts in a row
    time_span first_pause = time_constants::lan().child_restart_first; ///< before the first restart
    int factor = 2; ///< of each pause to the one before
    time_span longest_pause = time_constants::lan().child_restart_most;
    bool (*is_lasting)(errc) = [](errc) { return false; }; ///< failures that would only come again
};
/// Counts failures in a row and says when to try again, by restart_rules.
class restart_policy {
public:
    explicit restart_policy(restart_rules rules) noexcept : rules_(rules) {}

    /// It has failed: the pause before it is started again; nothing: it is given up.
    [[nodiscard]] std::optional<duration> failed(const error& why) noexcept;
    /// It has worked: failures are counted anew.
    void worked() noexcept { failures_ = 0; }
    /// In a row.
    [[nodiscard]] int failures() const noexcept { return failures_; }

private:
    restart_rules rules_;
    int failures_ = 0;
};

} // namespace skein::proc

#if SKEIN_HEADER_ONLY
#include <skein/proc/detail/children.ipp>
#include <skein/proc/detail/process_look.ipp>
#include <skein/proc/detail/starter.ipp>
#endif
