// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sockets as net::stream and net::listener. See real_network.hpp.
//
// Reading tries the system call first when more is likely to be there (the last read filled its
// buffer); otherwise it goes to Asio at once, whose own attempt comes first. That way an idle
// connection costs one failed recv per message, as a bare Asio program does.

#include <skein/core/event.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/asio.hpp>
#include <skein/net/network.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/stream.hpp>
#include <skein/net/system_error.hpp>
#include <skein/net/use_task.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <coroutine>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

namespace skein::net::detail {

/// Child processes must not inherit sockets: they would keep a dead peer's connection open.
inline void close_on_exec(int fd) noexcept { ::fcntl(fd, F_SETFD, FD_CLOEXEC); }

/// Opens a socket that no child inherits, from its first moment on.
template <class Socket>
std::error_code open_socket(Socket& socket, const typename Socket::protocol_type& protocol) {
    const int fd = ::socket(protocol.family(), protocol.type() | SOCK_CLOEXEC, protocol.protocol());
    if (fd < 0) return std::error_code(errno, std::system_category());
    std::error_code code;
    socket.assign(protocol, fd, code);
    if (code) ::close(fd);
    return code;
}

/// Waits for one Asio operation of a socket; cancelling the task cancels the socket's operations, and
/// an operation that was only hit by its neighbour's cancellation is started again.
template <class Socket>
class socket_operation : public waiter {
public:
    socket_operation(Socket& socket, mut_byte_span into) noexcept : socket_(socket), into_(into) {}
    explicit socket_operation(Socket& socket) noexcept : socket_(socket), writing_(true) {}

    bool await_ready() const noexcept { return false; }
    template <skein::detail::promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) {
        if (!arm(h)) return false;
        start();
        return true;
    }
    /// Bytes read (0 for a write wait); the code tells the rest.
    std::size_t await_resume() const {
        throw_if_cancelled();
        return bytes_;
    }
    [[nodiscard]] const std::error_code& code() const noexcept { return code_; }

private:
    struct handler {
        socket_operation* op;
        void operator()(std::error_code code, std::size_t bytes) const { op->ended(code, bytes); }
        void operator()(std::error_code code) const { op->ended(code, 0); }
    };

    void start() {
        if (writing_) {
            socket_.async_wait(Socket::wait_write, handler{this});
        } else {
            socket_.async_receive(asio::buffer(into_.data(), into_.size()), handler{this});
        }
    }
    void ended(std::error_code code, std::size_t bytes) {
        if (code == asio::error::operation_aborted && socket_.is_open()) {
            if (cancel_asked_) return end_cancelled();
            return start();
        }
        code_ = code;
        bytes_ = bytes;
        wake();
    }
    void cancel_requested() noexcept override {
        cancel_asked_ = true;
        std::error_code ignored;
        socket_.cancel(ignored);
    }

    Socket& socket_;
    mut_byte_span into_;
    std::error_code code_;
    std::size_t bytes_ = 0;
    bool writing_ = false;
    bool cancel_asked_ = false;
};

/// A connected socket as a stream.
template <class Protocol>
class socket_stream final : public stream {
    using socket_type = typename Protocol::socket;

public:
    socket_stream(socket_type socket, std::string peer)
        : socket_(std::move(socket)), peer_(std::move(peer)) {
        std::error_code ignored;
        socket_.non_blocking(true, ignored);
        close_on_exec(socket_.native_handle());
        if constexpr (std::is_same_v<Protocol, asio::ip::tcp>) {
            socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
        }
    }
    ~socket_stream() override {
        SKEIN_CHECK(!reading_ && !writing_, "a stream is destroyed while it is read or written");
    }

    task<std::size_t> read_some(mut_byte_span into) override {
        SKEIN_CHECK(!reading_, "two reads of one stream at a time");
        if (into.empty()) co_return 0;
        if (more_likely_) {
            if (const auto got = try_read(into)) co_return *got;
        }
        check_open();
        reading_ = true;
        const flag_guard guard(reading_);
        socket_operation<socket_type> operation(socket_, into);
        const std::size_t got = co_await operation;
        if (operation.code() == asio::error::eof) co_return 0;
        if (operation.code()) fail(operation.code(), "read from");
        more_likely_ = got == into.size();
        co_return got;
    }

