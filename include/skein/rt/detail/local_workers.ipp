// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/local_workers.hpp: the driver's side with its processes, and the life of a worker.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/check.hpp>
#include <skein/core/log.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/readable_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/rt/build_id.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/process.hpp>
#include <skein/rt/node.hpp>
#include <skein/rt/process.hpp>
#include <skein/rt/process_wait.hpp>
#include <skein/rt/registry.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

/// What a worker has to know; read from an inherited pipe.
struct worker_boot {
    std::string name;
    byte_buffer token;
    std::int32_t socket = -1; ///< inherited end of the pair, or -1
    std::string address;      ///< where to connect instead
    std::uint16_t cpus = 1;
};

SKEIN_INLINE net::connection_options link_options(const std::string& name, const net::token& secret,
                                                  std::uint16_t cpus, bool in_memory) {
    net::connection_options o;
    o.secret = secret;
    o.self.name = name;
    o.self.build_id = build_id();
    o.self.registry_hash = registry::instance().hash();
    o.self.pid = ::getpid();
    o.self.host = host_name();
    worker_hello hello;
    hello.cpus = cpus;
    o.self.extra = wire::encode(hello);
    o.require_same_build = true;
    // The worker executes on its loop: silence means work. Its death closes the socket.
    o.alive.mode = net::keep_alive_mode::off;
    o.checksum_bodies = !in_memory; // a socket pair moves bytes from memory to memory
    return o;
}

/// Gives one stream that is already connected to whoever connects.
class connected_network final : public net::network {
public:
    explicit connected_network(std::unique_ptr<net::stream> s) : stream_(std::move(s)) {}
    task<std::unique_ptr<net::stream>> connect(net::address) override {
        co_return std::move(stream_);
    }
    std::unique_ptr<net::listener> listen(net::address) override {
        throw error(errc::not_supported, "not supported: listening on an inherited socket");
    }

private:
    std::unique_ptr<net::stream> stream_;
};

} // namespace detail

class local_workers::pool {
public:
    pool(net::real_loop& loop, node& driver, local_workers_options how)
        : loop_(loop), driver_(driver), how_(std::move(how)), secret_(net::token::generate()) {
        const auto cores = std::max(1u, std::thread::hardware_concurrency());
        if (how_.count <= 0) how_.count = static_cast<int>(cores);
        cpus_ = static_cast<std::uint16_t>(std::max(1u, cores / static_cast<unsigned>(how_.count)));
    }

    [[nodiscard]] int count() const noexcept { return how_.count; }

    /// Starts the workers and replaces those that die, until stop() and the node's close().
    [[nodiscard]] task<void> serve() {
        scope all;
        alive_ = how_.count;
        driver_.expect_workers(static_cast<std::size_t>(alive_));
        for (int i = 1; i <= how_.count; ++i) all.spawn(supervise(i));
        auto joined = all.join();
        co_await joined;
    }
    /// No worker is replaced from now on.
    void stop() noexcept {
        if (!stopping_) stopped_at_ = loop_.now();
        stopping_ = true;
    }

    /// Pids of the workers that run now, for tests and tools.
    [[nodiscard]] const std::vector<pid_t>& pids() const noexcept { return pids_; }

private:
    /// One place for a worker: starts it, serves it, starts another when it dies.
    task<void> supervise(int number) {
        int failed_in_a_row = 0;
        while (!stopping_) {
            const auto name = fmt::format("worker-{}", number);
            std::optional<error> failed;
            child_process child;
            unique_fd socket; // ours, once more
            scope watching;
            try {
                auto started = start(name, &child, &socket);
                auto wire = co_await started;
                pids_.push_back(child.pid());
                failed_in_a_row = 0;
                last_warning_ = last_error_ = {};
                watching.spawn(end_link_with(&child, &socket, wire));
                auto served = driver_.serve_worker(
                    std::move(wire), [this, &child](const link&) { return farewell(&child); });
                co_await served;
            } catch (const error& e) {
                failed = e;
            }
            watching.cancel();
            auto watched = as_result(shield(watching.join())); // it refers to what is here
            (void)co_await watched;
            std::erase(pids_, child.pid());
            if (child.running()) {
                // It may still be loading and hear nobody.
                if (failed &&
                    (failed->code() == errc::cancelled || failed->code() == errc::timeout))
                    child.kill(SIGTERM);
                auto gone = farewell(&child);
                auto sure = shield(std::move(gone));
                co_await sure;
            }
            if (!failed) continue;
            if (stopping_ || failed->code() == errc::cancelled) break;
            auto why =
                error(failed->code(), fmt::format("{} did not start: {}", name, failed->text()));
            why.with_cause(last_words(child, *failed));
            if (!failed->hint().empty()) why.with_hint(failed->hint());
            const auto reason = failed->text() + why.cause(); // of many workers: said once
            const bool hopeless = failed->code() == errc::mismatch ||
                                  failed->code() == errc::not_found ||
                                  failed->code() == errc::permission_denied;
            if (hopeless || ++failed_in_a_row == 3) {
                if (--alive_ == 0) driver_.give_up(why);
                driver_.expect_workers(static_cast<std::size_t>(alive_));
                if (last_error_ != reason) logging::error("rt", why.what());
                last_error_ = reason;
                break;
            }
            if (last_warning_ != reason) logging::warn("rt", why.what());
            last_warning_ = reason;
            co_await sleep_for(how_.times.reconnect_first);
        }
    }

