// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of objects/store_peers.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/backoff.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/dial.hpp>
#include <skein/proc/build_id.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::objects {

namespace detail {

/// As it is dialled from elsewhere.
[[nodiscard]] SKEIN_INLINE std::string seen_from_outside(const std::string& door,
                                                         const std::string& host) {
    auto at = net::address::parse(door);
    if (!at) return {};
    if (at->kind == net::scheme::tcp && at->host == "*") at->host = host;
    return to_string(*at);
}

} // namespace detail

SKEIN_INLINE store_peers::store_peers(net::network& via, std::uint64_t self, store_peer_options how,
                                      peer_events& above)
    : via_(via), self_(self), how_(std::move(how)), above_(above) {
    own_.store = self_;
    own_.node = how_.node;
}
SKEIN_INLINE store_peers::~store_peers() = default;

SKEIN_INLINE net::connection_options store_peers::options() const {
    net::connection_options o;
    o.secret = how_.secret;
    o.self.name = how_.node.empty() ? "store" : "store of " + how_.node;
    o.self.build_id = proc::build_id();
    o.self.purpose = "skein-stores-1";
    o.self.extra = wire::encode(own_);
    return o;
}

SKEIN_INLINE net::link_options store_peers::link_options(std::uint64_t expect) const {
    constexpr auto times = time_constants::lan();
    net::link_options o;
    o.incarnation = self_;
    o.expect = expect;
    o.resume = net::resume_mode::on;
    o.resume_within = how_.lost_after;
    o.refused_within = 4 * duration(times.worker_refused);
    o.attempt_timeout = times.connect_timeout;
    return o;
}

SKEIN_INLINE void store_peers::listen(const net::address& at) {
    if (door_) return;
    auto any = at;
    any.port = 0;
    auto bytes = std::make_unique<net::endpoint>(via_, any, chunk_connection(how_.secret, self_));
    own_.bytes = to_string(bytes->local());
    auto door = std::make_unique<net::link_endpoint>(via_, at, options(), link_options(0));
    own_.door = to_string(door->local());
    door->introduce(wire::encode(own_));
    door_ = std::move(door);
    bytes_door_ = std::move(bytes);
    tasks_.spawn(accept(this));
    tasks_.spawn(accept_bytes(this));
}

SKEIN_INLINE task<void> store_peers::accept(store_peers* self) {
    auto serving = as_result(self->door_->serve(
        [self](net::link::handle link) { return serve(self, std::move(link), false); }));
    (void)co_await serving;
}

SKEIN_INLINE task<void> store_peers::accept_bytes(store_peers* self) {
    auto serving = as_result(self->bytes_door_->serve([self](net::connection::handle wire) {
        return serve_chunks(std::move(wire),
                            [self](object_number which) { return self->above_.bytes_of(which); });
    }));
    (void)co_await serving;
}

SKEIN_INLINE void store_peers::join(const net::address& hub) {
    if (std::exchange(is_joined_, true) || is_closed_) return;
    tasks_.spawn(keep_dialling(this, hub, 0, true));
}

/// The smaller of two numbers dials, for as long as the hub has that store, too.
SKEIN_INLINE bool store_peers::may_dial(std::uint64_t store) const {
    return !is_closed_ && has_hub() && !gone_.contains(store);
}

SKEIN_INLINE task<void> store_peers::keep_dialling(store_peers* self, net::address to,
                                                   std::uint64_t expect, bool is_hub) {
    backoff pauses(std::chrono::seconds(1), std::chrono::seconds(10));
    while (is_hub ? !self->is_closed_ : self->may_dial(expect)) {
        const auto began = loop::current().exact_now();
        if (!is_hub) to = self->dialled_.at(expect); // as it was told last
        auto dialing = dial(self, to, expect, is_hub);
        co_await dialing;
        if (loop::current().exact_now() - began > duration(self->how_.lost_after)) pauses.reset();
        co_await sleep_for(pauses.next());
    }
    if (!is_hub) self->dialled_.erase(expect);
}

SKEIN_INLINE task<void> store_peers::dial(store_peers* self, net::address to, std::uint64_t expect,
                                          bool is_hub) {
    net::link::handle link;
    try {
        auto how = self->link_options(expect);
        how.first.max_tries = 0;
        how.first.until =
            deadline_after(loop::current().exact_now(), duration(self->how_.lost_after));
        auto dialing = net::link::connect(self->via_, std::move(to), self->options(), how);
        link = co_await dialing;
    } catch (const error& e) {
        if (e.code() == errc::cancelled) throw;
        const bool is_first = is_hub ? !self->hub_known_.is_set() : !self->at(expect)->lost;
        logging::at(is_first ? logging::level::warn : logging::level::debug, "objects",
                    "a store cannot be reached",
                    {{"why", e.what()}, {"then", "values travel in messages until it is"}});
        if (!is_hub) self->lose(*self->at(expect), e);
        if (is_hub) self->hub_known_.set(); // nothing will be heard of any other
        co_return;
    }
    auto served = serve(self, std::move(link), is_hub);
    co_await served;
}

