// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of proc/output.hpp: the thread that prints.

#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/unique_fd.hpp>

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

namespace skein::proc {

namespace detail {

/// One print(); shared by the task that waits for it and the thread that does it.
struct print_order {
    std::vector<worker_lines> what;
    loop* home = nullptr;
    event done; ///< on `home`
};

/// Colours are for people.
[[nodiscard]] SKEIN_INLINE bool wants_colour(std::FILE* file) {
    const char* const terminal = std::getenv("TERM");
    return ::isatty(::fileno(file)) != 0 && std::getenv("NO_COLOR") == nullptr &&
           terminal != nullptr && std::string_view(terminal) != "dumb";
}

SKEIN_INLINE task<void> until_printed(print_order* order) {
    auto done = order->done.wait();
    co_await done;
}

} // namespace detail

struct output_printer::parts {
    /// One of the two files.
    struct target {
        std::FILE* file;
        bool is_gone = false; ///< it takes nothing any more
    };

    std::array<target, 2> files;
    output_style style;
    std::pair<unique_fd, unique_fd> wake_up =
        make_pipe();  ///< the second end is closed to end the thread
    std::mutex mutex; // guards waiting and stopping
    std::condition_variable wake;
    std::deque<std::shared_ptr<detail::print_order>> waiting;
    bool stopping = false;
    std::thread thread;

    void main();
    [[nodiscard]] bool wait_writable(const target& to) const;
    void write(target& to, std::string_view text);
    void write_piece(target& to, std::string_view piece);
};

/// False: it is to end.
SKEIN_INLINE bool output_printer::parts::wait_writable(const target& to) const {
    ::pollfd both[] = {{::fileno(to.file), POLLOUT, 0}, {wake_up.first.get(), POLLIN, 0}};
    while (::poll(both, 2, -1) < 0)
        if (errno != EINTR) return false;
    return both[0].revents != 0; // also where it is gone: the write says so
}

/// A piece is whole lines, or one that is longer than a pipe takes at once. Others of this process
/// print nothing in the middle of it.
SKEIN_INLINE void output_printer::parts::write_piece(target& to, std::string_view piece) {
    constexpr std::size_t at_once =
        4096; // so much a pipe takes that is writable, and no write blocks
    if (to.is_gone || !wait_writable(to)) return;
    ::flockfile(to.file);
    ::fflush_unlocked(to.file); // what came before
    for (bool first = true; !piece.empty(); first = false) {
        if (!first && !wait_writable(to)) break;
        const auto n = ::write(::fileno(to.file), piece.data(), std::min(piece.size(), at_once));
        if (n > 0) piece.remove_prefix(static_cast<std::size_t>(n));
        if (n >= 0 || errno == EINTR || errno == EAGAIN) continue;
        to.is_gone = true;
        break;
    }
    ::funlockfile(to.file);
}

SKEIN_INLINE void output_printer::parts::write(target& to, std::string_view text) {
    constexpr std::size_t at_once = 4096;
    while (!text.empty()) {
        auto end = text.size() <= at_once ? text.size() : text.rfind('\n', at_once - 1) + 1;
        if (end == 0) end = text.find('\n') + 1; // one long line
        write_piece(to, text.substr(0, end));
        text.remove_prefix(end);
    }
}

SKEIN_INLINE void output_printer::parts::main() {
    ::pthread_setname_np(::pthread_self(), "skein-printer");
    while (true) {
        std::shared_ptr<detail::print_order> order;
        {
            std::unique_lock lock(mutex);
            wake.wait(lock, [this] { return stopping || !waiting.empty(); });
            if (stopping) return;
            order = std::move(waiting.front());
            waiting.pop_front();
        }
        for (const auto& piece : format_lines(order->what, style))
            write(files[piece.is_error ? 1 : 0], piece.text);
        auto& home = *order->home;
        home.post_from_any_thread([order = std::move(order)] { order->done.set(); });
    }
}

SKEIN_INLINE output_printer::output_printer(bool prefix, std::FILE* output, std::FILE* error)
    : parts_(std::make_shared<parts>()) {
    parts_->files = {parts::target{output}, parts::target{error}};
    parts_->style = {prefix, detail::wants_colour(output), detail::wants_colour(error)};
    // Signals are for the program's own threads, and a pipe that nobody reads is no reason to end.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    std::optional<skein::error> failed;
    try {
        parts_->thread = std::thread([of = parts_.get()] { of->main(); });
    } catch (const std::system_error& e) {
        failed = skein::error(errc::io, "cannot start a thread that prints").with_cause(e.what());
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (failed) throw *failed;
}

SKEIN_INLINE output_printer::~output_printer() {
    {
        const std::lock_guard lock(parts_->mutex);
        parts_->stopping = true;
    }
    parts_->wake_up.second.reset();
    parts_->wake.notify_one();
    parts_->thread.join();
}

SKEIN_INLINE task<void> output_printer::print(std::vector<worker_lines> what) {
    const auto order = std::make_shared<detail::print_order>();
    order->what = std::move(what);
    order->home = &loop::current();
    {
        const std::lock_guard lock(parts_->mutex);
        parts_->waiting.push_back(order);
    }
    parts_->wake.notify_one();
    auto printed = detail::until_printed(order.get());
    co_await printed;
}

SKEIN_INLINE print_lines print_to_standard_files(bool prefix) {
    const auto printer = std::make_shared<output_printer>(prefix);
    return [printer](std::vector<worker_lines> what) { return printer->print(std::move(what)); };
}

} // namespace skein::proc
