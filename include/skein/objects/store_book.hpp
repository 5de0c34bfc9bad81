// SPDX-License-Identifier: Apache-2.0
#pragma once
// store_book: which bytes of an arena are whose. Pure tables, without a loop, a clock or the memory
// itself, which stay in the process of the store: no death and no wild write of another process
// changes them.
//
//     granted   made by one process, which writes it
//     sealed    it never changes again; each process that holds it is counted for itself
//     pinned    somebody reads it, or may: it stays where it is
//     away      its bytes are in a file alone; a place is found for them before they are read
//     gone      nobody holds it: its bytes may be granted again
//
//     objects::store_book book(1 << 30);
//     book.begin(worker);
//     const auto o = book.create(worker, 70'000);          // nothing: no room now
//     book.seal(worker, o->number);
//     book.give(worker, o->number, driver);                // held for the driver, too
//     book.release(worker, o->number, 1);
//     book.end(driver);                                    // it has died: so has the object
//
// Who is given something may not have come yet, and may not for hours: it is kept until others say
// that the process has ended, end_unseen().

#include <skein/core/error.hpp>
#include <skein/core/result.hpp>
#include <skein/objects/object_name.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace skein::objects {

/// Bytes of an arena, one behind the other.
struct extent {
    std::uint64_t at = 0, bytes = 0;
    friend bool operator==(const extent&, const extent&) = default;
};

/// How often a process reads an object.
struct object_pins {
    object_number which;
    std::uint32_t times = 0, unused = 0;
};

/// What a store holds.
struct store_usage {
    std::uint64_t bytes = 0;   ///< of all that can be granted
    std::uint64_t granted = 0; ///< being written
    std::uint64_t sealed = 0;  ///< to be read
    std::uint64_t kept = 0;    ///< free, but its pages are not given back yet
    std::uint64_t pinned = 0;  ///< of those sealed
    std::uint64_t away = 0;    ///< of objects whose bytes are in files alone
    std::uint64_t objects = 0; ///< granted, sealed and away
    std::size_t processes = 0; ///< that are there
};

class store_book {
public:
    explicit store_book(std::uint64_t bytes);

    /// A process has come.
    void begin(process_id who);
    /// It has gone: what it was writing, and what it alone held, is gone.
    void end(process_id who);
    [[nodiscard]] bool has_ended(process_id who) const { return ended_.contains(who); }

    /// What was granted.
    struct grant {
        object_number number;
        std::uint64_t at = 0;
    };
    /// Nothing: there is no room for so many bytes in a row. Throws nothing of the kind for more than
    /// fits an empty store: see fits().
    [[nodiscard]] std::optional<grant> create(process_id by, std::uint64_t bytes);
    [[nodiscard]] bool fits(std::uint64_t bytes) const noexcept;

    // Each of these fails with malformed where a process says what it cannot know.

    /// Its maker has written it, and holds it.
    [[nodiscard]] result<void> seal(process_id by, object_number which);
    /// Once more for another process, which will hear of it from who gives it: a gift, until it is
    /// taken.
    ///   holder  who holds it meanwhile, if that is not the giver: the store of its node
    [[nodiscard]] result<void> give(process_id by, object_number which, process_id to,
                                    process_id holder = {});
    /// Who was given it has heard of it.
    [[nodiscard]] result<void> take(process_id by, object_number which, process_id from);
    /// It hears of no more gifts of that process, which has ended: those that are left were lost with
    /// it.
    void decline(process_id by, process_id from);
    /// Once more for a process that has heard of it. Nothing: it is gone.
    [[nodiscard]] std::optional<extent> claim(process_id by, object_number which);
    /// Gives back what was held so often; an object that is not sealed was not made.
    [[nodiscard]] result<void> release(process_id by, object_number which, std::uint32_t times);

    // Who reads. A process that reads freely has all pinned that it holds; others pin what they
    // read.