/// Null: it is none of ours.
SKEIN_INLINE std::shared_ptr<store_peer> store_peers::take(const net::link::handle& link,
                                                           bool is_hub,
                                                           const std::shared_ptr<event>& ended) {
    const auto place = wire::decode<store_place>(link->peer().extra);
    if (!place || place->store == 0 || place->store == self_ || is_closed_) return nullptr;
    auto one = at(place->store);
    if (one->link) { // it has lost that one
        const auto last = one->link;
        lose(*one, error(errc::peer_lost, "it has begun a link anew"));
        last->abort(error(errc::closed, "there is another link"));
    }
    if (one->lost) one = begin_anew(one);
    one->where = one->told = *place;
    one->where.door = detail::seen_from_outside(place->door, link->peer_host());
    one->where.bytes = detail::seen_from_outside(place->bytes, link->peer_host());
    if (const auto from = net::address::parse(one->where.bytes))
        one->bytes = std::make_shared<byte_source>(
            via_, *from, how_.secret, self_, [weak = std::weak_ptr(one)] {
                const auto it = weak.lock();
                return it && it->below && !it->below->is_connected();
            });
    one->below = link;
    one->service = service_for(*one);
    one->link = net::requests::over(link, one->service);
    for (auto& note : std::exchange(one->early, {})) note(*one);
    if (is_hub) {
        hub_ = one;
        hub_known_.set();
    }
    above_.peer_came(*one);
    if (!is_joined_) introduce(*one); // this is the hub
    one->settled.set();
    above_.reach_changed();
    const auto made = one->link; // the handler may be called at once
    made->set_closed_handler([this, one, ended](const error* why) {
        lose(*one, why != nullptr ? *why : error(errc::closed, "it has ended"));
        ended->set();
    });
    return one;
}

/// As others dial it. One on the hub's own host is where the hub is for them.
SKEIN_INLINE store_place store_peers::as_others_see(const store_peer& one) {
    const bool is_beside = net::address::tcp(one.below->peer_host(), 0).is_loopback();
    return is_beside ? one.told : one.where;
}

/// Of the hub: those that there are, and the new one, hear of each other.
SKEIN_INLINE void store_peers::introduce(const store_peer& fresh) {
    stores_note others, news;
    news.all.push_back(as_others_see(fresh));
    for (const auto& [number, one] : all_) {
        if (!one->link || number == fresh.where.store) continue;
        others.all.push_back(as_others_see(*one));
        one->tell(news);
    }
    if (!others.all.empty()) at(fresh.where.store)->tell(others);
}

SKEIN_INLINE void store_peers::hear(const stores_note& what) {
    for (const auto& place : what.all) {
        if (place.store == 0 || place.store == self_ || is_closed_) continue;
        const auto one = at(place.store);
        gone_.erase(place.store);
        if (!one->link && !one->lost) one->where = one->told = place;
        if (self_ > place.store) continue; // that one dials
        const auto hub = hub_ && hub_->below ? hub_->below->peer_host() : std::string();
        const auto to = net::address::parse(detail::seen_from_outside(place.door, hub));
        if (to && dialled_.insert_or_assign(place.store, *to).second)
            tasks_.spawn(keep_dialling(this, *to, place.store, false));
    }
}

[[nodiscard]] SKEIN_INLINE task<void> close_bytes(std::shared_ptr<byte_source> from) {
    auto closing = shield(from->close());
    co_await closing;
}

/// The one in the place of a lost one. What is in flight keeps that.
SKEIN_INLINE std::shared_ptr<store_peer> store_peers::begin_anew(
    const std::shared_ptr<store_peer>& last) {
    auto fresh = std::make_shared<store_peer>();
    fresh->links = last->links + 1;
    const auto store = last->where.store;
    constexpr std::uint64_t odd = 0x9e3779b97f4a7c15;
    fresh->counts_as = process_id(store + odd * static_cast<std::uint64_t>(fresh->links));
    if (last->bytes) tasks_.spawn(close_bytes(last->bytes));
    all_[store] = fresh;
    return fresh;
}

/// Nobody listens there any more.
[[nodiscard]] SKEIN_INLINE task<bool> is_refused(net::network* via, net::address at) {
    try {
        auto connecting = with_timeout(via->connect(std::move(at)), std::chrono::seconds(1));
        const auto stream = co_await connecting;
        co_return false;
    } catch (const error& e) {
        if (e.code() == errc::cancelled) throw;
        co_return e.code() == errc::refused;
    }
}

