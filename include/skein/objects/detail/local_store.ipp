// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of objects/local_store.hpp.

#include <skein/core/available_memory.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/random.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/socket_pair.hpp>
#include <skein/objects/far_objects.hpp>
#include <skein/objects/store.hpp>
#include <skein/proc/build_id.hpp>
#include <skein/wire/encode.hpp>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::objects {

SKEIN_INLINE std::uint64_t default_store_bytes() { return available_memory() / 10 * 3; }

SKEIN_INLINE std::uint64_t parse_store_bytes(std::string_view text) {
    const auto refuse = [&] {
        return error(errc::usage, fmt::format("{} is no size of a store", text))
            .with_hint("e.g. 2GiB, 500MB, 0 (none)");
    };
    std::uint64_t n = 0;
    const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), n);
    const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    if (bad != std::errc()) throw refuse();
    struct known {
        std::string_view name;
        std::uint64_t bytes;
    };
    constexpr known units[] = {{"", 1},
                               {"B", 1},
                               {"KiB", std::uint64_t{1} << 10},
                               {"MiB", std::uint64_t{1} << 20},
                               {"GiB", std::uint64_t{1} << 30},
                               {"TiB", std::uint64_t{1} << 40},
                               {"kB", 1'000},
                               {"MB", 1'000'000},
                               {"GB", 1'000'000'000},
                               {"TB", 1'000'000'000'000}};
    for (const auto& one : units) {
        if (one.name != unit) continue;
        constexpr std::uint64_t most = std::uint64_t{1} << 46;
        constexpr std::uint64_t least = std::uint64_t{1} << 20;
        if (n > most / one.bytes) throw refuse();
        const auto bytes = n * one.bytes;
        if (bytes != 0 && bytes < least)
            throw error(errc::usage, fmt::format("a store of {} bytes", bytes))
                .with_hint("1MiB at least, with a unit: 2GiB; 0: none");
        return bytes;
    }
    throw refuse();
}

SKEIN_INLINE std::uint64_t store_bytes_for(std::string_view asked) {
    if (const char* said = std::getenv("SKEIN_STORE"); said != nullptr && *said != '\0')
        asked = said;
    return asked.empty() ? default_store_bytes() : parse_store_bytes(asked);
}

namespace detail {

/// Of both sides.
[[nodiscard]] SKEIN_INLINE net::connection_options store_connection(const net::token& secret,
                                                                    process_id self) {
    net::connection_options how;
    how.secret = secret;
    how.self.name = self ? "process" : "store";
    how.self.pid = ::getpid();
    how.self.build_id = proc::build_id();
    how.self.purpose = "skein-objects-1"; // an agent's store is of another program
    if (self) how.self.extra = wire::encode(store_hello{self});
    how.checksum_bodies = false; // from memory to memory
    // The end of a process is the end of its socket. It dials with its first object, after hours
    // maybe, and the driver may compute meanwhile.
    constexpr auto for_ever = duration::max();
    how.bounds.handshake_deadline = for_ever;
    how.alive = {net::keep_alive_mode::off,
                 time_constants::lan().idle_probe,
                 for_ever,
                 for_ever,
                 for_ever,
                 time_constants::lan().unconfirmed_after};
    return how;
}

/// The socket of a link with the store once more, for as long as the client lives. The store takes the
/// end of the socket for the end of the process, and gives others what that has held: the end of an
/// aborted link it must not see.
struct life_line {
    explicit life_line(const unique_fd& socket)
        : fd(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0)), unforked(fd.get()) {
        if (!fd) throw error(errc::exhausted, "no descriptor for the link with the store");
    }
    unique_fd fd;
    fork_guard unforked;
};

[[nodiscard]] SKEIN_INLINE task<net::connection::handle> meet_store(
    std::unique_ptr<net::stream> over, net::connection_options how) {
    net::connected_network pair(std::move(over));
    auto connecting = net::connection::connect(pair, {}, std::move(how));
    co_return co_await connecting;
}

} // namespace detail

struct local_store::server {
    server(net::real_loop& on, arena memory, std::uint64_t number,
           const std::optional<store_on_node>& among, std::unique_ptr<spill_volume> files)
        : network(on), books(std::move(memory), number, {}, std::move(files)) {
        if (!among) return;
        store_peer_options how;
        how.secret = among->secret;
        how.node = among->node;
        far.emplace(books, network, std::move(how));
    }
    net::real_network network;
    store books;
    std::optional<far_objects> far;
    scope serving;

