// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of objects/store_client.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/semaphore.hpp>
#include <skein/core/timeout.hpp>
#include <skein/objects/detail/let_go_box.hpp>
#include <skein/objects/detail/own_copy.hpp>
#include <skein/objects/detail/whose_objects.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>

namespace skein::objects {

SKEIN_INLINE fresh_object::~fresh_object() {
    if (back_) back_->put({name_.store, name_.number, 1, 0});
}

SKEIN_INLINE std::shared_ptr<store_client> store_client::make(loop& on, arena memory,
                                                              process_id self, connector connect,
                                                              bool has_peers,
                                                              std::uint64_t number) {
    std::shared_ptr<store_client> made(
        new store_client(on, std::move(memory), self, std::move(connect), has_peers, number));
    made->back_->to = made;
    return made;
}

SKEIN_INLINE store_client::store_client(loop& on, arena memory, process_id self, connector connect,
                                        bool has_peers, std::uint64_t number)
    : memory_(std::move(memory)), self_(self), connect_(std::move(connect)), store_(number),
      has_peers_(has_peers), others_(number),
      creating_(64), // others wait here: a store takes so many of one process
      pinning_(256), fetching_(2), news_(std::make_shared<net::request_service>()),
      back_(std::make_shared<detail::let_go_box>()) {
    back_->where = &on;
    back_->send = [](store_client& to) { to.send_back(); };
    news_->on_tell_at_once<roomy_note>(
        [this](const roomy_note& what) { set_roomy(what.is_roomy); });
    news_->on_tell_at_once<reached_note>([this](const reached_note& what) { others_.hear(what); });
}
SKEIN_INLINE store_client::~store_client() { back_->close(); }

// ---- the link ----------------------------------------------------------------------------------

SKEIN_INLINE void store_client::want_link() {
    if (std::exchange(is_connecting_, true)) return;
    const task_context::use none(nullptr); // it does not belong to the call that came first
    tasks_.spawn(connect(this));
}

SKEIN_INLINE task<void> store_client::connect(store_client* self) {
    try {
        auto connecting = self->connect_();
        auto wire = co_await connecting;
        self->link_ = net::requests::over(std::move(wire), self->news_);
        self->link_->set_closed_handler([self](const error* why) {
            self->link_is_lost(why != nullptr ? *why : error(errc::closed, "the store has ended"));
        });
    } catch (const error& e) {
        self->link_is_lost(e);
        co_return;
    }
    for (auto& one : std::exchange(self->early_, {})) one();
    self->settled_.set();
    self->send_back();
}

SKEIN_INLINE void store_client::link_is_lost(const error& why) {
    if (!lost_) lost_ = why;
    settled_.set();
    others_.end();
    if (is_closed_ || why.code() == errc::closed || why.code() == errc::cancelled) return;
    auto then = std::exchange(when_lost_, {});
    logging::warn("objects", "the store of this node is lost",
                  {{"why", why.what()},
                   {"then", then ? "this process ends" : "large values travel in messages"}});
    if (then) then(why);
}

SKEIN_INLINE task<net::requests::handle> store_client::link() {
    want_link();
    co_await settled_.wait();
    if (lost_) throw *lost_;
    co_return link_;
}

SKEIN_INLINE task<void> store_client::close() {
    is_closed_ = true;
    back_->close();
    if (!lost_) lost_ = error(errc::closed, "the store's client has ended");
    settled_.set();
    others_.end();
    early_.clear();
    tasks_.cancel();
    auto joined = as_result(shield(tasks_.join()));
    (void)co_await joined;
    if (const auto last = std::exchange(link_, {})) {
        auto closing = last->close();
        co_await closing;
    }
    auto closing = news_->close();
    co_await closing;
}

// ---- objects -----------------------------------------------------------------------------------

/// What is asked for by somebody who may not wait for it: then it goes back.
struct store_client::creation {
    std::optional<fresh_object> made;
    std::optional<error> why;
    event is_over;
};

SKEIN_INLINE task<std::optional<fresh_object>> store_client::create(std::uint64_t bytes,
                                                                    time_span patience) {
    const auto self = shared_from_this();
    const auto asked = std::make_shared<creation>();
    {
        const task_context::use none(nullptr);
        tasks_.spawn(create_for(this, asked, bytes, patience));
    }
    co_await asked->is_over.wait();
    if (asked->why) throw *asked->why;
    co_return std::move(asked->made);
}

SKEIN_INLINE task<void> store_client::create_for(store_client* self,
                                                 std::shared_ptr<creation> asked,
                                                 std::uint64_t bytes, time_span patience) {
    auto creating = as_result(self->create_alone(bytes, patience));
    auto made = co_await creating;
    if (made)
        asked->made = std::move(*made);
    else
        asked->why = made.error();
    asked->is_over.set();
}

[[nodiscard]] inline task<void> acquired(semaphore* turns) { co_await turns->acquire(); }

/// All waiting together takes no longer than the patience.
SKEIN_INLINE task<std::optional<fresh_object>> store_client::create_alone(std::uint64_t bytes,
                                                                          time_span patience) {
    const auto until = deadline_after(loop::current().now(), duration(patience));
    if (!creating_.try_acquire()) {
        auto acquiring = as_result(with_timeout(acquired(&creating_), patience));
        const auto mine = co_await acquiring;
        if (!mine && mine.error().code() == errc::timeout) co_return std::nullopt;
        if (!mine) throw mine.error();
    }
    const semaphore_permit mine(creating_);
    std::optional<fresh_object> made;
    try {
        auto linking = link();
        const auto to = co_await linking;
        create_request what;
        what.bytes = bytes;
        const auto left = std::max(until - loop::current().now(), duration(0));
        what.patience_ms = static_cast<std::uint32_t>(
            std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
        auto asking = to->call<create_reply>(what);
        const auto name = (co_await asking).name;
        if (name.store == 0 || name.bytes != bytes)
            throw error(errc::malformed, "the store gives something else than was asked for");
        store_ = name.store;
        made.emplace(fresh_object(name, {}, back_)); // from here on it goes back by itself
        made->window_ = memory_.write(name.at, name.bytes);
    } catch (const error& e) {
        made.reset();
        if (e.code() == errc::cancelled && !is_closed_) throw;
        const bool is_expected =
            e.code() == errc::exhausted || e.code() == errc::too_large || lost_;
        logging::at(is_expected ? logging::level::debug : logging::level::warn, "objects",
                    "no object was made", {{"why", e.what()}});
    }
    co_return made;
}

SKEIN_INLINE task<object_ptr> store_client::seal(fresh_object made, process_id to) {
    const auto self = shared_from_this();
    auto name = made.name();
    { const auto unmapped = std::move(made.window_); }
    count_copied_in(name.bytes);
    auto linking = link();
    const auto over = co_await linking;
    seal_request what;
    what.which = name.number;
    what.to = to;
    auto asking = shield(over->call<done_reply>(what)); // its answer must be heard
    (void)co_await asking;
    const bool is_own = !to || to == self_;
    auto kept = is_own ? keep(name, name.at) : nullptr;
    made.back_.reset(); // the store counts it as an object now
    co_return kept;
}

SKEIN_INLINE void store_client::refuse_others(const object_name& name) {
    if (name.store != 0 && (store_ == 0 || name.store == store_)) {
        store_ = name.store;
        return;
    }
    throw error(errc::mismatch, fmt::format("object {} is of another program", name.number.value()))
        .with_hint("give the value instead of its ref");
}

/// at: in the arena; nothing: on another node, or nobody has said where.
SKEIN_INLINE object_ptr store_client::keep(const object_name& name,
                                           std::optional<std::uint64_t> at) {
    auto& known = known_[name.key()];
    if (auto there = known.lock()) {
        ++there->times_;
        if (at && !there->is_here()) there->settle(memory_, *at);
        return there;
    }
    auto made = std::make_shared<object>(name, memory_, at, back_);
    known = made;
    return made;
}

/// Behind what was told before.
template <class Note>
void store_client::tell_in_order(const Note& what) {
    if (lost_ || is_closed_) return;
    if (!link_) return early_.push_back([this, what] { tell_in_order(what); });
    try {
        link_->tell(what);
    } catch (const error& e) { // its end follows, and the store forgets all
        link_->abort(e);
    }
}

SKEIN_INLINE std::vector<object_ptr> store_client::adopt(const std::vector<object_name>& names,
                                                         process_id from) {
    want_link();
    std::vector<object_ptr> all;
    all.reserve(names.size());
    const auto tell = [&](auto what, auto what_of) {
        what.from = from;
        for (const auto& name : names) {
            what.which.push_back(what_of(name));
            if (what.which.size() == most_names) {
                tell_in_order(what);
                what.which.clear();
            }
        }
        if (!what.which.empty()) tell_in_order(what);
    };
    for (const auto& name : names) {
        if (!has_peers_) refuse_others(name);
        const bool is_here = name.store == store_;
        all.push_back(keep(name, is_here ? std::optional(name.at) : std::nullopt));
    }
    if (has_peers_)
        tell(far_take_note(), [](const object_name& name) { return name; });
    else
        tell(take_note(), [](const object_name& name) { return name.number; });
    return all;
}

/// Who has not used the store yet tells it when it does.
SKEIN_INLINE void store_client::lost(process_id from, bool has_ended) {
    decline_note what;
    what.from = from;
    what.has_ended = has_ended;
    tell_in_order(what);
}

SKEIN_INLINE object_ptr store_client::find(const object_key& which) const {
    const auto found = known_.find(which);
    return found != known_.end() ? found->second.lock() : nullptr;
}

SKEIN_INLINE task<std::vector<object_ptr>> store_client::claim(std::vector<object_name> names) {
    const auto self = shared_from_this();
    if (has_peers_) {
        auto claiming = claim_far(std::move(names));
        co_return co_await claiming;
    }
    for (const auto& name : names) refuse_others(name);
    auto linking = link();
    const auto over = co_await linking;
    std::vector<object_ptr> out;
    out.reserve(names.size());
    for (std::size_t from = 0; from < names.size(); from += most_names) {
        const auto many = std::min(most_names, names.size() - from);
        claim_request what;
        for (std::size_t i = 0; i < many; ++i) what.which.push_back(names[from + i].number);
        auto asking = shield(over->call<claim_reply>(std::move(what)));
        const auto answer = co_await asking;
        if (answer.where.size() != many)
            throw error(errc::malformed, "the store answers for other objects than were asked for");
        for (std::size_t i = 0; i < many; ++i) {
            auto name = names[from + i];
            name.at = answer.where[i].at;
            name.bytes = answer.where[i].bytes;
            out.push_back(name.bytes != 0 ? keep(name, name.at) : nullptr);
        }
    }
    co_return out;
}

/// Objects that come from afar, for somebody who may not wait for them: then they are let go of.
struct store_client::far_claim {
    std::vector<object_name> names;
    std::vector<object_ptr> held;
    std::optional<error> why;
    event is_over;
};

SKEIN_INLINE task<std::vector<object_ptr>> store_client::claim_far(std::vector<object_name> names) {
    const auto self = shared_from_this();
    const auto asked = std::make_shared<far_claim>();
    asked->names = std::move(names);
    {
        const task_context::use none(nullptr);
        tasks_.spawn(claim_far_for(this, asked));
    }
    co_await asked->is_over.wait();
    if (asked->why) throw *asked->why;
    co_return std::move(asked->held);
}

SKEIN_INLINE task<void> store_client::claim_far_for(store_client* self,
                                                    std::shared_ptr<far_claim> asked) {
    const auto& names = asked->names;
    std::vector<object_ptr> held;
    try {
        co_await self->pinning_.acquire(); // others wait here: a store takes so many of one process
        const semaphore_permit mine(self->pinning_);
        auto linking = self->link();
        const auto over = co_await linking;
        for (std::size_t from = 0; from < names.size(); from += most_names) {
            const auto many = std::min(most_names, names.size() - from);
            far_claim_request what;
            for (std::size_t i = 0; i < many; ++i) what.which.push_back(names[from + i]);
            auto asking = over->call<far_claim_reply>(std::move(what));
            const auto answer = co_await asking;
            if (answer.at.size() != many)
                throw error(errc::malformed, "the store answers for other objects");
            for (std::size_t i = 0; i < many; ++i) {
                const bool is_here = answer.at[i] != not_in_arena;
                held.push_back(self->keep(names[from + i],
                                          is_here ? std::optional(answer.at[i]) : std::nullopt));
            }
        }
        for (const auto& one : held) {
            if (one->is_here()) continue;
            auto copying = detail::copy_of_far(over, one->name());
            auto own = co_await copying;
            if (!one->is_here()) std::const_pointer_cast<object>(one)->settle(std::move(own), 0);
        }
        asked->held = std::move(held);
    } catch (const error& e) {
        asked->why = e;
    }
    asked->is_over.set();
}

SKEIN_INLINE task<void> store_client::bring(std::vector<object_ptr> all) {
    const auto self = shared_from_this();
    std::vector<object_name> names;
    for (const auto& one : all)
        if (!one->is_here()) names.push_back(one->name());
    if (names.empty()) co_return;
    auto claiming = claim_far(std::move(names));
    (void)co_await claiming; // it settles those that are known
}

// ---- reading -----------------------------------------------------------------------------------

SKEIN_INLINE reading_ptr read_now(const object_ptr& which) {
    const auto client = which->back_->client();
    return client ? client->read_now(which) : nullptr;
}

SKEIN_INLINE task<reading_ptr> read(object_ptr which) {
    const auto client = which->back_->client();
    if (!client) throw error(errc::closed, "an object is read after the end of its program");
    std::vector<object_ptr> one;
    one.push_back(std::move(which));
    auto reading = client->read(std::move(one));
    const auto got = co_await reading;
    co_return got.front();
}

SKEIN_INLINE void read_then(object_ptr which, unique_function<void(result<reading_ptr>)> then) {
    if (const auto client = which->back_->client())
        return client->read_then(std::move(which), std::move(then));
    then(error(errc::closed, "an object is read after the end of its program"));
}

/// Where it is now it stays.
SKEIN_INLINE reading_ptr store_client::pinned(const object_ptr& which, std::uint64_t at) {
    if (const auto there = which->read_.lock(); there && !there->own_) {
        ++there->times_;
        return there;
    }
    auto made = std::make_shared<reading>(which, memory_.view(at, which->bytes()), arena(), 1);
    which->read_ = made;
    return made;
}

SKEIN_INLINE reading_ptr store_client::read_now(const object_ptr& which) {
    if (auto there = which->read_.lock()) return there;
    if (has_peers_ ? !which->is_here() : !is_roomy_) return nullptr;
    auto made = std::make_shared<reading>(which, which->here_, arena(), 0);
    which->read_ = made;
    return made;
}

/// Who reads without having asked is to say what, and asks from now on.
SKEIN_INLINE void store_client::set_roomy(bool is_roomy) {
    if (!std::exchange(is_roomy_, is_roomy) || is_roomy) return;
    reads_note what;
    std::vector<std::shared_ptr<reading>> all; // none of them ends meanwhile
    for (const auto& [key, known] : known_) {
        const auto one = known.lock();
        if (!one) continue;
        auto being_read = one->read_.lock();
        if (!being_read || being_read->own_ || being_read->times_ != 0) continue;
        being_read->times_ = 1;
        all.push_back(std::move(being_read));
        what.these.push_back({key.number, 1, 0});
        if (what.these.size() < most_names) continue;
        what.is_last = false;
        tell_in_order(what);
        what.is_last = true;
        what.these.clear();
    }
    tell_in_order(what);
}

/// What is asked for by somebody who may not wait for it.
struct store_client::pinning {
    std::vector<object_ptr> which;
    std::vector<reading_ptr> got;
    std::optional<error> why;
    event is_over;
};

SKEIN_INLINE task<std::vector<reading_ptr>> store_client::read(std::vector<object_ptr> which) {
    const auto self = shared_from_this();
    std::vector<reading_ptr> out;
    out.reserve(which.size());
    std::vector<std::size_t> missing;
    const auto asked = std::make_shared<pinning>();
    for (const auto& one : which) {
        out.push_back(read_now(one));
        if (out.back()) continue;
        missing.push_back(out.size() - 1);
        asked->which.push_back(one);
    }
    if (missing.empty()) co_return out;
    if (is_closed_) throw error(errc::closed, "the store's client has ended");
    if (has_peers_) { // nothing of theirs is ever away
        auto bringing = bring(asked->which);
        co_await bringing;
        for (std::size_t i = 0; i < missing.size(); ++i)
            out[missing[i]] = read_now(asked->which[i]);
        co_return out;
    }
    {
        const task_context::use none(nullptr);
        tasks_.spawn(pin_for(this, asked));
    }
    co_await asked->is_over.wait();
    if (asked->why) throw *asked->why;
    for (std::size_t i = 0; i < missing.size(); ++i) out[missing[i]] = std::move(asked->got[i]);
    co_return out;
}

SKEIN_INLINE void store_client::read_then(object_ptr which, reader then) {
    if (is_closed_) return then(error(errc::closed, "the store's client has ended"));
    const task_context::use none(nullptr);
    tasks_.spawn(read_for(shared_from_this(), std::move(which), std::move(then)));
}

SKEIN_INLINE task<void> store_client::read_for(std::shared_ptr<store_client> self, object_ptr which,
                                               reader then) {
    std::vector<object_ptr> one;
    one.push_back(std::move(which));
    auto reading = as_result(self->read(std::move(one)));
    auto got = co_await reading;
    then(got ? result<reading_ptr>(std::move(got->front())) : result<reading_ptr>(got.error()));
}

SKEIN_INLINE task<void> store_client::pin_for(store_client* self, std::shared_ptr<pinning> asked) {
    try {
        co_await self->pinning_.acquire();
        const semaphore_permit mine(self->pinning_);
        auto linking = self->link();
        const auto over = co_await linking;
        for (std::size_t from = 0; from < asked->which.size(); from += most_names) {
            const auto many = std::min(most_names, asked->which.size() - from);
            pin_request what;
            for (std::size_t i = 0; i < many; ++i)
                what.which.push_back(asked->which[from + i]->name().number);
            auto asking = over->call<pin_reply>(std::move(what));
            const auto answer = co_await asking;
            if (answer.where.size() != many)
                throw error(errc::malformed,
                            "the store answers for other objects than were asked for");
            for (std::size_t i = 0; i < many; ++i) {
                const auto& one = asked->which[from + i];
                const auto& where = answer.where[i];
                if (where.bytes != one->bytes())
                    throw error(errc::not_found,
                                fmt::format("object {} is gone", one->name().number.value()));
                asked->got.push_back(where.at == pin_reply::away ? nullptr
                                                                 : self->pinned(one, where.at));
            }
        }
        for (std::size_t i = 0; i < asked->got.size(); ++i) {
            if (asked->got[i]) continue;
            auto fetching = fetch(self, asked->which[i]);
            asked->got[i] = co_await fetching;
        }
    } catch (const error& e) {
        asked->why = e;
    }
    asked->is_over.set();
}

/// A copy in the memory of this process: the store has no room for it, and may have none for long.
SKEIN_INLINE task<reading_ptr> store_client::fetch(store_client* self, object_ptr which) {
    co_await self->fetching_.acquire();
    const semaphore_permit mine(self->fetching_);
    if (auto there = which->read_.lock()) co_return there;
    auto linking = self->link();
    const auto over = co_await linking;
    auto copying = detail::copy_of_away(over, which->name());
    auto own = co_await copying;
    const auto all = own.view(0, which->bytes());
    auto made = std::make_shared<reading>(which, all, std::move(own), 0);
    which->read_ = made;
    co_return made;
}

SKEIN_INLINE task<void> store_client::give(std::vector<object_ptr> all, process_id to,
                                           std::uint64_t to_store) {
    const auto self = shared_from_this();
    auto linking = link();
    const auto over = co_await linking;
    std::vector<object_name> names;
    names.reserve(all.size());
    for (const auto& one : all) names.push_back(one->name());
    auto giving = has_peers_
                      ? detail::give_by<far_give_request>(over, std::move(names), to, to_store)
                      : detail::give_by<give_request>(over, std::move(names), to, to_store);
    co_await giving;
    all.clear(); // whoever has the task holds nothing any more
}

template <class Note>
void store_client::send_back(const std::vector<far_let_go>& all) {
    for (std::size_t from = 0; from < all.size(); from += most_names) {
        Note what;
        const auto many = std::min(most_names, all.size() - from);
        for (std::size_t i = 0; i < many; ++i) {
            const auto& one = all[from + i];
            detail::add_let_go(what, one);
            const auto known = known_.find({one.store, one.which});
            if (one.times != 0 && known != known_.end() && known->second.expired())
                known_.erase(known);
        }
        try {
            link_->tell(what);
        } catch (const error& e) {
            return link_->abort(e); // its end follows, and the store forgets all
        }
    }
}

SKEIN_INLINE void store_client::send_back() {
    if (!link_ || lost_) return;
    const auto all = back_->take();
    if (has_peers_)
        send_back<far_release_note>(all);
    else
        send_back<release_note>(all);
}

} // namespace skein::objects
