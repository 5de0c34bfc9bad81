// SPDX-License-Identifier: Apache-2.0
#pragma once
// The link of an agent or a driver to the head: dialled, joined with a hello, and again after it
// was lost.
//
//     detail::head_link_options how{...};
//     how.make_service = [this] { return make_service(); };
//     // ends with: co_await link.join<node_welcome>(hello)
//     how.say_hello = [this] { return say_hello(this); };
//     detail::head_link link(loop, network, std::move(how), &stopping);
//     auto kept = link.keep();                 // until `stopping` is set, or dialling is of no use
//     co_await kept;
//     auto parted = link.part();               // says goodbye

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/function.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/address.hpp>
#include <skein/net/link.hpp>
#include <skein/net/requests.hpp>
#include <skein/net/token.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace skein::net {
class network;
}

namespace skein::cluster::detail {

/// What a head says of itself before any message: identity::extra of its links, encoded.
struct head_notice {
    bool this_host_only = false;  ///< it listens on loopback
    std::uint64_t state = 0;      ///< which log it has; 0: none, or none that could be written yet
    std::uint64_t generation = 0; ///< how many heads have begun with that
};

/// Whom to join, as whom, and what its messages do here.
struct head_link_options {
    net::address head;
    net::token secret;
    std::string name, host; ///< of this process, for the head's log
    std::int64_t pid = 0;
    std::uint64_t incarnation = 0;
    duration join_within{}; ///< the first time
    bool abandons = false; ///< a keep() that fails or is cancelled waits for no goodbye, as a crash
    time_constants times;

    /// For each link.
    unique_function<std::shared_ptr<net::request_service>()> make_service;
    /// Calls join(); what it throws ends the link.
    unique_function<task<void>()> say_hello;
    /// A link has failed, or could not be made, and the next attempt follows.
    unique_function<void(const error& why, bool was_joined)> on_away;
    /// People are told once that no head has answered at first: by whom, and how loud.
    const char* speaks_as = "cluster";
    logging::level news = logging::level::warn;
};

/// Those that start a head and what joins it at the same time need not hear who was first.
inline constexpr duration mute_after = std::chrono::milliseconds(1500);

/// Belongs to one loop. Must outlive keep() and part().
class head_link {
public:
    /// All of them must outlive it.
    head_link(loop& on, net::network& via, head_link_options how, event* stopping);
    head_link(const head_link&) = delete;
    head_link& operator=(const head_link&) = delete;
    ~head_link();

    /// Joins, and joins again with growing pauses whenever the link has failed. Returns when the
    /// head has ended the link in order, before its welcome or later, or `stopping` is set: then
    /// the link is still there, for part(). Once joined, it goes on whoever answers there without
    /// the token.
    ///   errors  the first time: what another attempt would not change (see is_final()), and any
    ///           after head_link_options::join_within; later: a head that refuses this process;
    ///           cancelled
    [[nodiscard]] task<void> keep() { return keep_telling(this); }
    /// Says goodbye and ends the link, if there is one.
    [[nodiscard]] task<void> part() { return part_from(this); }

    /// In say_hello: the head takes us in.
    ///   errors  those of net::requests::call; timeout
    template <class Welcome, class Hello>
    [[nodiscard]] task<Welcome> join(Hello hello) {
        return join_as<Welcome>(this, std::move(hello));
    }
    /// False: there is no link that the head has welcomed; the next hello has to say it.
    template <class M>
    bool tell(M m) {
        if (!joined_ || way_ == nullptr || !way_->is_open()) return false;
        try {
            way_->tell(std::move(m));
            return true;
        } catch (const error&) {
            return false;
        }
    }

    /// Asks the head.
    ///   errors  those of net::requests::call; closed: there is no link that the head has welcomed
    template <class Reply, class M>
    [[nodiscard]] task<Reply> ask(M m) {
        return ask_over<Reply>(this, std::move(m));
    }
    /// A head has welcomed this process before.
    [[nodiscard]] bool was_welcomed() const noexcept { return ever_; }
    [[nodiscard]] bool is_joined() const noexcept { return joined_; }
    /// While it is not joined: since when.
    [[nodiscard]] time_point alone_since() const noexcept { return alone_since_; }
    /// What the head says of itself; while there is a link.
    [[nodiscard]] head_notice notice() const;
    /// The newest head that it has heard of.
    [[nodiscard]] std::uint64_t generation() const noexcept { return newest_.generation; }

private:
    void check_generation();
    [[nodiscard]] bool is_no_word(errc code) const noexcept;
    void say_stranger(const error& why);
    void say_back();
    /// Ends the link without a goodbye: part() waits for nobody.
    void abandon() noexcept {
        if (way_ != nullptr) way_->abort(error(errc::aborted, "cancelled"));
    }
    static task<void> keep_telling(head_link* self);
    static task<void> say_mute(head_link* self);
    static task<void> keep_joined(head_link* self);
    static task<void> greet(head_link* self);
    static task<void> say_hello(head_link* self, std::exception_ptr* failure, event* done);
    static task<void> one_link(head_link* self);
    static task<void> part_from(head_link* self);
    template <class Reply, class M>
    static task<Reply> ask_over(head_link* self, M m) {
        if (!self->joined_ || self->way_ == nullptr)
            throw error(errc::closed, "there is no link to the head");
        auto asking = self->way_->template call<Reply>(std::move(m));
        co_return co_await asking;
    }
    template <class Welcome, class Hello>
    static task<Welcome> join_as(head_link* self, Hello hello) {
        auto asking = with_timeout(self->way_->template call<Welcome>(std::move(hello)),
                                   self->how_.times.handshake_timeout);
        auto welcome = co_await asking;
        self->joined_ = self->welcomed_ = self->ever_ = true;
        self->say_back();
        co_return welcome;
    }

    loop& on_loop_;
    net::network& network_;
    head_link_options how_;
    event* stopping_;
    net::link::handle below_;
    net::requests::handle way_;
    std::shared_ptr<net::request_service> service_;
    head_notice newest_;
    time_point alone_since_;
    std::string last_fault_; ///< of the attempts so far
    bool joined_ = false;    ///< the head has welcomed this link
    bool welcomed_ = false;  ///< the same, until keep() has seen its end
    bool ever_ = false;
    bool is_away_ = false;     ///< people were told so
    bool is_proven_ = false;   ///< who answers has proven the token, on this link
    std::set<errc> strangers_; ///< said since the head has gone
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/head_link.ipp>
#endif
