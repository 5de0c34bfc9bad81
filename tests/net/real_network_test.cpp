// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include "support/temporary_folder.hpp"

#include <skein/net/real_network.hpp>

#include <catch2/catch_test_macros.hpp>

#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

using namespace net_test;

namespace {

std::optional<error> listen_error(net::real_network& network, const net::address& at) {
    try {
        (void)network.listen(at);
    } catch (const error& e) {
        return e;
    }
    return std::nullopt;
}

std::optional<error> connect_error(const net::address& to) {
    net::real_loop loop;
    net::real_network network(loop);
    return loop.run(error_of(drop_value(network.connect(to))));
}

/// A name server that answers when it is told to.
constexpr const char* slow_name = "slow.skein-test.invalid";
struct name_server {
    std::mutex mutex;
    std::condition_variable told;
    bool answers = false;
    void answer() {
        const std::lock_guard lock(mutex);
        answers = true;
        told.notify_all();
    }
    void forget() {
        const std::lock_guard lock(mutex);
        answers = false;
    }
    void wait() {
        std::unique_lock lock(mutex);
        told.wait(lock, [this] { return answers; });
    }
};
name_server& the_name_server() {
    static name_server server;
    return server;
}
std::atomic<int> connects{0}, inheritable_connects{0};

bool exists(const std::string& path) {
    struct stat info{};
    return ::lstat(path.c_str(), &info) == 0;
}

} // namespace