    /// Another process has this end of the socket, too: who is served hears of the end only if that
    /// is said.
    struct last_word {
        explicit last_word(const unique_fd& socket)
            : fd(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0)), unforked(fd.get()) {}
        last_word(const last_word&) = delete;
        last_word& operator=(const last_word&) = delete;
        ~last_word() {
            if (fd) (void)net::end_both_ways(fd.get());
        }
        unique_fd fd;
        fork_guard unforked;
    };
    static task<void> serve(server* self, unique_fd socket, net::token secret) {
        const last_word end(socket);
        try {
            auto stream = net::adopt_unix_stream(static_cast<net::real_loop&>(loop::current()),
                                                 socket.release(), "a process of this program");
            auto meeting =
                net::connection::accept(std::move(stream), detail::store_connection(secret, {}));
            auto wire = co_await meeting;
            auto served = self->books.serve(std::move(wire));
            co_await served;
        } catch (const error&) { // it has gone before it came
        }
    }
    static task<void> begin(local_store* of) {
        of->server_ = std::make_unique<server>(of->thread_->loop(), of->memory_, of->number_,
                                               of->among_, std::move(of->files_));
        co_return;
    }
    static task<void> drop(std::unique_ptr<server>* which) {
        which->reset();
        co_return;
    }
    static task<std::string> listen(server* self, net::address at) {
        self->far->listen(at);
        co_return to_string(self->far->local());
    }
    static task<bool> is_needed(server* self) { co_return self->far && self->far->is_needed(); }
    static task<void> end(server* self) {
        if (self->far) {
            auto parting = self->far->close();
            co_await parting;
        }
        auto closing = self->books.close();
        co_await closing;
        self->serving.cancel();
        auto joined = as_result(shield(self->serving.join()));
        (void)co_await joined;
    }
};

SKEIN_INLINE local_store::local_store(std::uint64_t bytes, std::optional<store_on_node> among,
                                      std::unique_ptr<spill_volume> files)
    : memory_(arena::create(bytes)), number_(system_random().next() | 1), among_(std::move(among)),
      files_(std::move(files)), secret_(net::token::generate()) {
    if (among_ && files_)
        throw error(errc::not_supported, "not supported: files beside stores of other nodes");
    file_ = std::make_shared<const unique_fd>(::fcntl(memory_.fd(), F_DUPFD_CLOEXEC, 0));
    if (!*file_) throw error(errc::exhausted, "no descriptor for the memory of objects");
    (void)memory_.view(0, 0); // where addresses are limited it is said now
}

SKEIN_INLINE local_store::~local_store() {
    if (!thread_) return;
    thread_->run([this] { return server::end(server_.get()); });
    thread_->run([this] { return server::drop(&server_); });
}

SKEIN_INLINE void child_link::has_ended() noexcept {
    if (!ours) return;
    (void)net::end_input(ours.get());
    unforked.reset();
    ours.reset();
}

SKEIN_INLINE child_link local_store::link_for_child() {
    auto link = net::make_socket_pair();
    child_link out;
    out.ours = unique_fd(::fcntl(link.ours.get(), F_DUPFD_CLOEXEC, 0));
    out.unforked = fork_guard(out.ours.get());
    out.files = {file_, std::make_shared<const unique_fd>(std::move(link.theirs))};
    take(std::move(link.ours));
    return out;
}

SKEIN_INLINE void local_store::take(unique_fd socket) {
    if (!thread_) return early_.push_back(std::move(socket));
    thread_->loop().post_from_any_thread(
        [server = server_.get(), secret = secret_, socket = std::move(socket)]() mutable {
            server->serving.spawn(server::serve(server, std::move(socket), secret));
        });
}

SKEIN_INLINE void local_store::start() {
    if (thread_) return;
    thread_ = std::make_unique<net::loop_thread>("skein-objects");
    thread_->run([this] { return server::begin(this); });
    for (auto& socket : std::exchange(early_, {})) take(std::move(socket));
}

SKEIN_INLINE std::string local_store::open_door(const net::address& at) {
    start();
    if (door_.empty()) door_ = thread_->run([&] { return server::listen(server_.get(), at); });
    return door_;
}

SKEIN_INLINE bool local_store::is_needed() {
    return thread_ && thread_->run([this] { return server::is_needed(server_.get()); });
}

SKEIN_INLINE std::shared_ptr<store_client> local_store::client(net::real_loop& on,
                                                               process_id self) {
    return store_client::make(
        on, memory_, self,
        [this, &on, self,
         life = std::optional<detail::life_line>()]() mutable -> task<net::connection::handle> {
            start();
            auto link = net::make_socket_pair();
            life.emplace(link.theirs);
            take(std::move(link.ours));
            return detail::meet_store(
                net::adopt_unix_stream(on, link.theirs.release(), "the store"),
                detail::store_connection(secret_, self));
        },
        has_others(), has_others() ? number_ : 0);
}

SKEIN_INLINE std::shared_ptr<store_client> inherited_client(net::real_loop& on,
                                                            std::vector<unique_fd> files,
                                                            net::token secret, process_id self,
                                                            unique_function<void()> want,
                                                            bool has_peers, std::uint64_t number) {
    if (files.size() != 2)
        throw error(errc::malformed, "this process has not inherited the files of a store");
    auto memory = arena::open(std::move(files[0]));
    detail::life_line life(files[1]);
    auto stream = net::adopt_unix_stream(on, files[1].release(), "the store");
    return store_client::make(
        on, std::move(memory), self,
        [stream = std::move(stream), life = std::move(life), secret, self,
         want = std::move(want)]() mutable {
            want();
            return detail::meet_store(std::move(stream), detail::store_connection(secret, self));
        },
        has_peers, number);
}

} // namespace skein::objects
