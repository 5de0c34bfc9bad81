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
#include <deque>
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

SKEIN_INLINE store::store(arena memory, std::uint64_t number, store_times times,
                          std::unique_ptr<spill_volume> files)
    : memory_(std::move(memory)), number_(number), times_(times), book_(memory_.bytes()),
      files_(files ? std::make_unique<spill>(std::move(files)) : nullptr) {}
SKEIN_INLINE store::~store() = default;

SKEIN_INLINE create_reply store::name_of(const store_book::grant& made, std::uint64_t bytes) const {
    return {{number_, made.number, made.at, bytes}};
}

/// What cannot go to a file, and whose it is.
SKEIN_INLINE std::string store::who_reads() const {
    if (!files_) return {};
    const auto now = book_.usage();
    auto out = fmt::format(", {} are being written and {} read", binary_bytes(now.granted),
                           binary_bytes(now.pinned));
    for (const auto& [bytes, who] : book_.most_pinned()) {
        const auto link = std::find_if(links_.begin(), links_.end(),
                                       [&](const served& one) { return one.who == who; });
        if (link == links_.end()) continue;
        out += fmt::format(", {} by {}", binary_bytes(bytes), link->name);
    }
    return out;
}

SKEIN_INLINE error store::no_room(std::uint64_t bytes) const {
    const auto now = book_.usage();
    if (!book_.fits(bytes))
        return error(errc::too_large,
                     fmt::format("an object of {} is more than the store of {} takes",
                                 binary_bytes(bytes), binary_bytes(now.bytes)))
            .with_hint("SKEIN_STORE=4GiB makes it larger");
    return error(errc::exhausted,
                 fmt::format("no room for an object of {}: {} of the {} of the store are held{}",
                             binary_bytes(bytes), binary_bytes(now.sealed + now.granted),
                             binary_bytes(now.bytes), who_reads()))
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
    self->changed(); // perhaps files make room
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
    for (const auto& one : what.all) {
        if (one.pins != 0)
            if (const auto done = book_.unpin(by, one.which, one.pins); !done) refuse(done.error());
        if (one.times != 0 || one.pins == 0)
            if (const auto done = book_.release(by, one.which, one.times); !done)
                refuse(done.error());
    }
    changed();
}

SKEIN_INLINE void store::take(process_id by, const take_note& what) {
    for (const auto which : what.which)
        if (const auto done = book_.take(by, which, what.from); !done) refuse(done.error());
}

SKEIN_INLINE void store::decline(process_id by, const decline_note& what) {
    book_.decline(by, what.from);
    if (what.has_ended) ended(what.from);
    if (far_ != nullptr) far_->decline(by, what);
    changed();
}

