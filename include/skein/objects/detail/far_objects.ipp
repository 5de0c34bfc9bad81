// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of objects/far_objects.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/metric_registry.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/units.hpp>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include <fmt/format.h>

namespace skein::objects {

namespace detail {

[[nodiscard]] SKEIN_INLINE metric_counter& brought_counter() {
    static auto& bytes = metric_registry::process().counter(
        "skein_store_brought_bytes_total", "Bytes of objects that came from other nodes.");
    return bytes;
}

} // namespace detail

/// One transfer, for all that wait for it.
struct far_objects::attempt {
    cancel_source stop;
    std::optional<error> why; ///< it has failed
    event over;
};

/// A far object that is held here.
struct far_objects::entry {
    object_name name;
    std::unordered_map<process_id, std::uint32_t> holds;
    std::uint64_t total = 0;      ///< of all processes
    std::uint32_t registered = 0; ///< so often its home counts this store
    bool is_orphan = false;       ///< the copy is of a home that was lost, and is read all the same
    std::optional<store_book::grant> copy;
    std::shared_ptr<attempt> coming;
};

SKEIN_INLINE far_objects::far_objects(store& of, net::network& via, store_peer_options how)
    : store_(of), self_(of.number_), listens_at_(how.listen),
      peers_(via, of.number_, std::move(how), *this) {
    store_.far_ = this;
    store_.book_.begin(self_);
}
SKEIN_INLINE far_objects::~far_objects() { store_.far_ = nullptr; }

SKEIN_INLINE void far_objects::join(const net::address& hub, bool is_for_hosts) {
    if (is_closed_ || peers_.listens()) return;
    if (!listens_at_.host.empty())
        listen(listens_at_);
    else
        listen(hub.is_loopback() && !is_for_hosts ? net::address::tcp(hub.host, 0)
                                                  : net::address::any(0));
    peers_.join(hub);
}

SKEIN_INLINE far_statistics far_objects::statistics() const {
    far_statistics now{transfers_, bytes_in_, idle_.size(), entries_.size(), 0};
    for (const auto& [key, one] : entries_) now.copies += one->copy.has_value();
    return now;
}

SKEIN_INLINE task<void> far_objects::close() {
    is_closed_ = true;
    auto closing = peers_.close();
    co_await closing;
    tasks_.cancel();
    auto joined = as_result(shield(tasks_.join()));
    (void)co_await joined;
}

// ---- processes ----------------------------------------------------------------------------------

SKEIN_INLINE void far_objects::add_to(net::request_service& service, process_id who) {
    service.on<far_claim_request, far_claim_reply>(
        [this, who](far_claim_request what, const net::caller&) {
            return claim(this, who, std::move(what));
        });
    service.on<far_read_request, far_read_reply>(
        [this, who](far_read_request what, const net::caller&) { return read(this, who, what); });
    service.on<far_give_request, done_reply>(
        [this, who](far_give_request what, const net::caller&) {
            return give(this, who, std::move(what));
        });
    service.on_tell_at_once<far_take_note>(
        [this, who](const far_take_note& what) { take(who, what); });
    service.on_tell_at_once<far_release_note>(
        [this, who](const far_release_note& what) { release(who, what); });
    service.on_tell_at_once<hub_note>([this](const hub_note& what) {
        try {
            join(net::address::parse(what.door).value(), what.is_for_hosts);
        } catch (const error& e) {
            logging::warn(
                "objects", "no store of another node can be met",
                {{"why", e.what()}, {"then", "what other nodes have cannot be read here"}});
        }
    });
}

/// What a claim holds, given back unless it is kept.
class far_objects::claim_holds {
public:
    claim_holds(far_objects& of, process_id by) : of_(of), by_(by) {}
    claim_holds(const claim_holds&) = delete;
    claim_holds& operator=(const claim_holds&) = delete;
    ~claim_holds() {
        for (const auto& which : all_) (void)of_.let_go(by_, which, 1);
        if (!all_.empty()) of_.store_.changed();
    }
    void add(const object_key& which) { all_.push_back(which); }
    void keep() noexcept { all_.clear(); }

private:
    far_objects& of_;
    process_id by_;
    std::vector<object_key> all_;
};

/// Whoever has it does not answer.
[[nodiscard]] SKEIN_INLINE bool is_way_lost(errc code) noexcept {
    constexpr errc all[] = {errc::object_lost, errc::refused,           errc::reset,
                            errc::closed,      errc::peer_lost,         errc::timeout,
                            errc::corrupt,     errc::permission_denied, errc::mismatch};
    return std::find(std::begin(all), std::end(all), code) != std::end(all);
}

/// Then the process that wants it has a copy of its own.
[[nodiscard]] SKEIN_INLINE bool is_no_room(const error& why) noexcept {
    return why.code() == errc::exhausted || why.code() == errc::too_large;
}

SKEIN_INLINE task<far_claim_reply> far_objects::claim(far_objects* self, process_id by,
                                                      far_claim_request what) {
    if (what.which.size() > most_names)
        throw error(errc::malformed, "too many objects are claimed at once");
    auto& book = self->store_.book_;
    if (book.has_ended(by)) throw error(errc::closed, "the process has ended");
    far_claim_reply out;
    out.at.resize(what.which.size());
    claim_holds held(*self, by);
    std::vector<entry_ptr> far(what.which.size());
    std::vector<std::shared_ptr<attempt>> coming(what.which.size());
    for (std::size_t i = 0; i < what.which.size(); ++i) {
        const auto& name = what.which[i];
        if (name.store != self->store_.number_) {
            far[i] = self->hold(by, name);
            held.add(name.key());
            coming[i] = self->want(far[i]);
            continue;
        }
        const auto place = book.claim(by, name.number);
        if (!place)
            throw error(errc::not_found, fmt::format("object {} is gone: nobody holds it any more",
                                                     name.number.value()));
        held.add(name.key());
        if (place->bytes != name.bytes)
            throw error(errc::malformed, "an object is named with a size that it has not");
        out.at[i] = place->at;
    }
    for (std::size_t i = 0; i < far.size(); ++i) {
        if (!far[i]) continue;
        if (coming[i]) co_await coming[i]->over.wait();
        if (book.has_ended(by)) throw error(errc::closed, "the process has ended");
        const bool has_no_room =
            coming[i] && coming[i]->why && is_no_room(*coming[i]->why) && far[i]->registered != 0;
        if (coming[i] && coming[i]->why && !has_no_room) throw error(*coming[i]->why);
        out.at[i] = far[i]->copy ? far[i]->copy->at : not_in_arena;
    }
    held.keep();
    co_return out;
}

SKEIN_INLINE task<far_read_reply> far_objects::read(far_objects* self, process_id by,
                                                    far_read_request what) {
    const auto found = self->entries_.find(what.which.key());
    const bool is_held = found != self->entries_.end() && found->second->holds.contains(by);
    const auto size = what.which.bytes;
    if (!is_held || what.bytes == 0 || what.bytes > chunk_bytes || what.at > size ||
        what.bytes > size - what.at)
        throw error(errc::malformed, "a process reads what it does not hold");
    far_read_reply out;
    out.bytes.resize(static_cast<std::size_t>(what.bytes));
    std::optional<error> why;
    try {
        auto reaching = self->peers_.reach(what.which.store);
        const auto home = co_await reaching;
        if (!home->bytes) throw error(errc::object_lost, "its node does not say where it is");
        auto fetching = home->bytes->fetch(
            what.which.number, {what.at, what.bytes}, [&](std::uint64_t at, byte_span bytes) {
                std::memcpy(out.bytes.data() + (at - what.at), bytes.data(), bytes.size());
            });
        co_await fetching;
    } catch (const error& e) {
        why = e;
    }
    if (why && is_way_lost(why->code()))
        throw lost_with(what.which, *self->peers_.at(what.which.store), *why);
    if (why) throw *why;
    co_return out;
}

SKEIN_INLINE void far_objects::take(process_id by, const far_take_note& what) {
    std::map<std::uint64_t, take_for_note> notes;
    for (const auto& name : what.which) {
        if (name.store == store_.number_) {
            if (const auto done = store_.book_.take(by, name.number, what.from); !done)
                store_.refuse(done.error());
            continue;
        }
        const auto one = hold(by, name);
        if (peers_.at(name.store)->link) ++one->registered;
        auto& note = notes[name.store];
        note.by = by;
        note.from = what.from;
        note.which.push_back(name.number);
    }
    for (auto& [home, note] : notes) {
        const auto one = peers_.at(home);
        auto& its = debts_[home];
        if (one->link) {
            its.told.push_back(note); // first: the link may end in that, and owes it then
            one->tell(note);
        } else {
            its.owed.push_back(std::move(note));
        }
    }
}

/// What a process gives away, at which home. Lives as long as that takes.
class far_objects::giving {
public:
    giving(far_objects& of, process_id by, const far_give_request& what) : of_(of) {
        undo_.by = by;
        undo_.to = what.to;
        for (const auto& name : what.which) {
            const auto one = of_.entries_.find(name.key());
            if (name.store != of_.store_.number_ &&
                (one == of_.entries_.end() || !one->second->holds.contains(by)))
                throw error(errc::malformed, "an object is given away that is not held");
            auto& request = asked[name.store];
            request.by = by;
            request.to = what.to;
            request.to_store = what.to_store;
            request.which.push_back(name.number);
        }
    }