    void read_freely(process_id who);
    /// It reads these alone from now on, so often; more follow if this is not the last.
    [[nodiscard]] result<void> read_only_what_is_pinned(process_id who,
                                                        const std::vector<object_pins>& these,
                                                        bool is_last = true);
    enum class presence : std::uint8_t { gone, here, away };
    /// gone: that process does not hold it.
    [[nodiscard]] presence find(process_id by, object_number which) const;
    /// Of one that is here: where.
    [[nodiscard]] extent pin(process_id by, object_number which);
    [[nodiscard]] result<void> unpin(process_id by, object_number which, std::uint32_t times);
    /// Who has most pinned, at most three: bytes and processes.
    [[nodiscard]] std::vector<std::pair<std::uint64_t, process_id>> most_pinned() const;

    // What a store does with files. Between keep() and let() it is not chosen, and its place stays.

    void keep(object_number which);
    void let(object_number which);
    /// Those that were not used for longest and lie, with what is free, in a row of so many bytes.
    /// Empty: there is no such row without something that is pinned.
    [[nodiscard]] std::vector<object_number> least_used(std::uint64_t bytes) const;
    [[nodiscard]] extent where(object_number which) const;
    [[nodiscard]] bool has_copy(object_number which) const;
    /// There is a file with its bytes, or none any more.
    void set_copy(object_number which, bool is_there);
    /// Frees the place of one that has a copy. False: it is pinned, or gone.
    bool send_away(object_number which);
    /// A place for one that is away, which it has from now on; nothing: there is none.
    [[nodiscard]] std::optional<std::uint64_t> place(object_number which);
    /// Its bytes are there, or could not be read.
    void placed(object_number which, bool is_read);
    /// Those with a copy that have gone since this was asked last.
    [[nodiscard]] std::vector<object_number> take_gone() { return std::exchange(gone_, {}); }
    /// Those that are here and have a copy all the same.
    [[nodiscard]] std::vector<object_number> copies() const;

    /// A process has ended, as others say, that may never have come. Of one that has, its own link says
    /// so.
    void end_unseen(process_id who);
    /// Free bytes whose pages may still be there; from now on they count as given back.
    [[nodiscard]] std::vector<extent> take_free_pages();

    [[nodiscard]] store_usage usage() const noexcept;
    /// So often a process holds an object.
    [[nodiscard]] std::uint32_t held(process_id by, object_number which) const;

private:
    struct entry {
        std::uint64_t at = 0, bytes = 0, whole = 0; ///< whole: with what it is rounded up by
        bool is_sealed = false;
        process_id maker;
        std::uint64_t holds = 0;    ///< of all processes
        std::uint64_t pins = 0;     ///< of all processes, and of the store while it works with it
        std::uint64_t last_use = 0; ///< greater is later
        std::uint32_t work = 0;     ///< of the store: it stays while there is some
        bool is_here = true, has_place = true, has_copy = false;
    };
    struct process {
        bool is_seen = false, reads_freely = false;
        std::unordered_map<object_number, std::uint32_t> holds, pins;
        /// That it has not taken yet, by who gave them.
        std::unordered_map<process_id, std::unordered_map<object_number, std::uint32_t>> gifts;
    };

    struct block;
    [[nodiscard]] std::optional<std::uint64_t> take_place(object_number which, std::uint64_t whole);
    void hold(process_id by, object_number which, entry& of);
    void drop(object_number which, entry& of, std::uint64_t times);
    void change_pins(entry& of, std::uint64_t more, std::uint64_t less);
    void free_place(entry& of);
    void forget(object_number which, entry& of);
    void free(std::uint64_t at, std::uint64_t bytes);

    std::uint64_t bytes_, used_ = 0, granted_ = 0, last_ = 0;
    std::uint64_t touched_ = 0; ///< pages behind it were never written
    std::uint64_t pinned_ = 0, away_ = 0, uses_ = 0;
    std::map<std::uint64_t, std::uint64_t> free_;
    std::map<std::uint64_t, object_number> placed_; ///< by where
    std::vector<object_number> gone_;
    std::unordered_map<object_number, entry> objects_;
    std::unordered_map<process_id, process> processes_;
    std::unordered_set<process_id> ended_;
};

} // namespace skein::objects

#if SKEIN_HEADER_ONLY
#include <skein/objects/detail/store_book.ipp>
#endif
