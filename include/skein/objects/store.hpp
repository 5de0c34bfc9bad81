// SPDX-License-Identifier: Apache-2.0
#pragma once
// store: serves the objects of one node to the processes of one program there. It owns the books;
// the bytes are in an arena that it never reads.
//
//     objects::store here(memory, number);
//     all.spawn(here.serve(std::move(connection)));        // one task for each process
//     co_await here.close();
//
// Who asks for room when there is none waits, in order. A process holds what it holds until its end:
// that of its link, or, if what came over it could not be, what others say of its end.
//
// With a volume for files, what was not read for longest goes there to make room, and comes back when
// somebody reads it. So from the first shortage on processes ask before they read:
//
//     roomy   all that processes hold stays where it is; they read without asking
//     tight   what nobody has pinned may go away. A process that has not answered yet that it knows
//             still has all pinned that it holds

#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/requests.hpp>
#include <skein/objects/arena.hpp>
#include <skein/objects/spill.hpp>
#include <skein/objects/store_book.hpp>
#include <skein/objects/store_messages.hpp>

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace skein::objects {

class far_objects;

/// What a store has besides where there are others: see far_objects.
class other_nodes {
public:
    other_nodes() = default;
    other_nodes(const other_nodes&) = delete;
    other_nodes& operator=(const other_nodes&) = delete;
    /// A process has come: what it may ask for.
    virtual void add_to(net::request_service& service, process_id who) = 0;
    virtual void decline(process_id by, const decline_note& what) = 0;
    virtual void end(process_id who) = 0;
    /// The same, once it can be told something.
    virtual void greet(net::requests& process) = 0;
    /// Gives back some bytes that nobody holds; false: there are none.
    [[nodiscard]] virtual bool make_room() = 0;

protected:
    ~other_nodes() = default;
};

/// How long a store takes for what.
struct store_times {
    time_span say_that_it_waits = std::chrono::seconds(1); ///< for room, until a line says for what
    time_span idle_pages = std::chrono::seconds(10);       ///< after the last change
    time_span read_back = std::chrono::seconds(2);     ///< for room, until bytes are sent instead
    time_span after_failure = std::chrono::seconds(1); ///< of a disk, until it is tried again
};

/// On one loop, which should run no user code.
class store {
public:
    ///   number  of this store: never 0, and no other one's
    ///   files   where objects go when there is no room; null: nowhere
    store(arena memory, std::uint64_t number, store_times times = {},
          std::unique_ptr<spill_volume> files = nullptr);
    store(const store&) = delete;
    store& operator=(const store&) = delete;
    ~store();

    /// Serves one process until its link has ended. Never throws but for cancellation.
    [[nodiscard]] task<void> serve(net::connection::handle wire);
    /// Ends all links.
    [[nodiscard]] task<void> close();

    [[nodiscard]] store_usage usage() const noexcept { return book_.usage(); }
    [[nodiscard]] spill_usage files() const noexcept {
        return files_ ? files_->usage() : spill_usage();
    }
    /// Who waits for room.
    [[nodiscard]] std::size_t waiting() const noexcept { return line_.size(); }

private:
    friend class far_objects;
    struct waiting_create;
    struct place_in_line;
    [[nodiscard]] std::shared_ptr<net::request_service> service_for(process_id who);
    static task<create_reply> create(store* self, process_id by, create_request what,
                                     net::caller who);
    void seal(process_id by, const seal_request& what);
    void give(process_id by, const give_request& what);
    struct reading_back;
    struct work_on;
    static task<pin_reply> pin(store* self, process_id by, pin_request what);
    static task<fetch_reply> fetch(store* self, process_id by, fetch_request what);
    [[nodiscard]] std::shared_ptr<reading_back> read_back(object_number which);
    static task<void> read_back_now(store* self, std::shared_ptr<reading_back> what);
    void make_room(std::uint64_t bytes);
    static task<void> write_away(store* self, std::vector<object_number> which);
    void disk_failed(const error& why);
    static task<void> try_again(store* self);
    void serve_line();
    void serve_readers();
    void drop_files();
    [[nodiscard]] claim_reply claim(process_id by, const claim_request& what);
    void release(process_id by, const release_note& what);
    void take(process_id by, const take_note& what);
    void decline(process_id by, const decline_note& what);
    void end(process_id who);
    void ended(process_id who);
    void refuse(const error& why);
    [[nodiscard]] create_reply name_of(const store_book::grant& made, std::uint64_t bytes) const;
    [[nodiscard]] error no_room(std::uint64_t bytes) const;
    /// Something may be free now.
    void changed();
    task<void> keep_tidy();
    void show_numbers() const;

    arena memory_;
    std::uint64_t number_;
    store_times times_;
    store_book book_;
    other_nodes* far_ = nullptr; ///< null: there are none
    std::list<waiting_create*> line_;
    std::unordered_set<process_id> cut_off_; ///< they live, and have no link any more
    std::uint64_t refused_ = 0;
    std::unique_ptr<spill> files_; ///< null: none
    std::unordered_map<object_number, std::shared_ptr<reading_back>> reading_;
    std::list<reading_back*> readers_; ///< that wait for room
    bool is_tight_ = false, is_writing_ = false, is_full_ = false;
    time_point write_again_at_{};
    struct served {
        net::requests::handle link;
        process_id who;
        std::string name;
    };
    void let_read(served& one);
    void be_tight();
    [[nodiscard]] std::string who_reads() const;
    std::vector<served> links_;
    bool is_closed_ = false, is_tidying_ = false;
    time_point changed_at_{};
    scope tasks_;
};

} // namespace skein::objects

#if SKEIN_HEADER_ONLY
#include <skein/objects/detail/store.ipp>
#endif