    /// What a failed worker said last, or how it ended.
    static std::string last_words(child_process& child, const error& failed) {
        if (child.pid() < 0) return failed.cause();
        const auto words = child.last_words();
        if (!words.empty()) return words;
        return child.status() ? child.status()->describe() : failed.cause();
    }

    /// Ends the link when the process has ended. A child of the worker may hold the other end of the
    /// socket, so that the end of the stream is not seen; what the worker said before is still read.
    task<void> end_link_with(child_process* child, unique_fd* socket,
                             std::shared_ptr<net::connection> wire) {
        auto ended = net::wait_readable(loop_, child->pidfd());
        co_await ended;
        if (::shutdown(socket->get(), SHUT_RD) == 0) co_return; // an end behind the last byte
        co_await sleep_for(how_.times.reconnect_first);         // TCP: its bytes are on the way
        wire->abort(error(errc::reset, "the process has ended"));
    }

    /// Starts a process and shakes hands with it.
    task<std::shared_ptr<net::connection>> start(std::string name, child_process* child,
                                                 unique_fd* socket) {
        detail::worker_boot boot;
        boot.name = name;
        boot.token = to_buffer(secret_.bytes());
        boot.cpus = cpus_;
        process_options how;
        how.executable = how_.executable;
        how.argv = {how_.program, "--skein-worker=" + name};
        how.own_group = true; // Ctrl-C is for the driver, which tells its workers

        unique_fd ours, theirs;
        std::unique_ptr<net::listener> listener;
        std::optional<net::real_network> network;
        if (how_.over_tcp) {
            network.emplace(loop_);
            listener = network->listen(net::address::tcp("127.0.0.1", 0));
            boot.address = net::to_string(listener->local());
        } else {
            int ends[2];
            if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
                throw detail::cannot_start(how.executable, "socketpair", errno);
            ours = unique_fd(ends[0]);
            theirs = unique_fd(ends[1]);
            boot.socket = 4;
            how.fds.emplace_back(theirs.get(), 4);
        }
        auto [boot_read, boot_write] = make_pipe();
        const auto text = wire::encode(boot);
        SKEIN_CHECK(::write(boot_write.get(), text.data(), text.size()) == ssize_t(text.size()),
                    "the boot message of {} bytes does not fit a pipe", text.size());
        boot_write.reset();
        how.fds.emplace_back(boot_read.get(), 3);
        how.env.emplace_back(detail::boot_variable, "3");

        *child = child_process::spawn(std::move(how));
        theirs.reset();
        std::unique_ptr<net::stream> stream;
        if (listener) {
            auto accepted = listener->accept();
            auto in_time = with_timeout(std::move(accepted), how_.times.connect_timeout);
            stream = co_await in_time;
        } else {
            *socket = unique_fd(::fcntl(ours.get(), F_DUPFD_CLOEXEC, 0));
            stream = net::adopt_unix_stream(loop_, ours.release(), name);
        }
        auto link = detail::link_options(driver_.name().name, secret_, 0, !listener);
        link.bounds.close_deadline = how_.times.shutdown_grace; // part of it, see patience()
        auto shaken = net::connection::accept(std::move(stream), std::move(link));
        co_return co_await shaken;
    }

    /// What is left of the grace that all of the end shares, the goodbye over the link included.
    [[nodiscard]] duration patience(duration most) const {
        if (!stopping_) return most;
        const duration left = stopped_at_ + how_.times.shutdown_grace - loop_.now();
        return std::clamp(left, duration::zero(), most);
    }

    /// Waits for the end of a process whose link has ended; asks, then insists.
    task<std::string> farewell(child_process* child) {
        struct step {
            duration patience;
            int then;
        };
        for (const auto& s : {step{std::chrono::milliseconds(stopping_ ? 300 : 100), SIGTERM},
                              step{how_.times.shutdown_grace, SIGKILL}}) {
            auto ended = wait(loop_, *child);
            auto in_time = with_timeout(std::move(ended), patience(s.patience));
            auto asked = as_result(std::move(in_time));
            auto status = co_await asked;
            if (status) co_return status->describe();
            child->kill(s.then);
        }
        auto ended = wait(loop_, *child);
        auto status = co_await ended;
        co_return status.describe();
    }

