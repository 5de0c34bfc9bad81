// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of objects/store.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/metric_registry.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/units.hpp>
#include <skein/wire/decode.hpp>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace skein::objects {

/// Somebody waits for room.
struct store::waiting_create {
    process_id by;
    std::uint64_t bytes = 0;
    std::optional<store_book::grant> granted;
    event served;
};

/// Its place in the line, which it leaves with what it was granted if nobody takes that.
struct store::place_in_line {
    store& of;
    waiting_create& who;

    place_in_line(store& s, waiting_create& w) : of(s), who(w) { of.line_.push_back(&w); }
    place_in_line(const place_in_line&) = delete;
    place_in_line& operator=(const place_in_line&) = delete;
    ~place_in_line() {
        of.line_.remove(&who);
        // Nobody takes what it was granted; and those behind may need less.
        if (who.granted) (void)of.book_.release(who.by, who.granted->number, 1);
        of.changed();
    }
};

SKEIN_INLINE store::store(arena memory, std::uint64_t number, store_times times)
    : memory_(std::move(memory)), number_(number), times_(times), book_(memory_.bytes()) {}
SKEIN_INLINE store::~store() = default;

SKEIN_INLINE create_reply store::name_of(const store_book::grant& made, std::uint64_t bytes) const {
    return {{number_, made.number, made.at, bytes}};
}

SKEIN_INLINE error store::no_room(std::uint64_t bytes) const {
    const auto now = book_.usage();
    if (!book_.fits(bytes))
        return error(errc::too_large,
                     fmt::format("an object of {} is more than the store of {} takes",
                                 binary_bytes(bytes), binary_bytes(now.bytes)))
            .with_hint("SKEIN_STORE=4GiB makes it larger");
    return error(errc::exhausted,
                 fmt::format("no room for an object of {}: {} of the {} of the store are held",
                             binary_bytes(bytes), binary_bytes(now.sealed + now.granted),
                             binary_bytes(now.bytes)))
        .with_hint("drop refs and views that are not needed, or make it larger: SKEIN_STORE=4GiB");
}

SKEIN_INLINE task<create_reply> store::create(store* self, process_id by, create_request what,
                                              net::caller who) {
    if (!self->book_.fits(what.bytes)) throw self->no_room(what.bytes);
    if (self->line_.empty()) {
        auto made = self->book_.create(by, what.bytes);
        while (!made && self->far_ != nullptr && self->far_->make_room())
            made = self->book_.create(by, what.bytes);
        if (made) {
            self->show_numbers();
            co_return self->name_of(*made, what.bytes);
        }
    }
    if (what.patience_ms == 0) throw self->no_room(what.bytes);
    waiting_create mine;
    mine.by = by;
    mine.bytes = what.bytes;
    const auto end = deadline_after(loop::current().exact_now(),
                                    time_span(std::chrono::milliseconds(what.patience_ms)));
    const place_in_line place(*self, mine);
    const auto first = deadline_after(loop::current().exact_now(), self->times_.say_that_it_waits);
    auto soon = mine.served.wait_until(std::min(first, end));
    if (!co_await soon && first < end) {
        logging::warn("objects", "waits for room in the store",
                      {{"who", who.peer}, {"why", self->no_room(what.bytes).text()}});
        auto later = mine.served.wait_until(end);
        (void)co_await later;
    }
    if (!mine.granted) throw self->no_room(what.bytes);
    co_return self->name_of(*std::exchange(mine.granted, std::nullopt), what.bytes);
}

SKEIN_INLINE void store::seal(process_id by, const seal_request& what) {
    if (const auto done = book_.seal(by, what.which); !done) throw done.error();
    if (what.to && what.to != by) {
        if (const auto given = book_.give(by, what.which, what.to); !given) throw given.error();
        if (const auto left = book_.release(by, what.which, 1); !left) throw left.error();
        changed();
    }
    show_numbers();
}

SKEIN_INLINE void store::give(process_id by, const give_request& what) {
    if (!what.to || what.which.size() > most_names)
        throw error(errc::malformed, "objects are given to nobody, or too many at once");
    for (const auto which : what.which)
        if (const auto given = book_.give(by, which, what.to); !given) throw given.error();
}

SKEIN_INLINE claim_reply store::claim(process_id by, const claim_request& what) {
    if (what.which.size() > most_names)
        throw error(errc::malformed, "too many objects are claimed at once");
    claim_reply out;
    out.where.reserve(what.which.size());
    for (const auto which : what.which)
        out.where.push_back(book_.claim(by, which).value_or(extent{}));
    return out;
}

/// A process that says what it cannot know goes on with what it holds: to forget that would give
/// others the bytes that it reads.
SKEIN_INLINE void store::refuse(const error& why) {
    constexpr std::uint64_t all_of_the_first = 8;
    if (++refused_ > all_of_the_first && !std::has_single_bit(refused_)) return;
    logging::warn("objects", "a process says of an object what cannot be",
                  {{"why", why.text()}, {"so_far", refused_}});
}

SKEIN_INLINE void store::release(process_id by, const release_note& what) {
    for (const auto& one : what.all)
        if (const auto done = book_.release(by, one.which, one.times); !done) refuse(done.error());
    changed();
}

