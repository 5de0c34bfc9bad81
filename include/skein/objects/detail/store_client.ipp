// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of objects/store_client.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/semaphore.hpp>
#include <skein/core/timeout.hpp>
#include <skein/objects/detail/let_go_box.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>

namespace skein::objects {

SKEIN_INLINE fresh_object::~fresh_object() {
    if (back_) back_->put(name_.number, 1);
}

SKEIN_INLINE std::shared_ptr<store_client> store_client::make(loop& on, arena memory,
                                                              process_id self, connector connect) {
    std::shared_ptr<store_client> made(
        new store_client(on, std::move(memory), self, std::move(connect)));
    made->back_->to = made;
    return made;
}

SKEIN_INLINE store_client::store_client(loop& on, arena memory, process_id self, connector connect)
    : memory_(std::move(memory)), self_(self), connect_(std::move(connect)),
      creating_(64), // others wait here: a store takes so many of one process
      back_(std::make_shared<detail::let_go_box>()) {
    back_->where = &on;
    back_->send = [](store_client& to) { to.send_back(); };
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
        self->link_ = net::requests::over(std::move(wire));
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
    early_.clear();
    tasks_.cancel();
    auto joined = as_result(shield(tasks_.join()));
    (void)co_await joined;
    const auto last = std::exchange(link_, {});
    if (!last) co_return;
    auto closing = last->close();
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
    struct turn {
        explicit turn(semaphore& s) noexcept : of(s) {}
        turn(const turn&) = delete;
        turn& operator=(const turn&) = delete;
        ~turn() { of.release(); }
        semaphore& of;
    };
    const turn mine(creating_);
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
    auto kept = is_own ? keep(name) : nullptr;
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

SKEIN_INLINE object_ptr store_client::keep(const object_name& name) {
    auto& known = known_[name.number];
    if (auto there = known.lock()) {
        ++there->times_;
        return there;
    }
    auto made = std::make_shared<object>(name, memory_, back_);
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
    } catch (const error&) { // its end follows, and the store forgets all
    }
}

SKEIN_INLINE std::vector<object_ptr> store_client::adopt(const std::vector<object_name>& names,
                                                         process_id from) {
    want_link();
    std::vector<object_ptr> all;
    all.reserve(names.size());
    take_note what;
    what.from = from;
    for (const auto& name : names) {
        refuse_others(name);
        what.which.push_back(name.number);
        if (what.which.size() == most_names) {
            tell_in_order(what);
            what.which.clear();
        }
        all.push_back(keep(name));
    }
    if (!what.which.empty()) tell_in_order(what);
    return all;
}

/// Who has not used the store yet tells it when it does.
SKEIN_INLINE void store_client::lost(process_id from, bool has_ended) {
    decline_note what;
    what.from = from;
    what.has_ended = has_ended;
    tell_in_order(what);
}

SKEIN_INLINE object_ptr store_client::find(object_number which) const {
    const auto found = known_.find(which);
    return found != known_.end() ? found->second.lock() : nullptr;
}

SKEIN_INLINE task<std::vector<object_ptr>> store_client::claim(std::vector<object_name> names) {
    const auto self = shared_from_this();
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
            out.push_back(name.bytes != 0 ? keep(name) : nullptr);
        }
    }
    co_return out;
}

SKEIN_INLINE task<void> store_client::give(std::vector<object_ptr> all, process_id to) {
    const auto self = shared_from_this();
    auto linking = link();
    const auto over = co_await linking;
    for (std::size_t from = 0; from < all.size(); from += most_names) {
        const auto many = std::min(most_names, all.size() - from);
        give_request what;
        what.to = to;
        for (std::size_t i = 0; i < many; ++i) what.which.push_back(all[from + i]->name().number);
        auto asking = shield(over->call<done_reply>(std::move(what)));
        (void)co_await asking;
    }
}

SKEIN_INLINE void store_client::send_back() {
    if (!link_ || lost_) return;
    const auto all = back_->take();
    for (std::size_t from = 0; from < all.size(); from += most_names) {
        release_note what;
        const auto many = std::min(most_names, all.size() - from);
        what.all.assign(all.begin() + static_cast<std::ptrdiff_t>(from),
                        all.begin() + static_cast<std::ptrdiff_t>(from + many));
        for (const auto& one : what.all)
            if (const auto known = known_.find(one.which);
                known != known_.end() && known->second.expired())
                known_.erase(known);
        try {
            link_->tell(what);
        } catch (const error&) {
            return; // its end follows, and the store forgets all
        }
    }
}

} // namespace skein::objects