    net::real_loop& loop_;
    node& driver_;
    local_workers_options how_;
    net::token secret_;
    std::uint16_t cpus_ = 1;
    std::vector<pid_t> pids_;
    int alive_ = 0;
    bool stopping_ = false;
    time_point stopped_at_{};
    std::string last_warning_, last_error_;
};

SKEIN_INLINE local_workers::local_workers(net::real_loop& loop, node& driver,
                                          local_workers_options how)
    : pool_(std::make_unique<pool>(loop, driver, std::move(how))) {}
SKEIN_INLINE local_workers::~local_workers() = default;
SKEIN_INLINE int local_workers::count() const noexcept { return pool_->count(); }
SKEIN_INLINE task<void> local_workers::serve() { return pool_->serve(); }
SKEIN_INLINE void local_workers::stop() noexcept { pool_->stop(); }
SKEIN_INLINE const std::vector<pid_t>& local_workers::pids() const noexcept {
    return pool_->pids();
}

SKEIN_INLINE bool is_worker() noexcept {
    // Asked once: the variable is gone as soon as it has been read.
    static const bool started_as_worker = std::getenv(detail::boot_variable) != nullptr;
    return started_as_worker;
}

namespace detail {

SKEIN_INLINE worker_boot read_boot() {
    const char* variable = std::getenv(boot_variable);
    const std::string_view number = variable == nullptr ? "" : variable;
    int inherited = -1; // never a standard file: reading from a terminal would wait for ever
    std::from_chars(number.data(), number.data() + number.size(), inherited);
    const unique_fd file(inherited < 3 ? -1 : inherited);
    ::unsetenv(boot_variable); // our own children are not workers
    byte_buffer text;
    std::byte piece[4096];
    for (ssize_t n = 0; (n = ::read(file.get(), piece, sizeof piece)) > 0;)
        append(text, byte_span(piece, static_cast<std::size_t>(n)));
    auto boot = wire::decode<worker_boot>(text);
    if (!boot || boot->token.size() != net::token::size)
        throw error(errc::malformed, "the boot message of this worker cannot be read")
            .with_hint(
                fmt::format("{} is set by skein for its workers only: unset it", boot_variable));
    return std::move(*boot);
}

SKEIN_INLINE std::string short_worker_name(std::string_view name) {
    constexpr std::string_view usual = "worker-";
    return name.starts_with(usual) ? "w" + std::string(name.substr(usual.size()))
                                   : std::string(name);
}

SKEIN_INLINE task<void> work(net::real_loop* loop, node* self, worker_boot boot) {
    const auto secret = net::token::from_hex(to_hex(boot.token)).value();
    auto options = link_options(boot.name, secret, boot.cpus, boot.socket >= 0);
    std::shared_ptr<net::connection> wire;
    if (boot.socket >= 0) {
        ::fcntl(boot.socket, F_SETFD, FD_CLOEXEC);
        connected_network inherited(net::adopt_unix_stream(*loop, boot.socket, "driver"));
        auto connecting = net::connection::connect(inherited, {}, std::move(options));
        wire = co_await connecting;
    } else {
        net::real_network network(*loop);
        auto connecting = net::connection::connect(
            network, net::address::parse(boot.address).value(), std::move(options));
        wire = co_await connecting;
    }
    auto served = self->serve_driver(wire);
    co_await served;
    auto closed = wire->close();
    co_await closed;
}

} // namespace detail

SKEIN_INLINE int worker_main() {
    try {
        auto boot = detail::read_boot();
        name_process(detail::short_worker_name(boot.name));
        net::real_loop loop;
        node_options who;
        who.name = boot.name;
        who.host = host_name();
        who.pid = ::getpid();
        node self(who);
        const node::use current(self);
        loop.run(detail::work(&loop, &self, std::move(boot)));
        return exit_code::done;
    } catch (const std::exception& e) {
        if (!leave_last_words(e.what())) fmt::print(stderr, "error: {}\n", e.what());
        return exit_code::failed;
    } catch (...) {
        static constexpr const char* why = "something that is not a std::exception was thrown";
        if (!leave_last_words(why)) fmt::print(stderr, "error: {}\n", why);
        return exit_code::failed;
    }
}

[[noreturn]] SKEIN_INLINE void detail::live_as_worker() {
    // Of several threads that call run() one is the worker; the others wait for its end.
    static constinit std::atomic_flag taken = ATOMIC_FLAG_INIT;
    while (taken.test_and_set()) ::pause();
    std::exit(worker_main());
}

} // namespace skein::rt
