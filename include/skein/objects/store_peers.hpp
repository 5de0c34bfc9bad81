// SPDX-License-Identifier: Apache-2.0
#pragma once
// store_peers: the links of one store with those of the program's other nodes. Each dials the hub, the
// store of the driver, and hears there of the others; of each two that with the smaller number dials.
//
//     objects::store_peers peers(network, number, how, events);
//     peers.listen(net::address::any(0));
//     peers.join(hub);                                   // none of the hub itself
//     auto looking = peers.reach(number);
//     const auto there = co_await looking;               // there->link->call<...>(...)
//     co_await peers.close();
//
// A link outlives broken connections. It ends, and all that either store has of the other is lost, when
// nobody listens there any more, or nothing was heard for store_peer_options::lost_after. Who has
// dialled goes on dialling: the hub for ever, others until the hub says that it has lost them too.
// What comes of that is another link: nothing of the last one counts for it.

#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/function.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/address.hpp>
#include <skein/net/endpoint.hpp>
#include <skein/net/link.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/net/network.hpp>
#include <skein/net/requests.hpp>
#include <skein/objects/peer_messages.hpp>
#include <skein/objects/transfer.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace skein::objects {

struct store_peer_options {
    net::token secret{}; ///< of all stores of the program
    std::string node{};  ///< this one, for people
    /// Where one that is not the hub listens. Empty host: at all addresses, or on this host alone if
    /// the hub does.
    net::address listen{};
    /// For a broken connection to be there again.
    time_span lost_after = std::chrono::seconds(30);
    /// For the hub to say of a store whose objects somebody names.
    time_span known_within = std::chrono::seconds(10);
};

/// Another store, from the first that was heard of it to the loss of the link with it. When there is a
/// link again it is another one of these.
struct store_peer {
    process_id counts_as;       ///< in the books of this store; another one for each link
    int links = 0;              ///< so many there were before
    store_place where;          ///< from here
    store_place told{};         ///< as it has said itself
    net::requests::handle link; ///< null: not yet, or no more
    net::link::handle below;    ///< the same
    std::shared_ptr<net::request_service> service;
    std::optional<error> lost;
    event settled;                                         ///< one of the two
    bool was_awaited = false;                              ///< and did not come
    std::vector<unique_function<void(store_peer&)>> early; ///< what is told when there is a link
    std::shared_ptr<byte_source> bytes;

    /// Behind what was told before. Of one that is lost nothing comes of it.
    template <class Note>
    void tell(const Note& what) {
        if (lost) return;
        if (!link) return early.push_back([what](store_peer& to) { to.tell(what); });
        try {
            link->tell(what);
        } catch (const error& e) { // its end follows; what is counted there is wrong from now on
            if (below && e.code() == errc::exhausted) below->declare_dead(e.what());
        }
    }
};

/// What links bring.
class peer_events {
public:
    peer_events() = default;
    peer_events(const peer_events&) = delete;
    peer_events& operator=(const peer_events&) = delete;
    /// What is there for it to ask for.
    virtual void serve_peer(net::request_service& service, store_peer& one) = 0;
    virtual void peer_came(store_peer& one) = 0;
    virtual void peer_lost(store_peer& one) = 0;
    /// With which stores there is a link is not as it was.
    virtual void reach_changed() = 0;
    /// Bytes of an object that this store has.
    [[nodiscard]] virtual std::optional<held_bytes> bytes_of(object_number which) = 0;

protected:
    ~peer_events() = default;
};

/// On the loop of the store.
class store_peers {
public:
    ///   via, above  must outlive this
    store_peers(net::network& via, std::uint64_t self, store_peer_options how, peer_events& above);
    store_peers(const store_peers&) = delete;
    store_peers& operator=(const store_peers&) = delete;
    ~store_peers();

    /// Both doors, that for bytes at any port; once.
    ///   errors  those of network::listen
    void listen(const net::address& at);
    [[nodiscard]] bool listens() const noexcept { return door_ != nullptr; }
    /// Of the door for links.
    [[nodiscard]] net::address local() const { return door_->local(); }
    /// Dials the hub; once, after listen().
    void join(const net::address& hub);

    /// Known, or to be heard of.
    [[nodiscard]] std::shared_ptr<store_peer> at(std::uint64_t store);
    /// Suspends until there is a link with it.
    ///   errors  object_lost: there is none any more, or never was; cancelled
    [[nodiscard]] task<std::shared_ptr<store_peer>> reach(std::uint64_t store);
    /// To all that there are.
    template <class Note>
    void tell_all(const Note& what) {
        for (const auto& [number, one] : all_)
            if (one->link) one->tell(what);
    }
    /// That one has ended, as somebody says who knows.
    void declare_lost(std::uint64_t store, const std::string& why);
    [[nodiscard]] std::size_t linked() const noexcept;
    /// Those with which there is a link.
    [[nodiscard]] std::vector<std::uint64_t> reached() const;
    /// There is a link with the hub.
    [[nodiscard]] bool has_hub() const noexcept { return hub_ && hub_->link; }
    /// The link with it was lost a while ago, less than lost_after, and not because it has ended.
    [[nodiscard]] bool awaits_hub() const {
        return !has_hub() && hub_awaited_until_ && loop::current().now() < *hub_awaited_until_;
    }

    [[nodiscard]] task<void> close();

private:
    [[nodiscard]] net::connection_options options() const;
    [[nodiscard]] net::link_options link_options(std::uint64_t expect) const;
    [[nodiscard]] std::shared_ptr<net::request_service> service_for(store_peer& one);
    [[nodiscard]] std::shared_ptr<store_peer> take(const net::link::handle& link, bool is_hub,
                                                   const std::shared_ptr<event>& ended);
    void hear(const stores_note& what);
    [[nodiscard]] bool may_dial(std::uint64_t store) const;
    [[nodiscard]] std::shared_ptr<store_peer> begin_anew(const std::shared_ptr<store_peer>& last);
    void introduce(const store_peer& fresh);
    [[nodiscard]] static store_place as_others_see(const store_peer& one);
    void lose(store_peer& one, error why);
    static task<void> keep_dialling(store_peers* self, net::address to, std::uint64_t expect,
                                    bool is_hub);
    static task<void> dial(store_peers* self, net::address to, std::uint64_t expect, bool is_hub);
    static task<void> serve(store_peers* self, net::link::handle link, bool is_hub);
    static task<void> watch(store_peers* self, net::link* link, event* ended,
                            std::string bytes_door);
    static task<void> accept(store_peers* self);
    static task<void> accept_bytes(store_peers* self);

    net::network& via_;
    std::uint64_t self_;
    store_peer_options how_;
    peer_events& above_;
    store_place own_;
    bool is_closed_ = false, is_joined_ = false;
    std::unique_ptr<net::link_endpoint> door_;
    std::unique_ptr<net::endpoint> bytes_door_;
    std::map<std::uint64_t, std::shared_ptr<store_peer>> all_;
    std::shared_ptr<store_peer> hub_;
    std::optional<time_point> hub_awaited_until_;   ///< since the loss of a link with it
    std::map<std::uint64_t, net::address> dialled_; ///< those that are dialled, and where
    std::set<std::uint64_t> gone_;                  ///< as the hub says
    event hub_known_; ///< there was a link with it, or this is the hub
    scope tasks_;
};

} // namespace skein::objects

#if SKEIN_HEADER_ONLY
#include <skein/objects/detail/store_peers.ipp>
#endif