    task<void> write_all(std::span<const byte_span> batch) override {
        SKEIN_CHECK(!writing_, "two writes of one stream at a time");
        writing_ = true;
        const flag_guard guard(writing_);
        std::size_t skip = 0; // bytes of batch.front() already written
        for (;;) {
            while (!batch.empty() && skip >= batch.front().size()) {
                skip -= batch.front().size();
                batch = batch.subspan(1);
            }
            if (batch.empty()) co_return;
            const std::size_t put = write_now(batch, skip);
            skip += put;
            if (put == 0) {
                socket_operation<socket_type> operation(socket_);
                co_await operation;
                if (operation.code()) fail(operation.code(), "write to");
            }
        }
    }

    std::optional<std::size_t> try_read(mut_byte_span into) override {
        if (into.empty()) return 0;
        check_open();
        for (;;) {
            const auto got =
                ::recv(socket_.native_handle(), into.data(), into.size(), MSG_DONTWAIT);
            if (got >= 0) {
                more_likely_ = static_cast<std::size_t>(got) == into.size();
                return static_cast<std::size_t>(got);
            }
            if (errno == EINTR) continue;
            more_likely_ = false;
            if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
            fail(std::error_code(errno, std::system_category()), "read from");
        }
    }

    std::size_t try_write(std::span<const byte_span> batch) override { return write_now(batch, 0); }

    void close_send() noexcept override {
        std::error_code ignored;
        if (socket_.is_open()) socket_.shutdown(asio::socket_base::shutdown_send, ignored);
    }
    void close() noexcept override {
        std::error_code ignored;
        if (socket_.is_open()) socket_.close(ignored);
    }
    [[nodiscard]] std::string peer_name() const override { return peer_; }
    [[nodiscard]] bool is_local() const noexcept override {
        return std::is_same_v<Protocol, asio::local::stream_protocol>;
    }

private:
    struct flag_guard {
        explicit flag_guard(bool& flag) noexcept : flag(flag) {}
        flag_guard(const flag_guard&) = delete;
        ~flag_guard() { flag = false; }
        bool& flag;
    };

    void check_open() const {
        if (!socket_.is_open()) throw error(errc::closed, "stream to " + peer_ + " is closed");
    }
    [[noreturn]] void fail(const std::error_code& code, const char* what) const {
        if (!socket_.is_open()) throw error(errc::closed, "stream to " + peer_ + " was closed");
        throw code_error(code, fmt::format("{} {} failed", what, peer_));
    }

    /// Bytes written without waiting, at most 64 parts in one call; 0 = would wait.
    std::size_t write_now(std::span<const byte_span> batch, std::size_t skip) {
        check_open();
        constexpr std::size_t most = 64;
        std::array<iovec, most> parts;
        std::size_t total = 0;
        for (;;) {
            std::size_t count = 0, asked = 0, offset = skip + total;
            for (const byte_span& part : batch) {
                if (offset >= part.size()) {
                    offset -= part.size();
                    continue;
                }
                if (count == most) break;
                parts[count].iov_base = const_cast<std::byte*>(part.data() + offset);
                parts[count].iov_len = part.size() - offset;
                asked += part.size() - offset;
                offset = 0;
                ++count;
            }
            if (count == 0) return total;
            msghdr message{};
            message.msg_iov = parts.data();
            message.msg_iovlen = count;
            const auto put =
                ::sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (put < 0) {
                if (errno == EINTR) continue;
                if (errno == EAGAIN || errno == EWOULDBLOCK) return total;
                fail(std::error_code(errno, std::system_category()), "write to");
            }
            total += static_cast<std::size_t>(put);
            if (static_cast<std::size_t>(put) < asked) return total;
        }
    }

    socket_type socket_;
    std::string peer_;
    bool more_likely_ = false;
    bool reading_ = false, writing_ = false;
};

inline std::string endpoint_text(const asio::ip::tcp::endpoint& e) {
    return to_string(address::tcp(e.address().to_string(), e.port()));
}

/// A name look-up under way. The system's look-up cannot be interrupted: who waits for it may leave,
/// then it ends alone and its handler owns all of this.
struct name_lookup {
    explicit name_lookup(asio::io_context& on) : resolver(on) {}
    asio::ip::tcp::resolver resolver;
    asio::ip::tcp::resolver::results_type found;
    std::error_code code;
    event done;
};

