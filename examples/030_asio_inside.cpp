// SPDX-License-Identifier: Apache-2.0
// Plain Asio inside a skein task: a timer, a resolver and sockets, each awaited with skein::use_task.
// An error code becomes a skein::error; use_task_result gives it as a result instead.
// [server]
#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/asio.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/use_task.hpp>

#include <asio/read_until.hpp>
#include <asio/write.hpp>

#include <cstdio>
#include <string>

using namespace std::chrono_literals;
using skein::task;
using skein::use_task;
using skein::use_task_result;

// An ordinary Asio echo server for one client.
task<void> echo_once(asio::ip::tcp::acceptor* at) {
    auto socket = co_await at->async_accept(use_task);
    std::string line;
    co_await asio::async_read_until(socket, asio::dynamic_buffer(line), '\n', use_task);
    co_await asio::async_write(socket, asio::buffer(line), use_task);
}

task<void> wait_for(asio::steady_timer* timer) { co_await timer->async_wait(use_task); }
// [/server]

// [client]
task<int> app(skein::net::real_loop* loop) {
    asio::io_context& io = loop->context();

    asio::steady_timer timer(io, 5ms);
    co_await timer.async_wait(use_task);
    std::puts("a timer has fired");

    asio::ip::tcp::resolver resolver(io);
    auto found = co_await resolver.async_resolve("127.0.0.1", "80", use_task);
    std::printf("resolved to %s\n", found.begin()->endpoint().address().to_string().c_str());

    const asio::ip::tcp::endpoint any(asio::ip::address_v4::loopback(), 0);
    asio::ip::tcp::acceptor acceptor(io, any);
    skein::scope server;
    server.spawn(echo_once(&acceptor));
    asio::ip::tcp::socket socket(io);
    co_await socket.async_connect(acceptor.local_endpoint(), use_task);
    const std::string hello = "hello\n";
    co_await asio::async_write(socket, asio::buffer(hello), use_task);
    std::string back;
    co_await asio::async_read_until(socket, asio::dynamic_buffer(back), '\n', use_task);
    std::printf("the echo server said %s", back.c_str());
    auto ended = server.join();
    co_await std::move(ended);

    // [/client]
    // [errors]
    // Errors: as a result ...
    acceptor.close();
    asio::ip::tcp::acceptor unused(io, any);
    const auto nobody = unused.local_endpoint();
    unused.close();
    asio::ip::tcp::socket lonely(io);
    auto refused = co_await lonely.async_connect(nobody, use_task_result);
    std::printf("connecting to nobody: %s\n",
                std::string(to_string(refused.error().code())).c_str());

    // ... and a deadline cancels the Asio operation underneath.
    asio::steady_timer hour(io, 1h);
    auto limited = skein::with_timeout(wait_for(&hour), 5ms);
    try {
        co_await std::move(limited);
    } catch (const skein::error& e) {
        std::printf("an hour is too long: %s\n", std::string(to_string(e.code())).c_str());
    }
    co_return 0;
}
// [/errors]

// [main]
int main() {
    skein::net::real_loop loop;
    return loop.run(app(&loop));
}
// [/main]
