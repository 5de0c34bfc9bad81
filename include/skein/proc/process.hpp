// SPDX-License-Identifier: Apache-2.0
#pragma once
// A child process that cannot be left behind: it dies with its parent, its end is an event (pidfd)
// that a loop can wait for, and it can hand its parent one last text that says why it left.
//
//     proc::process_options how;
//     how.argv = {"/proc/self/exe", "--worker"};
//     auto child = proc::child_process::spawn(how);
//     child.kill(SIGTERM);
//     fmt::print("{}\n", child.wait_blocking().describe());   // "killed by signal 15 (SIGTERM)"
//
// task<exit_status> proc::wait(loop, child) on a real loop is in <skein/proc/process_wait.hpp>.

#include <skein/core/unique_fd.hpp>

#include <csignal>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/types.h>
#include <sys/wait.h>

namespace skein::proc {

/// "SIGKILL" for 9; "signal 64" for one without a name.
[[nodiscard]] std::string signal_name(int number);

/// How a process ended.
class exit_status {
public:
    /// raw: what waitpid() gave.
    explicit exit_status(int raw = 0) noexcept : raw_(raw) {}

    [[nodiscard]] bool success() const noexcept { return exited() && code() == 0; }
    [[nodiscard]] bool exited() const noexcept { return WIFEXITED(raw_); }
    /// The exit code; -1 if a signal ended it.
    [[nodiscard]] int code() const noexcept { return exited() ? WEXITSTATUS(raw_) : -1; }
    /// The signal that ended it; 0 if it exited.
    [[nodiscard]] int signal() const noexcept { return WIFSIGNALED(raw_) ? WTERMSIG(raw_) : 0; }
    [[nodiscard]] bool dumped_core() const noexcept { return WIFSIGNALED(raw_) && WCOREDUMP(raw_); }
    /// "exited with 3" or "killed by signal 9 (SIGKILL)".
    [[nodiscard]] std::string describe() const;

private:
    int raw_;
};

/// How this host calls itself.
[[nodiscard]] std::string host_name();

/// "hello:w2": a program and a process's part in it. Linux keeps 15 characters; the program is cut.
[[nodiscard]] std::string process_title(std::string_view program, std::string_view part);

/// Makes `top` and `pgrep` show this process so; what is started as /proc/self/exe is "exe"
/// otherwise.
void name_process(std::string_view part);

/// What to start and how.
struct process_options {
    std::vector<std::string> argv{};                        ///< argv[0] is the name the child sees
    std::string executable{};                               ///< what to execute; empty: argv[0]
    std::vector<std::pair<std::string, std::string>> env{}; ///< added to or replacing ours
    std::vector<std::string> unset_env{};                   ///< names the child does not inherit
    std::string cwd{};                                      ///< empty: ours
    /// {ours, the child's}: open files the child gets under these numbers. All others are closed.
    std::vector<std::pair<int, int>> fds{};
    std::string stdout_file{}, stderr_file{}; ///< appended to; empty: see *_fd
    int stdout_fd = -1, stderr_fd = -1;       ///< our descriptor to use; -1: inherited
    bool keep_stdin = false;                  ///< otherwise the child reads /dev/null
    /// A session of its own: no Ctrl-C from the terminal, a share of the processors beside that of
    /// other sessions (where Linux groups by them), and what the child leaves behind in its process
    /// group is killed when its end is seen.
    bool own_group = false;
    bool die_with_parent = true; ///< SIGKILL when the thread that spawned it ends
    bool last_words = true;      ///< give it a pipe for leave_last_words()
};

/// The variable that names the pipe of leave_last_words().
inline constexpr const char* last_words_variable = "SKEIN_LAST_WORDS_FD";

/// In a child: hands the parent a text (at most 4096 bytes) that says why this process leaves.
/// For a process that leaves now: the first text stands, later ones and empty ones are dropped.
/// Without such a parent it does nothing. Never waits for the parent, never throws. Any thread.
/// Gives whether there is such a parent.
bool leave_last_words(std::string_view text) noexcept;

namespace detail {
class start_attempt;
/// Whether a child_process has that child, whose end is for its waits alone.
[[nodiscard]] bool is_held(pid_t pid);
/// A child_process has it, or has seen its end.
void hold(pid_t pid);
void let_go(pid_t pid) noexcept;
} // namespace detail

/// One child process. Movable. The destructor kills (SIGKILL) and reaps a child that still runs.
class child_process {
public:
    child_process() noexcept = default;

    /// Starts it. Throws not_found/permission_denied/io with the step that failed. Blocks the
    /// thread until the child executes the program: on a loop use proc::local_children. No memory
    /// is copied, however much this process has. With die_with_parent the calling thread must
    /// outlive the child: Linux ties that to the thread.
    [[nodiscard]] static child_process spawn(process_options how);

    child_process(child_process&& other) noexcept;
    child_process& operator=(child_process&& other) noexcept;
    ~child_process();

    /// -1 for a default-constructed object. Kept after the end for messages.
    [[nodiscard]] pid_t pid() const noexcept { return pid_; }
    /// Readable when the process has ended; owned by this object.
    [[nodiscard]] int pidfd() const noexcept { return pidfd_.get(); }
    /// True until its end was seen by one of the waits or try_wait().
    [[nodiscard]] bool running() const noexcept { return pid_ > 0 && !status_; }
    [[nodiscard]] const std::optional<exit_status>& status() const noexcept { return status_; }

    /// Sends a signal; nothing happens if it has ended.
    void kill(int signal) noexcept;
    /// Sends a signal to its process group (needs own_group); reaches its children too.
    void kill_group(int signal) noexcept;

    /// The exit status if it has ended; does not block.
    std::optional<exit_status> try_wait() noexcept;
    /// Blocks the thread until it ends.
    exit_status wait_blocking();

    /// The text the child left with leave_last_words(); call it after its end. May be empty.
    [[nodiscard]] std::string last_words();

private:
    friend class detail::start_attempt;
    void reap(int flags) noexcept;

    pid_t pid_ = -1;
    bool own_group_ = false;
    unique_fd pidfd_, words_;
    std::optional<exit_status> status_;
};

} // namespace skein::proc

#if SKEIN_HEADER_ONLY
#include <skein/proc/detail/process.ipp>
#include <skein/proc/detail/process_start.ipp>
#endif
