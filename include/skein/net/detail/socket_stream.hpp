// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sockets as net::stream and net::listener; for real_network.ipp only.
//
// Reading tries the system call first when more is likely to be there (the last read filled its
// buffer); otherwise it goes to Asio at once, whose own attempt comes first. That way an idle
// connection costs one failed recv per message, as a bare Asio program does.

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/core/fork_guard.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/asio.hpp>
#include <skein/net/stream.hpp>
#include <skein/net/system_error.hpp>
#include <skein/net/use_task.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

#include <fmt/core.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

namespace skein::net::detail {

/// Child processes must not inherit sockets: they would keep a dead peer's connection open.
void close_on_exec(int fd) noexcept;

/// The text of an IP address, and of a TCP peer; IPv4 as such also in its IPv6 form.
std::string host_text(const asio::ip::address& a);
std::string endpoint_text(const asio::ip::tcp::endpoint& e);

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

/// Waits for one Asio operation of a socket; cancelling the task cancels the socket's operations,
/// and an operation that was only hit by its neighbour's cancellation is started again.
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
        unforked_ = fork_guard(socket_.native_handle());
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
        unforked_.reset();
        if (socket_.is_open()) socket_.close(ignored);
    }
    [[nodiscard]] std::string peer_name() const override { return peer_; }
    [[nodiscard]] std::string peer_host() const override {
        if constexpr (std::is_same_v<Protocol, asio::ip::tcp>) {
            std::error_code code;
            const auto remote = socket_.remote_endpoint(code);
            if (!code) return host_text(remote.address());
        }
        return {};
    }
    [[nodiscard]] std::optional<std::uint32_t> peer_user() const override {
        if constexpr (std::is_same_v<Protocol, asio::local::stream_protocol>) {
            ucred who{};
            socklen_t size = sizeof who;
            const int fd = const_cast<socket_type&>(socket_).native_handle();
            if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0) return who.uid;
        }
        return std::nullopt;
    }
    [[nodiscard]] duration unconfirmed() const noexcept override {
        if constexpr (std::is_same_v<Protocol, asio::ip::tcp>) {
            tcp_info now{};
            socklen_t size = sizeof now;
            const int fd = const_cast<socket_type&>(socket_).native_handle();
            if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &now, &size) == 0 && now.tcpi_unacked > 0)
                return std::chrono::milliseconds(now.tcpi_last_ack_recv);
        }
        return duration(0);
    }
    [[nodiscard]] bool is_local() const noexcept override {
        return std::is_same_v<Protocol, asio::local::stream_protocol>;
    }

private:
    struct flag_guard {
        explicit flag_guard(bool& of) noexcept : flag(of) {}
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
    fork_guard unforked_; // ends before the socket
    std::string peer_;
    bool more_likely_ = false;
    bool reading_ = false, writing_ = false;
};

/// A listening socket. Knows which file it made, and removes just that one.
template <class Protocol>
class socket_listener final : public listener {
    using acceptor_type = typename Protocol::acceptor;

public:
    socket_listener(acceptor_type acceptor, address local)
        : acceptor_(std::move(acceptor)), unforked_(acceptor_.native_handle()),
          local_(std::move(local)) {
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
        unforked_.reset();
        acceptor_.close(ignored);
    }

private:
    [[nodiscard]] error closed() const {
        return error(errc::closed, "listener at " + to_string(local_) + " is closed");
    }
    acceptor_type acceptor_;
    fork_guard unforked_;
    address local_;
    dev_t device_ = 0;
    ino_t inode_ = 0;
};

} // namespace skein::net::detail