SKEIN_INLINE void store::take(process_id by, const take_note& what) {
    for (const auto which : what.which)
        if (const auto done = book_.take(by, which, what.from); !done) refuse(done.error());
}

SKEIN_INLINE void store::decline(process_id by, const decline_note& what) {
    book_.decline(by, what.from);
    if (what.has_ended) {
        if (cut_off_.erase(what.from) > 0)
            end(what.from);
        else
            book_.end_unseen(what.from);
    }
    if (far_ != nullptr) far_->decline(by, what);
    changed();
}

SKEIN_INLINE void store::end(process_id who) {
    book_.end(who);
    if (far_ != nullptr) far_->end(who);
}

namespace detail {

/// Whether a link has ended with its process: not because what came over it could not be.
[[nodiscard]] inline bool is_end_of_process(const error* why) noexcept {
    return why == nullptr || why->code() == errc::reset || why->code() == errc::closed;
}

} // namespace detail

SKEIN_INLINE void store::changed() {
    while (!line_.empty()) {
        // Who has been served leaves the line by itself.
        const auto next = std::find_if(line_.begin(), line_.end(),
                                       [](const waiting_create* one) { return !one->granted; });
        if (next == line_.end()) break;
        (*next)->granted = book_.create((*next)->by, (*next)->bytes);
        if (!(*next)->granted) break;
        (*next)->served.set();
    }
    show_numbers();
    changed_at_ = loop::current().now();
    if (std::exchange(is_tidying_, true) || is_closed_) return;
    tasks_.spawn(keep_tidy());
}

/// Gives pages back when nothing has changed for a while.
SKEIN_INLINE task<void> store::keep_tidy() {
    for (;;) {
        const auto due = deadline_after(changed_at_, times_.idle_pages);
        const auto now = loop::current().exact_now();
        if (due <= now) break;
        co_await sleep_for(due - now);
    }
    is_tidying_ = false;
    for (const auto& one : book_.take_free_pages()) memory_.give_back(one.at, one.bytes);
    show_numbers();
}

SKEIN_INLINE void store::show_numbers() const {
    auto& all = metric_registry::process();
    static constexpr const char* name = "skein_store_bytes";
    static constexpr const char* help = "Bytes of the memory for objects, by what they are for.";
    static auto& writing = all.gauge(name, help, {{"state", "granted"}});
    static auto& reading = all.gauge(name, help, {{"state", "sealed"}});
    static auto& free = all.gauge(name, help, {{"state", "free"}});
    const auto now = book_.usage();
    writing.set(static_cast<std::int64_t>(now.granted));
    reading.set(static_cast<std::int64_t>(now.sealed));
    free.set(static_cast<std::int64_t>(now.bytes - now.granted - now.sealed));
}

SKEIN_INLINE std::shared_ptr<net::request_service> store::service_for(process_id who) {
    auto service = std::make_shared<net::request_service>();
    service->on<create_request, create_reply>([this, who](create_request what, net::caller by) {
        return create(this, who, what, std::move(by));
    });
    service->on_at_once<seal_request, done_reply>([this, who](const seal_request& what) {
        seal(who, what);
        return done_reply();
    });
    service->on_at_once<give_request, done_reply>([this, who](const give_request& what) {
        give(who, what);
        return done_reply();
    });
    service->on_at_once<claim_request, claim_reply>(
        [this, who](const claim_request& what) { return claim(who, what); });
    service->on_tell_at_once<release_note>(
        [this, who](const release_note& what) { release(who, what); });
    service->on_tell_at_once<take_note>([this, who](const take_note& what) { take(who, what); });
    service->on_tell_at_once<decline_note>(
        [this, who](const decline_note& what) { decline(who, what); });
    if (far_ != nullptr) far_->add_to(*service, who);
    return service;
}

SKEIN_INLINE task<void> store::serve(net::connection::handle wire) {
    const auto hello = wire::decode<store_hello>(wire->peer().extra);
    if (!hello || !hello->process || book_.has_ended(hello->process) ||
        cut_off_.contains(hello->process) || is_closed_) {
        wire->abort(error(errc::malformed, "a process that does not say who it is, or has ended"));
        co_return;
    }
    const auto who = hello->process;
    book_.begin(who);
    auto service = service_for(who);
    event ended;
    bool is_over = true;
    {
        auto link = net::requests::over(std::move(wire), service);
        link->set_closed_handler([&](const error* why) {
            is_over = detail::is_end_of_process(why);
            if (!is_over) refuse(*why);
            ended.set();
        });
        links_.push_back(link);
        bool is_cancelled = false;
        try {
            co_await ended.wait();
        } catch (const error&) {
            is_cancelled = true;
        }
        std::erase(links_, link);
        if (is_over)
            end(who);
        else
            cut_off_.insert(who);
        changed();
        if (is_cancelled) link->abort(error(errc::closed, "the store has ended"));
        auto closing = shield(link->close());
        co_await closing;
    }
    auto closing = shield(service->close());
    co_await closing;
}

SKEIN_INLINE task<void> store::close() {
    is_closed_ = true;
    for (const auto& link : std::vector(links_))
        link->abort(error(errc::closed, "the store has ended"));
    tasks_.cancel();
    auto joined = as_result(shield(tasks_.join()));
    (void)co_await joined;
}

} // namespace skein::objects