// The program's own definitions come before those of the C library.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints,
                           addrinfo** found) {
    if (name != nullptr && std::strcmp(name, slow_name) == 0) {
        the_name_server().wait();
        return EAI_NONAME;
    }
    using function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
    static const auto real = reinterpret_cast<function>(::dlsym(RTLD_NEXT, "getaddrinfo"));
    return real(name, service, hints, found);
}
extern "C" int connect(int fd, const sockaddr* to, socklen_t bytes) {
    ++connects;
    if ((::fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0) ++inheritable_connects;
    using function = int (*)(int, const sockaddr*, socklen_t);
    static const auto real = reinterpret_cast<function>(::dlsym(RTLD_NEXT, "connect"));
    return real(fd, to, bytes);
}

TEST_CASE("a port in use is told with the address and a way out") {
    net::real_loop loop;
    net::real_network network(loop);
    const auto first = network.listen(net::address::tcp("127.0.0.1", 0));
    CHECK(first->local().port != 0);
    const auto e = listen_error(network, first->local());
    REQUIRE(e);
    CHECK(e->code() == errc::already_exists);
    CHECK(e->text().find(to_string(first->local())) != std::string::npos);
    CHECK(e->hint().find("0 for any") != std::string::npos);
}

TEST_CASE("a Unix path in use is refused, a left-over one is taken over, a plain file is kept") {
    net::real_loop loop;
    net::real_network network(loop);
    const skein::test::temporary_folder folder;
    const auto at = net::address::unix_socket(folder.path + "/s");
    auto first = network.listen(at);
    const auto busy = listen_error(network, at);
    REQUIRE(busy);
    CHECK(busy->code() == errc::already_exists);
    CHECK(exists(at.host));
    first.reset();
    CHECK_FALSE(exists(at.host)); // our own path goes with its listener

    { // a socket file whose process died
        const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
        sockaddr_un name{};
        name.sun_family = AF_UNIX;
        std::snprintf(name.sun_path, sizeof name.sun_path, "%s", at.host.c_str());
        REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
        ::close(fd);
    }
    CHECK(exists(at.host));
    auto second = network.listen(at);
    CHECK(second->local() == at);
    second.reset();

    std::FILE* plain = std::fopen(at.host.c_str(), "w");
    REQUIRE(plain != nullptr);
    std::fclose(plain);
    const auto file = listen_error(network, at);
    REQUIRE(file);
    CHECK(file->code() == errc::already_exists);
    CHECK(exists(at.host));
}

TEST_CASE("a Unix path that is too long is told with its length") {
    net::real_loop loop;
    net::real_network network(loop);
    const auto e =
        listen_error(network, net::address::unix_socket("/tmp/" + std::string(200, 'x')));
    REQUIRE(e);
    CHECK(e->code() == errc::invalid_argument);
    CHECK(e->text().find("205") != std::string::npos);
}

TEST_CASE("an address of another host cannot be listened at") {
    net::real_loop loop;
    net::real_network network(loop);
    const auto e = listen_error(network, net::address::tcp("192.0.2.1", 0));
    REQUIRE(e);
    CHECK(e->code() == errc::not_found);
    CHECK(e->hint().find("interface") != std::string::npos);
}

TEST_CASE("connecting to nobody is refused with a hint") {
    net::address nobody;
    {
        net::real_loop loop;
        net::real_network network(loop);
        nobody = network.listen(net::address::tcp("127.0.0.1", 0))->local();
    }
    const auto tcp = connect_error(nobody);
    REQUIRE(tcp);
    CHECK(tcp->code() == errc::refused);
    CHECK(tcp->hint().find("running") != std::string::npos);
    const auto local = connect_error(fresh_unix());
    REQUIRE(local);
    CHECK(local->code() == errc::refused);
    const auto path = connect_error(net::address::unix_socket("/nonexistent/s"));
    REQUIRE(path);
    CHECK(path->code() == errc::refused);
}

TEST_CASE("a name that does not exist is not_found") {
    const auto e = connect_error(net::address::tcp("no-such-host.invalid", 1));
    REQUIRE(e);
    CHECK(e->code() == errc::not_found);
    CHECK(e->text().find("no-such-host.invalid") != std::string::npos);
}

TEST_CASE("localhost is resolved") {
    const auto body = [](net::network* via) -> task<void> {
        auto listener = via->listen(net::address::tcp("localhost", 0));
        auto to = listener->local();
        to.host = "localhost";
        auto connecting = via->connect(to);
        auto s = co_await connecting;
        CHECK(s->peer_name().find("localhost") != std::string::npos);
        CHECK_FALSE(s->is_local());
    };
    net::real_loop loop;
    net::real_network network(loop);
    loop.run(body(&network));
}

TEST_CASE("sockets are closed when another program is started") {
    net::real_loop loop;
    net::real_network network(loop);
    // Every descriptor opened from here on must carry FD_CLOEXEC.
    std::vector<bool> before(256);
    for (int fd = 0; fd < 256; ++fd)
        before[static_cast<std::size_t>(fd)] = ::fcntl(fd, F_GETFD) >= 0;
    const auto check = [](net::network* via, std::vector<bool>* known) -> task<void> {
        for (const auto& at : {net::address::tcp("127.0.0.1", 0), fresh_unix()}) {
            auto listener = via->listen(at);
            auto connecting = via->connect(listener->local());
            auto here = co_await connecting;
            auto accepting = listener->accept();
            auto there = co_await accepting;
            int sockets = 0;
            for (int fd = 0; fd < 256; ++fd) {
                struct stat info{};
                if ((*known)[static_cast<std::size_t>(fd)] || ::fstat(fd, &info) != 0 ||
                    !S_ISSOCK(info.st_mode))
                    continue;
                ++sockets;
                CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
            }
            CHECK(sockets == 3);
        }
    };
    loop.run(check(&network, &before));
}

TEST_CASE("a simulated address is not for real sockets") {
    const auto e = connect_error(net::address::tcp("127.0.0.1", 1));
    REQUIRE(e);
    net::real_loop loop;
    net::real_network network(loop);
    CHECK_THROWS_AS(network.listen(net::address::sim("a", 1)), error);
}

TEST_CASE("a task that waits for a name can be cancelled; the look-up ends alone") {
    const auto body = [](net::real_loop& on) -> task<void> {
        net::real_network network(on);
        the_name_server().forget();
        const auto to = net::address::tcp(slow_name, 1);
        auto trying = error_of(drop_value(with_timeout(network.connect(to), 5ms)));
        const auto seen = co_await trying;
        REQUIRE(seen);
        CHECK(seen->code() == errc::timeout);
        the_name_server().answer();
        auto asking = error_of(drop_value(network.connect(to)));
        const auto unknown = co_await asking;
        REQUIRE(unknown);
        CHECK(unknown->code() == errc::not_found);
    };
    run_real<void>(body);
}

TEST_CASE("a loop that is destroyed during a look-up waits for its end") {
    the_name_server().forget();
    std::thread answering;
    {
        net::real_loop loop;
        net::real_network network(loop);
        const auto to = net::address::tcp(slow_name, 1);
        const auto seen = loop.run(error_of(drop_value(with_timeout(network.connect(to), 1ms))));
        REQUIRE(seen);
        CHECK(seen->code() == errc::timeout);
        answering = std::thread([] { the_name_server().answer(); });
    }
    answering.join();
}

TEST_CASE("a socket is closed to children before it connects") {
    inheritable_connects = 0;
    const auto body = [](net::real_loop& on) -> task<void> {
        net::real_network network(on);
        for (const auto& at : {net::address::tcp("127.0.0.1", 0), fresh_unix()}) {
            const auto listener = network.listen(at);
            auto connecting = network.connect(listener->local());
            const auto s = co_await connecting;
            CHECK(s != nullptr);
        }
    };
    run_real<void>(body);
    CHECK(connects >= 2);
    CHECK(inheritable_connects == 0);
}

TEST_CASE("who listens at all addresses is reached over IPv4 and IPv6") {
    const int probe = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 own{};
    own.sin6_family = AF_INET6;
    own.sin6_addr = in6addr_loopback;
    const bool has_v6 =
        probe >= 0 && ::bind(probe, reinterpret_cast<sockaddr*>(&own), sizeof own) == 0;
    if (probe >= 0) ::close(probe);
    const auto body = [has_v6](net::real_loop& on) -> task<void> {
        return [](net::real_loop* loop, bool both) -> task<void> {
            net::real_network network(*loop);
            const auto listener = network.listen(net::address::any(0));
            const auto port = listener->local().port;
            CHECK(port != 0);
            std::vector<const char*> hosts = {"127.0.0.1"};
            if (both) hosts.push_back("::1");
            for (const char* host : hosts) {
                auto connecting = network.connect(net::address::tcp(host, port));
                const auto mine = co_await connecting;
                auto accepting = listener->accept();
                const auto theirs = co_await accepting;
                CHECK(theirs->peer_host() == host);
                CHECK(theirs->peer_name().find("ffff") == std::string::npos);
                CHECK_FALSE(theirs->peer_user());
            }
        }(&on, has_v6);
    };
    run_real<void>(body);
}

TEST_CASE("a Unix stream tells the user at its other end") {
    const auto body = [](net::real_loop& on) -> task<void> {
        net::real_network network(on);
        const auto listener = network.listen(fresh_unix());
        auto connecting = network.connect(listener->local());
        const auto mine = co_await connecting;
        auto accepting = listener->accept();
        const auto theirs = co_await accepting;
        CHECK(theirs->peer_user() == ::geteuid());
        CHECK(theirs->peer_host().empty());
    };
    run_real<void>(body);
}