/// As somebody says who knows: who has a link is known by that.
SKEIN_INLINE void store::ended(process_id who) {
    if (cut_off_.erase(who) > 0)
        end(who);
    else
        book_.end_unseen(who);
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

/// Who has been served leaves the line by itself.
SKEIN_INLINE void store::serve_line() {
    while (!line_.empty()) {
        const auto next = std::find_if(line_.begin(), line_.end(),
                                       [](const waiting_create* one) { return !one->granted; });
        if (next == line_.end()) break;
        (*next)->granted = book_.create((*next)->by, (*next)->bytes);
        if (!(*next)->granted) return make_room((*next)->bytes);
        (*next)->served.set();
    }
    // Calls that run make objects, and end; those that read back begin. So the first go before.
    serve_readers();
}

SKEIN_INLINE void store::changed() {
    drop_files();
    serve_line();
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
    if (!files_) return;
    static auto& pinned = all.gauge(name, help, {{"state", "pinned"}});
    static auto& away = all.gauge(name, help, {{"state", "spilled"}});
    pinned.set(static_cast<std::int64_t>(now.pinned));
    away.set(static_cast<std::int64_t>(files_->usage().bytes));
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
    service->on<pin_request, pin_reply>([this, who](pin_request what, const net::caller&) {
        return pin(this, who, std::move(what));
    });
    service->on<fetch_request, fetch_reply>(
        [this, who](fetch_request what, const net::caller&) { return fetch(this, who, what); });
    service->on_tell_at_once<reads_note>([this, who](const reads_note& what) {
        if (const auto done = book_.read_only_what_is_pinned(who, what.these, what.is_last); !done)
            throw done.error();
        if (what.is_last) changed();
    });
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
    const auto name = fmt::format("{} {}", wire->peer().name, wire->peer().pid);
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
        links_.push_back({link, who, name});
        let_read(links_.back());
        if (far_ != nullptr) far_->greet(*link);
        bool is_cancelled = false;
        try {
            co_await ended.wait();
        } catch (const error&) {
            is_cancelled = true;
        }
        std::erase_if(links_, [&](const served& one) { return one.link == link; });
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
    for (const auto& one : std::vector(links_))
        one.link->abort(error(errc::closed, "the store has ended"));
    tasks_.cancel();
    auto joined = as_result(shield(tasks_.join()));
    (void)co_await joined;
    if (!files_) co_return;
    auto closing = files_->close();
    co_await closing;
}

// ---- files -------------------------------------------------------------------------------------

/// Nothing goes away as long as there is room: then nobody need ask before it reads.
SKEIN_INLINE void store::let_read(served& one) {
    if (is_tight_) return;
    if (files_) book_.read_freely(one.who);
    roomy_note what;
    what.is_roomy = true;
    try {
        one.link->tell(what);
    } catch (const error&) { // it ends
    }
}

SKEIN_INLINE void store::be_tight() {
    if (std::exchange(is_tight_, true)) return;
    for (const auto& one : std::vector(links_)) {
        try {
            one.link->tell(roomy_note());
        } catch (const error&) { // it ends
        }
    }
}

SKEIN_INLINE void store::drop_files() {
    for (const auto which : book_.take_gone()) files_->drop(which);
}

/// Something is to go away for so many bytes; what waits for them is served when it has.
SKEIN_INLINE void store::make_room(std::uint64_t bytes) {
    if (!files_ || is_closed_ || is_writing_) return;
    be_tight();
    if (loop::current().exact_now() < write_again_at_) return;
    auto which = book_.least_used(bytes);
    if (which.empty()) return;
    is_writing_ = true;
    for (const auto one : which) book_.keep(one);
    const task_context::use none(nullptr);
    tasks_.spawn(write_away(this, std::move(which)));
}

SKEIN_INLINE task<void> store::write_away(store* self, std::vector<object_number> which) {
    bool is_well = true;
    for (const auto one : which) {
        if (is_well && !self->book_.has_copy(one)) {
            auto writing = self->files_->write(one, self->memory_, self->book_.where(one));
            const auto written = co_await writing;
            if (written)
                self->book_.set_copy(one, true);
            else
                self->disk_failed(written.error());
            is_well = written.has_value();
        }
        self->book_.let(one);
        (void)self->book_.send_away(one); // unless somebody reads it again
    }
    self->is_writing_ = false;
    self->is_full_ = self->is_full_ && !is_well;
    self->changed();
}

/// Copies of what is here give their room first. Then nothing goes away for a while.
SKEIN_INLINE void store::disk_failed(const error& why) {
    const auto copies = book_.copies();
    if (why.code() == errc::disk_full && !copies.empty()) {
        for (const auto one : copies) {
            book_.set_copy(one, false);
            files_->drop(one);
        }
        return;
    }
    write_again_at_ = deadline_after(loop::current().exact_now(), times_.after_failure);
    if (!is_closed_) tasks_.spawn(try_again(this));
    if (std::exchange(is_full_, true)) return;
    logging::warn("objects", "objects are not written to disk any more",
                  {{"why", why.text()}, {"then", "what finds no room travels in messages"}});
}

SKEIN_INLINE task<void> store::try_again(store* self) {
    co_await sleep_for(self->times_.after_failure);
    self->changed();
}

/// The store is at work with an object: it stays.
struct store::work_on {
    store& of;
    object_number which;
    work_on(store& s, object_number w) : of(s), which(w) { of.book_.keep(which); }
    work_on(const work_on&) = delete;
    work_on& operator=(const work_on&) = delete;
    ~work_on() { of.book_.let(which); }
};

/// An object that is away, on its way back.
struct store::reading_back {
    object_number which;
    std::optional<work_on> stays{}; ///< until it is over
    bool has_place = false;
    event served; ///< it has a place, or is not wanted any more
    event is_over;
    std::optional<error> why; ///< it cannot be read
};

SKEIN_INLINE void store::serve_readers() {
    while (!readers_.empty()) {
        auto& next = *readers_.front();
        if (!book_.place(next.which)) return make_room(book_.where(next.which).bytes);
        next.has_place = true;
        readers_.pop_front();
        next.served.set();
    }
}

SKEIN_INLINE std::shared_ptr<store::reading_back> store::read_back(object_number which) {
    auto& known = reading_[which];
    if (known) return known;
    known = std::make_shared<reading_back>();
    known->which = which;
    known->stays.emplace(*this, which);
    const task_context::use none(nullptr);
    tasks_.spawn(read_back_now(this, known));
    return known;
}

SKEIN_INLINE task<void> store::read_back_now(store* self, std::shared_ptr<reading_back> what) {
    self->readers_.push_back(what.get());
    self->changed();
    auto waiting = as_result(what->served.wait_for(self->times_.read_back));
    (void)co_await waiting;
    self->readers_.remove(what.get());
    if (what->has_place) {
        auto reading =
            self->files_->read(what->which, self->memory_, self->book_.where(what->which));
        const auto read = co_await reading;
        self->book_.placed(what->which, read.has_value());
        if (!read) what->why = read.error();
    }
    self->reading_.erase(what->which);
    what->is_over.set();
    what->stays.reset();
    self->changed();
}

SKEIN_INLINE task<pin_reply> store::pin(store* self, process_id by, pin_request what) {
    if (what.which.size() > most_names)
        throw error(errc::malformed, "too many objects are pinned at once");
    // What it has pinned it does not keep if it hears nothing of it.
    struct unheard {
        store& of;
        process_id by;
        std::vector<object_number> all{};
        ~unheard() {
            for (const auto which : all) (void)of.book_.unpin(by, which, 1);
            of.changed();
        }
    } mine{*self, by};
    using presence = store_book::presence;
    pin_reply out;
    out.where.resize(what.which.size());
    std::vector<std::pair<std::size_t, std::shared_ptr<reading_back>>> missing;
    std::deque<work_on> kept;
    for (std::size_t i = 0; i < what.which.size(); ++i) {
        const auto which = what.which[i];
        const auto now = self->book_.find(by, which);
        if (now == presence::here) {
            out.where[i] = self->book_.pin(by, which);
            mine.all.push_back(which);
        } else if (now == presence::away) {
            kept.emplace_back(*self, which);
            missing.emplace_back(i, self->read_back(which));
        }
    }
    for (const auto& [i, back] : missing) {
        co_await back->is_over.wait();
        if (back->why) throw *back->why;
        const auto now = self->book_.find(by, back->which);
        if (now == presence::here) {
            out.where[i] = self->book_.pin(by, back->which);
            mine.all.push_back(back->which);
        } else if (now == presence::away) {
            out.where[i] = {pin_reply::away, self->book_.where(back->which).bytes};
        }
    }
    mine.all.clear();
    co_return out;
}

SKEIN_INLINE task<fetch_reply> store::fetch(store* self, process_id by, fetch_request what) {
    fetch_reply out;
    const auto now = self->book_.find(by, what.which);
    if (now == store_book::presence::here) { // it has come back meanwhile
        const auto [at, bytes] = self->book_.where(what.which);
        const auto begin = what.piece * file_piece;
        if (begin < bytes) {
            out.bytes =
                to_buffer(self->memory_.view(at + begin, std::min(file_piece, bytes - begin)));
            co_return out;
        }
    } else if (now == store_book::presence::away) {
        auto reading = self->files_->read_piece(what.which, what.piece);
        auto got = co_await reading;
        if (!got) throw got.error();
        out.bytes = std::move(*got);
        co_return out;
    }
    throw error(errc::not_found,
                fmt::format("object {} is not held, or has no such piece", what.which.value()));
}

} // namespace skein::objects
