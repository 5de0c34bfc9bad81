// SPDX-License-Identifier: Apache-2.0
#pragma once
// local_store: the store of a program whose processes are all of this host. It lives on a thread of
// the driver, which has a loop without user code, from the first object on.
//
//     objects::local_store store(std::uint64_t{1} << 30);
//     auto link = store.link_for_child();
//     how.files = link.files;                               // the child: objects::inherited_client()
//     auto own = store.client(loop, incarnation);           // for the driver itself
//     ...
//     co_await own->close();
//
// Before the first object there are two descriptors for each child, no thread and no memory.

#include <skein/core/fork_guard.hpp>
#include <skein/core/time.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/net/address.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/token.hpp>
#include <skein/objects/arena.hpp>
#include <skein/objects/spill.hpp>
#include <skein/objects/store_client.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::net {
class real_loop;
}

namespace skein::objects {

/// What a store has by default: 30 % of the memory that this process may use; 0: nobody tells.
[[nodiscard]] std::uint64_t default_store_bytes();
/// "2GiB", "500MB", "0" (no store).
///   errors  usage
[[nodiscard]] std::uint64_t parse_store_bytes(std::string_view text);

/// What SKEIN_STORE says, else what is asked for, else default_store_bytes().
///   errors  usage
[[nodiscard]] std::uint64_t store_bytes_for(std::string_view asked);

/// What a child inherits of the store, for it alone, and our end of its socket once more.
struct child_link {
    std::vector<std::shared_ptr<const unique_fd>> files;
    unique_fd ours;
    fork_guard unforked;

    /// Its holds end now, also if somebody that it has left behind has its end of the socket.
    void has_ended() noexcept;
};

/// Of a store that has others beside it, on other nodes.
struct store_on_node {
    net::token secret{}; ///< of all stores of the program
    std::string node{};  ///< for people
};

/// On the driver's loop, or that of an agent for a program; start() may come from there alone.
class local_store {
public:
    ///   among   it has others beside it; nothing: all processes are of this host
    ///   files   where objects go when there is no room; null: nowhere. Not beside others
    ///   errors  exhausted: the system allows no such memory
    explicit local_store(std::uint64_t bytes, std::optional<store_on_node> among = {},
                         std::unique_ptr<spill_volume> files = nullptr);
    local_store(const local_store&) = delete;
    local_store& operator=(const local_store&) = delete;
    /// All clients have been closed, or their processes are gone.
    ~local_store();

    [[nodiscard]] std::uint64_t bytes() const noexcept { return memory_.bytes(); }
    /// Of the store: no other one has it.
    [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
    /// The memory, and a socket.
    [[nodiscard]] child_link link_for_child();
    /// For its boot message.
    [[nodiscard]] const net::token& secret() const noexcept { return secret_; }

    /// Somebody is about to make or hold an object. Returns at once.
    void start();
    [[nodiscard]] bool has_started() const noexcept { return thread_ != nullptr; }
    [[nodiscard]] bool has_others() const noexcept { return among_.has_value(); }
    /// Of the driver's: starts it, and has it listen for the others; gives where, as text. Blocks
    /// for a moment, the first time.
    ///   errors  those of network::listen
    [[nodiscard]] std::string open_door(const net::address& at);
    /// An object is here, so that somebody holds it, and the driver's store is there. Blocks for a
    /// moment.
    [[nodiscard]] bool is_needed();
    /// That of the driver; `self`: its incarnation. `on` is the loop that runs now.
    [[nodiscard]] std::shared_ptr<store_client> client(net::real_loop& on, process_id self);

private:
    struct server; // on the thread
    void take(unique_fd socket);

    arena memory_;
    std::uint64_t number_;
    std::optional<store_on_node> among_;
    std::string door_;                      ///< once it is open
    std::unique_ptr<spill_volume> files_;   ///< until the start
    std::shared_ptr<const unique_fd> file_; ///< the arena's, once more, for children
    net::token secret_;
    std::vector<unique_fd> early_; ///< sockets from before the start
    std::unique_ptr<server> server_;
    std::unique_ptr<net::loop_thread> thread_;
};

/// The client of a child that has inherited such files.
///   want       asks the driver to start its store; called once, before the first use
///   has_peers  it is a store of many, see far_objects
///   number     of it, if it is
///   errors  malformed: they are something else
[[nodiscard]] std::shared_ptr<store_client> inherited_client(
    net::real_loop& on, std::vector<unique_fd> files, net::token secret, process_id self,
    unique_function<void()> want, bool has_peers = false, std::uint64_t number = 0);

} // namespace skein::objects

#if SKEIN_HEADER_ONLY
#include <skein/objects/detail/local_store.ipp>
#endif