inline task<std::vector<asio::ip::tcp::endpoint>> resolve(real_loop* on, address name) {
    const auto lookup = std::make_shared<name_lookup>(on->context());
    lookup->resolver.async_resolve(
        name.host, std::to_string(name.port),
        [lookup](const std::error_code& code, asio::ip::tcp::resolver::results_type found) {
            lookup->code = code;
            lookup->found = std::move(found);
            lookup->done.set();
        });
    auto ended = lookup->done.wait();
    co_await ended;
    if (lookup->code) {
        throw error(errc::not_found, fmt::format("connect {}: cannot resolve the name '{}'",
                                                 to_string(name), name.host))
            .with_cause(lookup->code.message())
            .with_hint("check the spelling, or give the numeric address");
    }
    std::vector<asio::ip::tcp::endpoint> candidates;
    for (const auto& entry : lookup->found) candidates.push_back(entry.endpoint());
    co_return candidates;
}

inline task<std::unique_ptr<stream>> connect_tcp(real_loop* on, address to) {
    std::vector<asio::ip::tcp::endpoint> candidates;
    std::error_code code;
    const auto numeric = asio::ip::make_address(to.host, code);
    if (!code) {
        candidates.emplace_back(numeric, to.port);
    } else {
        auto looking = resolve(on, to);
        candidates = co_await looking;
    }

    std::optional<error> last;
    for (const auto& candidate : candidates) {
        asio::ip::tcp::socket socket(on->context());
        if (const auto failed = open_socket(socket, candidate.protocol())) {
            last = code_error(failed, "cannot make a socket");
            continue;
        }
        auto done = co_await socket.async_connect(candidate, use_task_result);
        if (done) {
            co_return std::make_unique<socket_stream<asio::ip::tcp>>(std::move(socket),
                                                                     to_string(to));
        }
        last = done.error();
    }
    throw error(last ? last->code() : errc::not_found, "connect " + to_string(to) + " failed")
        .with_cause(last ? last->cause() : "the name has no address")
        .with_hint("is the program there running, and is this the right port?");
}

/// The socket address of a unix kind; throws invalid_argument when it does not fit.
inline asio::local::stream_protocol::endpoint unix_endpoint(const address& a) {
    std::string path = a.host;
    if (a.kind == scheme::unix_abstract) path[0] = '\0';
    constexpr std::size_t most = sizeof(sockaddr_un::sun_path) - 1;
    if (path.size() > most) {
        throw error(errc::invalid_argument,
                    fmt::format("{}: a socket path may have {} bytes, this one has {}",
                                to_string(a), most, path.size()))
            .with_hint("use a shorter folder, or unix-abstract:@name");
    }
    return asio::local::stream_protocol::endpoint(path);
}

inline task<std::unique_ptr<stream>> connect_unix(real_loop* on, address to) {
    const auto endpoint = unix_endpoint(to);
    asio::local::stream_protocol::socket socket(on->context());
    if (const auto failed = open_socket(socket, endpoint.protocol()))
        throw code_error(failed, "connect " + to_string(to) + " failed");
    auto done = co_await socket.async_connect(endpoint, use_task_result);
    if (!done) {
        const errc kind =
            done.error().code() == errc::not_found ? errc::refused : done.error().code();
        throw error(kind, "connect " + to_string(to) + " failed")
            .with_cause(done.error().cause())
            .with_hint("is the program there running?");
    }
    co_return std::make_unique<socket_stream<asio::local::stream_protocol>>(std::move(socket),
                                                                            to_string(to));
}

/// A listening socket. Knows which file it made, and removes just that one.
template <class Protocol>
class socket_listener final : public listener {
    using acceptor_type = typename Protocol::acceptor;

public:
    socket_listener(acceptor_type acceptor, address local)
        : acceptor_(std::move(acceptor)), local_(std::move(local)) {
        struct stat info{};
        if (local_.kind == scheme::unix_path && ::lstat(local_.host.c_str(), &info) == 0) {
            device_ = info.st_dev;
            inode_ = info.st_ino;
        }
    }
    ~socket_listener() override { close(); }

    task<std::unique_ptr<stream>> accept() override {
        if (!acceptor_.is_open()) throw closed();
        auto got = co_await acceptor_.async_accept(use_task_result);
        if (!got) {
            if (!acceptor_.is_open()) throw closed();
            throw error(got.error().code(), "accept at " + to_string(local_) + " failed")
                .with_cause(got.error().cause());
        }
        std::string peer = to_string(local_);
        if constexpr (std::is_same_v<Protocol, asio::ip::tcp>) {
            std::error_code code;
            const auto remote = got->remote_endpoint(code);
            if (!code) peer = endpoint_text(remote);
        }
        co_return std::make_unique<socket_stream<Protocol>>(std::move(*got), std::move(peer));
    }
    [[nodiscard]] address local() const override { return local_; }

