// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who a hello belongs to, and what it is told.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/detail/handshake.hpp>
#include <skein/net/detail/link_tables.hpp>
#include <skein/net/endpoint.hpp>
#include <skein/wire/encode.hpp>

#include <bit>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/core.h>

namespace skein::net {
namespace detail {

SKEIN_INLINE link_tables::link_tables(connection_options options, link_options how,
                                      std::size_t most_links, std::size_t most_waiting,
                                      std::uint64_t incarnation)
    : options_(std::move(options)), how_(how), most_links_(most_links), most_waiting_(most_waiting),
      incarnation_(incarnation) {
    how_.incarnation = incarnation;
}

SKEIN_INLINE link_answer link_tables::answer(link_verdict verdict, std::string why) const {
    link_answer a;
    a.verdict = static_cast<std::uint8_t>(verdict);
    a.incarnation = incarnation_;
    a.window_messages = how_.window_messages;
    a.window_bytes = how_.window_bytes;
    a.why = std::move(why);
    return a;
}

SKEIN_INLINE link_answer link_tables::judge(const connection& over, const link_hello& h,
                                            link* known) const {
    if (h.to != 0 && h.to != incarnation_) return answer(link_verdict::restarted);
    if (known == nullptr) {
        if (const auto found = epitaphs_.find({h.from, h.number}); found != epitaphs_.end()) {
            auto a = answer(found->second.verdict, found->second.why);
            a.received = found->second.received;
            a.generation = found->second.generation;
            return a;
        }
        if (!h.fresh) return answer(link_verdict::forgotten);
        if (h.received != 0) return answer(link_verdict::not_allowed, "messages of a new link");
        if (shut_) return answer(link_verdict::no_place, "it is closing");
        if (links_.size() >= most_links_) {
            return answer(link_verdict::no_place, fmt::format("{} are there", links_.size()));
        }
        return answer(link_verdict::good);
    }
    auto a = answer(link_verdict::good);
    a.generation = known->generation_;
    a.received = known->received_;
    a.resume = known->resumes_;
    const auto refuse = [&](link_verdict v, std::string why) {
        a.verdict = static_cast<std::uint8_t>(v);
        a.why = std::move(why);
    };
    if (h.generation <= known->generation_) {
        refuse(link_verdict::stale,
               fmt::format("generation {} after {}", h.generation, known->generation_));
    } else if (over.peer().name != known->peer_.name || over.peer().key != known->peer_.key) {
        refuse(link_verdict::not_allowed, "the link is that of " + known->peer_name_);
    } else if (!known->resumes_ || !known->window_.can_acknowledge(h.received) ||
               (h.fresh && known->received_ != 0)) {
        refuse(link_verdict::not_allowed,
               fmt::format("{} messages received of {} sent, {} confirmed", h.received,
                           known->window_.pushed(), known->window_.acknowledged()));
    }
    return a;
}

SKEIN_INLINE link::handle link_tables::admit(connection::handle over, const link_hello& h,
                                             bool& refused) {
    forget_old();
    if (!over->is_open()) { // it has ended behind its hello: nothing may change for that
        throw over->failure().value_or(error(errc::reset, over->peer_name() + " has left"));
    }
    const auto found = links_.find({h.from, h.number});
    link* const known = found == links_.end() ? nullptr : found->second;
    const auto keep = known != nullptr ? known->self_ : nullptr;
    auto a = judge(*over, h, known);
    if (static_cast<link_verdict>(a.verdict) != link_verdict::good) {
        ++refused_;
        refused = true;
        over->send(link_answer_kind, 0, 0, wire::encode(a));
        return nullptr;
    }
    if (known == nullptr) return make(std::move(over), h);
    ++resumed_;
    a.generation = known->generation_ = h.generation;
    if (known->connected_) {
        ++known->statistics_.breaks;
        known->break_ = error(errc::reset, "the peer has dialled again");
    }
    over->send(link_answer_kind, 0, 0, wire::encode(a));
    known->attach(std::move(over), h.received);
    return nullptr;
}

SKEIN_INLINE link::handle link_tables::make(connection::handle over, const link_hello& h) {
    const link::core made(new link(options_, how_, false));
    made->self_ = made;
    made->tables_ = shared_from_this();
    made->number_ = h.number;
    made->generation_ = h.generation;
    const bool resumes = h.resume && (how_.resume == resume_mode::on ||
                                      (how_.resume == resume_mode::automatic && !over->is_local()));
    made->begin(over->peer(), over->peer_name(), h.from, resumes, h.window_messages,
                h.window_bytes);
    links_.emplace(key(h.from, h.number), made.get());
    auto a = answer(link_verdict::good);
    a.generation = h.generation;
    a.resume = resumes;
    over->send(link_answer_kind, 0, 0, wire::encode(a));
    auto out = link::handle_of(made);
    made->attach(std::move(over), 0);
    return out;
}

SKEIN_INLINE void link_tables::leave(link& l) noexcept {
    const key k(l.theirs_, l.number_);
    const auto found = links_.find(k);
    if (found == links_.end() || found->second != &l) return;
    links_.erase(found);
    const bool closed = l.ending_ == link_end::orderly;
    const bool dead = l.ending_ == link_end::declared_dead;
    epitaph e{closed ? link_verdict::closed
              : dead ? link_verdict::dead
                     : link_verdict::ended,
              l.received_, l.generation_, l.failure_ ? l.failure_->what() : "",
              deadline_after(l.loop_.now(), 4 * how_.resume_within)};
    if (dead && l.failure_) e.why = l.failure_->cause();
    if (e.why.size() > 1024) e.why.resize(1024);
    try {
        epitaphs_.insert_or_assign(k, std::move(e));
        order_.push_back(k);
        if (order_.size() > most_epitaphs) {
            epitaphs_.erase(order_.front());
            order_.pop_front();
        }
    } catch (const std::bad_alloc&) { // then it is forgotten
    }
}

SKEIN_INLINE void link_tables::forget_old() noexcept {
    const auto now = loop::current().now();
    while (!order_.empty()) {
        const auto first = epitaphs_.find(order_.front());
        if (first != epitaphs_.end() && first->second.until > now) return;
        if (first != epitaphs_.end()) epitaphs_.erase(first);
        order_.pop_front();
    }
}

SKEIN_INLINE std::size_t link_tables::waiting() const noexcept {
    std::size_t n = 0;
    for (const auto& [k, l] : links_) n += !l->connected_;
    return n;
}

SKEIN_INLINE bool link_tables::wait_for(link& l) {
    if (shut_) return false;
    std::erase(broken_, key(l.theirs_, l.number_));
    broken_.emplace_back(l.theirs_, l.number_);
    const auto is_waiting = [&](const key& k) {
        const auto found = links_.find(k);
        return found != links_.end() && !found->second->connected_;
    };
    if (broken_.size() <= most_waiting_) return true;
    std::erase_if(broken_, [&](const key& k) { return !is_waiting(k); });
    while (broken_.size() > most_waiting_) { // each once, and each of them waits
        link* const oldest = links_.find(broken_.front())->second;
        broken_.pop_front();
        oldest->end(error(errc::exhausted,
                          fmt::format("more than {} links wait for their peers; that of {} has "
                                      "waited longest",
                                      most_waiting_, oldest->peer_name_)),
                    link_end::deadline);
    }
    return l.state_ != link::state::ended;
}

} // namespace detail

SKEIN_INLINE link_table::link_table(connection_options options, link_options how,
                                    link_table_bounds bounds) {
    const std::uint64_t mine =
        how.incarnation != 0 ? how.incarnation : detail::draw_number(loop::current().random());
    tables_ = std::make_shared<detail::link_tables>(std::move(options), how, bounds.most_links,
                                                    bounds.most_waiting, mine);
}
SKEIN_INLINE link_table::~link_table() { tables_->shut(); }

SKEIN_INLINE std::uint64_t link_table::incarnation() const noexcept {
    return tables_->incarnation();
}
SKEIN_INLINE std::size_t link_table::links() const noexcept { return tables_->links(); }
SKEIN_INLINE std::size_t link_table::waiting() const noexcept { return tables_->waiting(); }
SKEIN_INLINE std::uint64_t link_table::refused() const noexcept { return tables_->refused(); }
SKEIN_INLINE std::uint64_t link_table::resumed() const noexcept { return tables_->resumed(); }

SKEIN_INLINE task<link::handle> link_table::admit(connection::handle over) {
    const auto tables = tables_;
    auto reading = with_timeout(over->receive(), tables->hello_deadline());
    const auto first = co_await reading;
    if (!first) throw error(errc::reset, over->peer_name() + " said goodbye instead of hello");
    const auto hello = detail::read_greeting<detail::link_hello>(*first);
    if (!hello) throw hello.error();
    bool refused = false;
    auto made = tables->admit(over, *hello, refused);
    if (refused) {
        auto closing = over->close();
        co_await closing;
    }
    co_return made;
}

SKEIN_INLINE link_endpoint::link_endpoint(network& via, const address& at,
                                          connection_options options, link_options how,
                                          link_table_bounds links, acceptor_options bounds)
    : options_(std::move(options)),
      door_(via, detail::check_guarded(at, options_.secret),
            detail::within_handshake(bounds, options_.bounds.handshake_deadline)),
      table_(options_, how, links) {}
SKEIN_INLINE link_endpoint::~link_endpoint() = default;

SKEIN_INLINE task<void> link_endpoint::serve(handler serve_one) {
    handler_ = std::move(serve_one);
    return door_.serve([this](std::unique_ptr<stream> from, admission* place) {
        return one(this, std::move(from), place);
    });
}

SKEIN_INLINE task<void> link_endpoint::one(link_endpoint* self, std::unique_ptr<stream> from,
                                           admission* place) {
    byte_buffer first;
    bool is_http = false;
    if (self->http_) {
        auto looking = with_timeout(detail::read_opening(from.get(), &first),
                                    self->options_.bounds.handshake_deadline);
        is_http = co_await looking == detail::opening::http;
    }
    if (!is_http) {
        auto serving = one_link(self, std::move(from), std::move(first), place);
        co_await serving;
        co_return;
    }
    // A page that is open, or a client between two requests, keeps nobody from ending.
    auto answering = as_result(
        with_cancel(self->closing_.token(), self->http_(std::move(from), std::move(first), place)));
    const auto done = co_await answering;
    if (!done && !self->closing_.requested()) throw done.error();
}

SKEIN_INLINE task<void> link_endpoint::one_link(link_endpoint* self, std::unique_ptr<stream> from,
                                                byte_buffer first, admission* place) {
    auto* cancel = co_await skein::detail::current_cancel{};
    link::handle l;
    {
        auto greeting =
            connection::accept(std::move(from), self->options_, std::move(first), place);
        const connection::handle c = co_await greeting;
        place->authenticated();
        auto admitting = as_result(with_cancel(self->closing_.token(), self->table_.admit(c)));
        auto admitted = co_await admitting;
        if (!admitted && self->closing_.requested()) co_return;
        if (!admitted) throw admitted.error();
        l = std::move(*admitted);
    }
    if (!l) co_return;
    std::optional<error> fault;
    try {
        auto serving = self->handler_(l);
        co_await serving;
    } catch (...) {
        fault = to_error(std::current_exception());
    }
    if (fault) l->abort(*fault);
    auto closing = shield(l->close());
    co_await closing;
    if (!fault) co_return;
    if (fault->code() == errc::cancelled && cancel != nullptr && cancel->requested()) throw *fault;
    constexpr std::uint64_t all_of_the_first =
        8; // then ever fewer: how many there are is up to the peers
    if (++self->failed_ > all_of_the_first && !std::has_single_bit(self->failed_)) co_return;
    logging::warn("net", "link failed",
                  {{"peer", l->peer_name()}, {"why", fault->what()}, {"so_far", self->failed_}});
}

} // namespace skein::net