/// Until the link has ended. While it is broken, who has accepted it looks whether the other one is
/// there at all.
SKEIN_INLINE task<void> store_peers::watch(store_peers* self, net::link* link, event* ended,
                                           std::string bytes_door) {
    const auto at = net::address::parse(bytes_door);
    int refusals = 0;
    while (!ended->is_set()) {
        auto waiting = ended->wait_for(time_constants::lan().suspect_after);
        if (co_await waiting) co_return;
        if (!at || link->is_connected()) {
            refusals = 0;
            continue;
        }
        auto asking = is_refused(&self->via_, *at);
        refusals = co_await asking ? refusals + 1 : 0;
        if (refusals == 2) link->declare_dead("nobody listens there any more");
    }
}

SKEIN_INLINE task<void> store_peers::serve(store_peers* self, net::link::handle link, bool is_hub) {
    const auto ended = std::make_shared<event>();
    const auto one = self->take(link, is_hub, ended);
    if (!one) {
        link->abort(error(errc::refused, "a store that is not awaited here (any more)"));
        co_return;
    }
    const auto requests = one->link;
    const auto service = one->service;
    if (!requests) co_return; // it has ended already
    bool is_cancelled = false;
    try {
        auto watching = watch(self, link.get(), ended.get(), one->where.bytes);
        co_await watching;
    } catch (const error&) {
        is_cancelled = true;
    }
    if (is_cancelled) {
        self->lose(*one, error(errc::closed, "this store has ended"));
        requests->abort(error(errc::closed, "the store has ended"));
    }
    auto closing = shield(requests->close());
    co_await closing;
    auto ending = shield(service->close());
    co_await ending;
}

SKEIN_INLINE std::shared_ptr<net::request_service> store_peers::service_for(store_peer& one) {
    auto service = std::make_shared<net::request_service>();
    service->on_tell_at_once<stores_note>([this](const stores_note& what) { hear(what); });
    service->on_tell_at_once<gone_note>([this, from = &one](const gone_note& what) {
        if (hub_.get() == from) gone_.insert(what.store);
    });
    above_.serve_peer(*service, one);
    return service;
}

SKEIN_INLINE std::shared_ptr<store_peer> store_peers::at(std::uint64_t store) {
    auto& one = all_[store];
    if (!one) {
        one = std::make_shared<store_peer>();
        one->where.store = store;
        one->counts_as = process_id(store);
    }
    return one;
}

SKEIN_INLINE task<std::shared_ptr<store_peer>> store_peers::reach(std::uint64_t store) {
    const auto one = at(store);
    if (!one->settled.is_set() && !one->was_awaited) {
        const auto end = deadline_after(loop::current().exact_now(), duration(how_.known_within));
        // The driver may compute meanwhile: its loop says where the hub is.
        if (is_joined_ || !listens()) {
            auto knowing = hub_known_.wait_until(end);
            (void)co_await knowing;
        }
        auto waiting = one->settled.wait_until(end);
        if (!co_await waiting) one->was_awaited = true;
    }
    if (one->lost) throw error(*one->lost);
    if (!one->link)
        throw error(errc::object_lost, "the store of its node cannot be reached from here")
            .with_hint("nodes of a program reach the ports of each other, or SKEIN_STORE=0");
    co_return one;
}

SKEIN_INLINE void store_peers::lose(store_peer& one, error why) {
    if (one.lost) return;
    const auto node = one.where.node.empty() ? std::string("another node") : one.where.node;
    one.lost =
        error(errc::object_lost, fmt::format("the store of {} is gone: {}", node, why.text()));
    one.link.reset();
    one.below.reset();
    one.service.reset();
    one.early.clear();
    above_.peer_lost(one);
    one.settled.set();
    if (is_closed_) return;
    if (hub_.get() == &one && why.code() != errc::closed)
        hub_awaited_until_ = deadline_after(loop::current().now(), duration(how_.lost_after));
    if (!is_joined_) tell_all(gone_note{one.where.store});
    above_.reach_changed();
}

SKEIN_INLINE std::vector<std::uint64_t> store_peers::reached() const {
    std::vector<std::uint64_t> out;
    for (const auto& [number, one] : all_)
        if (one->link) out.push_back(number);
    return out;
}

SKEIN_INLINE void store_peers::declare_lost(std::uint64_t store, const std::string& why) {
    const auto found = all_.find(store);
    if (found == all_.end() || !found->second->below) return;
    const auto link = found->second->below;
    link->declare_dead(why);
}

SKEIN_INLINE std::size_t store_peers::linked() const noexcept {
    return static_cast<std::size_t>(std::count_if(
        all_.begin(), all_.end(), [](const auto& one) { return one.second->link != nullptr; }));
}

SKEIN_INLINE task<void> store_peers::close() {
    is_closed_ = true;
    hub_known_.set();
    if (door_) door_->close();
    if (bytes_door_) bytes_door_->close();
    tasks_.cancel();
    auto joined = as_result(shield(tasks_.join()));
    (void)co_await joined;
    const auto all = std::exchange(all_, {});
    for (const auto& [number, one] : all) {
        if (!one->bytes) continue;
        auto ending = shield(one->bytes->close());
        co_await ending;
    }
    hub_.reset();
    door_.reset();
    bytes_door_.reset();
}

} // namespace skein::objects