    void close() noexcept override {
        std::error_code ignored;
        if (!acceptor_.is_open()) return;
        struct stat info{};
        if (inode_ != 0 && ::lstat(local_.host.c_str(), &info) == 0 && info.st_ino == inode_ &&
            info.st_dev == device_) {
            ::unlink(local_.host.c_str());
        }
        acceptor_.close(ignored);
    }

private:
    [[nodiscard]] error closed() const {
        return error(errc::closed, "listener at " + to_string(local_) + " is closed");
    }
    acceptor_type acceptor_;
    address local_;
    dev_t device_ = 0;
    ino_t inode_ = 0;
};

/// Opens, binds and listens; throws with what the user can do.
template <class Protocol>
typename Protocol::acceptor bound(real_loop& on, const typename Protocol::endpoint& at,
                                  const address& shown, const char* in_use_hint) {
    typename Protocol::acceptor acceptor(on.context());
    std::error_code code;
    const auto check = [&](const char* step) {
        if (!code) return;
        error e(errc_of(code), fmt::format("listen {}: {} failed", to_string(shown), step));
        e.with_cause(code.message());
        if (code.value() == EADDRINUSE) e.with_hint(in_use_hint);
        if (code.value() == EACCES) e.with_hint("ports below 1024 and foreign folders need rights");
        if (code.value() == EADDRNOTAVAIL)
            e.with_hint("no interface of this host has that address");
        throw e;
    };
    acceptor.open(at.protocol(), code);
    check("open");
    close_on_exec(acceptor.native_handle());
    if constexpr (std::is_same_v<Protocol, asio::ip::tcp>) {
        acceptor.set_option(asio::socket_base::reuse_address(true), code);
        check("SO_REUSEADDR");
    }
    acceptor.bind(at, code);
    check("bind");
    acceptor.listen(asio::socket_base::max_listen_connections, code);
    check("listen");
    return acceptor;
}

inline std::unique_ptr<listener> listen_tcp(real_loop& on, address at) {
    std::error_code code;
    const std::string host = at.host == "localhost" ? "127.0.0.1"
                             : at.host == "*"       ? "0.0.0.0"
                                                    : at.host;
    auto ip = asio::ip::make_address(host, code);
    if (code) { // listening happens at the edge of a program: a blocking look-up is fine here
        asio::ip::tcp::resolver resolver(on.context());
        const auto found = resolver.resolve(host, std::to_string(at.port), code);
        if (code || found.empty()) {
            throw error(errc::not_found,
                        fmt::format("listen {}: cannot resolve '{}'", to_string(at), host))
                .with_hint("give a numeric address such as 127.0.0.1 or 0.0.0.0");
        }
        ip = found.begin()->endpoint().address();
    }
    auto acceptor = bound<asio::ip::tcp>(on, asio::ip::tcp::endpoint(ip, at.port), at,
                                         "another program, or another run of this one, holds the "
                                         "port; choose another, or 0 for any");
    at.port = acceptor.local_endpoint().port();
    return std::make_unique<socket_listener<asio::ip::tcp>>(std::move(acceptor), std::move(at));
}

/// Removes a socket file whose listener is gone; throws when somebody is there, or no socket.
inline void take_over_path(const address& at) {
    struct stat info{};
    if (::lstat(at.host.c_str(), &info) != 0) return;
    if (!S_ISSOCK(info.st_mode)) {
        throw error(errc::already_exists,
                    fmt::format("listen {}: a file is there that is not a socket", to_string(at)))
            .with_hint("choose another path");
    }
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) throw system_error(errno, "socket failed");
    const auto endpoint = unix_endpoint(at);
    const int rc = ::connect(fd, endpoint.data(), static_cast<socklen_t>(endpoint.size()));
    const int why = rc == 0 ? 0 : errno;
    ::close(fd);
    if (why != ECONNREFUSED && why != ENOENT) {
        throw error(errc::already_exists,
                    fmt::format("listen {}: the path is in use", to_string(at)))
            .with_hint("another program listens there; choose another path");
    }
    ::unlink(at.host.c_str());
}

inline std::unique_ptr<listener> listen_unix(real_loop& on, address at) {
    const auto endpoint = unix_endpoint(at);
    if (at.kind == scheme::unix_path) take_over_path(at);
    auto acceptor = bound<asio::local::stream_protocol>(
        on, endpoint, at, "another program listens there; choose another path or name");
    return std::make_unique<socket_listener<asio::local::stream_protocol>>(std::move(acceptor),
                                                                           std::move(at));
}

} // namespace skein::net::detail