    std::map<std::uint64_t, give_for_request> asked;

    /// A home counts this store as one that holds all of these: not after the loss of a link with it,
    /// until a process asks for them anew.
    [[nodiscard]] bool are_counted(std::uint64_t home, const give_for_request& all) const {
        return std::all_of(all.which.begin(), all.which.end(), [&](object_number which) {
            const auto found = of_.entries_.find({home, which});
            return found != of_.entries_.end() && found->second->registered != 0;
        });
    }
    /// That home has, or may have, what is none.
    void undo_at(std::uint64_t home, const give_for_request& done) {
        undo_.which = done.which;
        if (home == of_.store_.number_) return of_.take_back(undo_);
        const auto one = of_.peers_.at(home);
        if (one->link)
            one->tell(undo_);
        else
            of_.debts_[home].undone.push_back(undo_);
    }

private:
    far_objects& of_;
    give_back_note undo_;
};

SKEIN_INLINE task<done_reply> far_objects::give(far_objects* self, process_id by,
                                                far_give_request what) {
    if (!what.to || what.which.size() > most_names)
        throw error(errc::malformed, "objects are given to nobody, or too many at once");
    const auto own = self->store_.number_;
    giving all(*self, by, what);
    for (const auto& one : all.asked) {
        const auto store = one.first;
        const auto& request = one.second;
        std::optional<error> why;
        std::shared_ptr<store_peer> asked_home;
        try {
            if (store == own) {
                self->give_for(by, request);
                continue;
            }
            auto reaching = self->peers_.reach(store);
            const auto home = co_await reaching;
            if (!all.are_counted(store, request))
                throw error(errc::object_lost, "it was lost, and does not count this store again");
            const auto link = home->link;
            asked_home = home;
            auto asking = link->call<done_reply>(request);
            (void)co_await asking;
        } catch (const error& e) {
            why = e;
        }
        if (!why) continue;
        if (asked_home && asked_home->lost) all.undo_at(store, request); // it may have been done
        if (is_way_lost(why->code())) {
            const auto which =
                std::find_if(what.which.begin(), what.which.end(),
                             [&](const object_name& name) { return name.store == store; });
            why = lost_with(*which, *self->peers_.at(store), *why);
        }
        for (const auto& [given, which] : all.asked) { // none of them are told of
            if (given == store) break;
            all.undo_at(given, which);
        }
        throw *why;
    }
    co_return done_reply();
}

SKEIN_INLINE void far_objects::release(process_id by, const far_release_note& what) {
    for (const auto& one : what.all)
        if (!let_go(by, {one.store, one.which}, one.times))
            store_.refuse(
                error(errc::malformed,
                      fmt::format("process {:x} releases object {}, which it does not hold",
                                  by.value(), one.which.value())));
    store_.changed();
}

SKEIN_INLINE void far_objects::decline(process_id by, const decline_note& what) {
    const declined_note note{by, what.from};
    peers_.tell_all(note);
    if (!what.has_ended) return told_.declined.push_back(note);
    const ended_note end{what.from};
    peers_.tell_all(end); // nothing of it, or for it, is left by that
    told_.forget(end.process);
    const auto now = loop::current().now();
    told_.ended.push_back({end, now});
    constexpr auto no_gift_is_older = std::chrono::hours(1);
    while (now - told_.ended.front().since > no_gift_is_older) told_.ended.pop_front();
}

SKEIN_INLINE void far_objects::end(process_id who) {
    std::vector<std::pair<object_key, std::uint32_t>> held;
    for (const auto& [key, one] : entries_)
        if (const auto found = one->holds.find(who); found != one->holds.end())
            held.emplace_back(key, found->second);
    for (const auto& [key, times] : held) (void)let_go(who, key, times);
}

// ---- the table ----------------------------------------------------------------------------------

SKEIN_INLINE far_objects::entry_ptr far_objects::hold(process_id by, const object_name& name) {
    if (name.store == 0 || name.bytes == 0)
        throw error(errc::malformed, "the name of an object that says nothing");
    const auto known = entries_.find(name.key());
    if (known != entries_.end() && known->second->name.bytes != name.bytes)
        throw error(errc::malformed, "an object is named with a size that it has not");
    auto& one = entries_[name.key()];
    if (!one) {
        one = std::make_shared<entry>();
        one->name = name;
        const auto idle = std::find_if(idle_.begin(), idle_.end(), [&](const idle_copy& copy) {
            return copy.which == name.key();
        });
        if (idle != idle_.end()) {
            one->copy = idle->copy;
            idle_.erase(idle);
        }
    }
    ++one->holds[by];
    ++one->total;
    return one;
}

/// False: it is not held so often.
SKEIN_INLINE bool far_objects::let_go(process_id by, const object_key& which, std::uint32_t times) {
    if (which.store == store_.number_)
        return store_.book_.release(by, which.number, times).has_value();
    const auto found = entries_.find(which);
    if (found == entries_.end()) return false;
    auto& holds = found->second->holds;
    const auto count = holds.find(by);
    if (count == holds.end() || times == 0 || times > count->second) return false;
    count->second -= times;
    if (count->second == 0) holds.erase(count);
    drop(which, times);
    return true;
}

SKEIN_INLINE void far_objects::drop(const object_key& which, std::uint64_t times) {
    const auto found = entries_.find(which);
    const auto one = found->second;
    one->total -= times;
    if (one->total != 0) return;
    entries_.erase(found);
    if (one->coming) one->coming->stop.request();
    if (one->copy) {
        idle_.push_back({which, *one->copy, loop::current().now()});
        // Somebody waits for room.
        if (!store_.line_.empty()) (void)make_room();
        if (!idle_.empty() && !is_closed_ && !std::exchange(is_tidying_, true))
            tasks_.spawn(keep_tidy(this));
    }
    one->copy.reset();
    if (const auto n = std::exchange(one->registered, 0); n != 0) {
        let_go_note note;
        note.all.push_back({which.number, n, 0});
        peers_.at(which.store)->tell(note);
    }
}

SKEIN_INLINE void far_objects::give_back(const store_book::grant& copy) {
    (void)store_.book_.release(self_, copy.number, 1);
}

SKEIN_INLINE bool far_objects::make_room() {
    if (idle_.empty()) return false;
    give_back(idle_.front().copy);
    idle_.pop_front();
    return true;
}

SKEIN_INLINE task<void> far_objects::keep_tidy(far_objects* self) {
    while (!self->idle_.empty()) {
        const auto due = deadline_after(self->idle_.front().since, self->store_.times_.idle_pages);
        const auto now = loop::current().exact_now();
        if (now < due) {
            co_await sleep_for(due - now);
            continue;
        }
        (void)self->make_room();
        self->store_.changed();
    }
    self->is_tidying_ = false;
}

/// Null: it is here, and held at its home, or that is gone.
SKEIN_INLINE std::shared_ptr<far_objects::attempt> far_objects::want(const entry_ptr& one) {
    if (one->copy && (one->registered != 0 || one->is_orphan || peers_.at(one->name.store)->lost))
        return nullptr;
    if (!one->coming) {
        one->coming = std::make_shared<attempt>();
        const task_context::use none(nullptr); // it belongs to all that will ask
        tasks_.spawn(bring(this, one, one->coming));
    }
    return one->coming;
}

SKEIN_INLINE task<void> far_objects::bring(far_objects* self, entry_ptr one,
                                           std::shared_ptr<attempt> mine) {
    auto working = as_result(with_cancel(mine->stop.token(), bring_now(self, one)));
    const auto done = co_await working;
    if (!done && !mine->why) {
        const auto home = self->peers_.at(one->name.store);
        mine->why = home->lost || is_way_lost(done.error().code())
                        ? lost_with(one->name, *home, done.error())
                        : done.error();
    }
    one->coming.reset();
    mine->over.set();
}

SKEIN_INLINE task<void> far_objects::bring_now(far_objects* self, entry_ptr one) {
    auto reaching = self->peers_.reach(one->name.store);
    const auto home = co_await reaching;
    if (one->registered == 0) {
        auto registering = shield(register_at(self, one, home));
        co_await registering;
    }
    if (one->copy) co_return; // from before
    auto copying = copy(self, one, home);
    co_await copying;
}

/// To its end: what the home counts must be known.
SKEIN_INLINE task<void> far_objects::register_at(far_objects* self, entry_ptr one,
                                                 std::shared_ptr<store_peer> home) {
    hold_request what;
    what.which.push_back(one->name.number);
    const auto link = home->link;
    if (!link) throw error(*home->lost);
    auto asking = link->call<hold_reply>(std::move(what));
    const auto answer = co_await asking;
    if (home->lost) throw error(*home->lost); // meanwhile: it counts nothing any more
    if (answer.bytes.size() != 1 || (answer.bytes[0] != 0 && answer.bytes[0] != one->name.bytes))
        throw error(errc::malformed, "a store answers for another object than it was asked for");
    if (answer.bytes[0] == 0 && one->copy) self->give_back(*std::exchange(one->copy, {}));
    if (answer.bytes[0] == 0)
        throw error(errc::not_found, fmt::format("object {} is gone: nobody holds it any more",
                                                 one->name.number.value()));
    if (one->total != 0) {
        ++one->registered;
        co_return;
    }
    let_go_note note; // nobody wants it any more
    note.all.push_back({one->name.number, 1, 0});
    home->tell(note);
    throw cancelled_error();
}

SKEIN_INLINE task<void> far_objects::copy(far_objects* self, entry_ptr one,
                                          std::shared_ptr<store_peer> home) {
    auto& of = self->store_;
    create_request room;
    room.bytes = one->name.bytes;
    room.patience_ms = 10'000;
    net::caller who;
    who.peer = fmt::format("a copy of object {}", one->name.number.value());
    auto making = store::create(&of, self->self_, room, std::move(who));
    const auto made = (co_await making).name;
    struct grant_back {
        grant_back(far_objects& f, object_number n) noexcept : far(f), number(n) {}
        grant_back(const grant_back&) = delete;
        grant_back& operator=(const grant_back&) = delete;
        ~grant_back() {
            if (is_kept) return;
            (void)far.store_.book_.release(far.self_, number, 1);
            far.store_.changed();
        }
        far_objects& far;
        object_number number;
        bool is_kept = false;
    };
    grant_back unless(*self, made.number);
    if (!home->bytes) throw error(errc::object_lost, "its node does not say where it is");
    auto fetching = home->bytes->fetch(
        one->name.number, {0, one->name.bytes},
        [memory = of.memory_, at = made.at](std::uint64_t from, byte_span bytes) {
            const auto window = memory.write(at + from, bytes.size());
            std::memcpy(window.bytes().data(), bytes.data(), bytes.size());
        });
    co_await fetching;
    if (one->total == 0) throw cancelled_error();
    if (const auto sealed = of.book_.seal(self->self_, made.number); !sealed) throw sealed.error();
    unless.is_kept = true;
    one->copy = store_book::grant{made.number, made.at};
    ++self->transfers_;
    self->bytes_in_ += one->name.bytes;
    of.show_numbers();
    detail::brought_counter().add(one->name.bytes);
    logging::debug("objects", "an object was brought here",
                   {{"object", one->name.number.value()},
                    {"bytes", one->name.bytes},
                    {"from", home->where.node}});
}

} // namespace skein::objects
