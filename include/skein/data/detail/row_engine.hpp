// SPDX-License-Identifier: Apache-2.0
#pragma once
// What fills batches: a planner, threads and helpers around one desk, on one loop, real or
// simulated.

#include <skein/core/event.hpp>
#include <skein/core/function.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/data/desk.hpp>
#include <skein/data/detail/row_messages.hpp>
#include <skein/data/detail/row_place.hpp>
#include <skein/data/slots.hpp>
#include <skein/net/offload.hpp>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein::data::detail {

/// How an epoch's order is dealt: into global batches, ranks and parts of a rank's share.
struct dealing {
    std::uint64_t size = 0, global_batch = 1;
    std::uint64_t epochs = 0; ///< 0: no end
    int rank = 0, world_size = 1, parts = 1;
    bool drop_last = false; ///< a last batch that is not full is left out

    /// Samples of the global batch that begins at `begin`; 0: the epoch has none left.
    [[nodiscard]] std::uint64_t samples_at(std::uint64_t begin) const noexcept;
    friend bool operator==(const dealing&, const dealing&) = default;
};

/// Places [first, first + count) of an epoch's order: one part of one rank's share of the global
/// batch that begins at `begin`.
struct batch_request {
    dealing deal;
    std::uint64_t epoch = 0, begin = 0;
    int part = 0;
    std::uint64_t first = 0, count = 0;

    [[nodiscard]] static batch_request of(const dealing& deal, std::uint64_t epoch,
                                          std::uint64_t begin, int part) noexcept;
    /// The one that will be asked for behind it; nothing: the last epoch ends.
    [[nodiscard]] std::optional<batch_request> after() const noexcept;
    friend bool operator==(const batch_request&, const batch_request&) = default;
};

/// A batch, full.
struct finished_batch {
    std::uint64_t generation = 0;
    batch_request wanted;
    std::shared_ptr<slot> memory;       ///< null when it has no rows
    std::vector<std::uint64_t> samples; ///< of its rows, in order
    std::vector<bad_row> bad;           ///< rows that could not be made, by place
};

/// What rows of one place of work have cost.
struct executor_stats {
    std::string name;
    std::uint64_t rows = 0, lost = 0, away = 0;
    std::uint64_t refuted = 0;  ///< rows that failed there and were made here
    double seconds = 0;         ///< that it spent on them
    double receive_seconds = 0; ///< that the rank spent to take them in
};

/// What taking a row in costs the rank, in seconds: what was measured is the copy into the batch, a
/// quarter of what the kernel, the checksum and the decoder cost together (docs/benchmarks.md).
[[nodiscard]] double receive_cost(const executor_stats& helper) noexcept;
/// Whether that is much less than making it: less than four fifths. Open, and taken for true, before
/// both have done 64 rows.
[[nodiscard]] bool pays(const executor_stats& here, const executor_stats& helper) noexcept;

struct engine_options {
    std::uint64_t seed = 0;
    int threads = 1;
    std::size_t most_ahead = 64; ///< batches that are being made or wait, within the budget
    desk_options desk{};
    std::size_t most_answer = std::size_t{4} << 20; ///< bytes of a helper's answer
    duration slow_row = std::chrono::seconds(5); ///< until it is said that a row takes long; again
                                                 ///< after twice that, and so on
    duration helper_reminder = std::chrono::seconds(10);    ///< until it is said that none comes
    duration helper_retry = std::chrono::milliseconds(500); ///< doubles, up to 32 times of it
};

/// A row that is being made here.
struct row_under_way {
    std::string text; ///< "sample 17 (cat/1.jpg), map(decode)"
    duration age{};   ///< at least; since it was first seen
};

/// One loader's work on its loop. Not thread-safe, but for what is said. Destroyed on its loop or
/// after it, when serve() has ended.
class row_engine {
public:
    ///   deliver  gets finished batches in the order of their requests, on the loop
    ///   note     gets a line for people, now and then
    row_engine(std::shared_ptr<const row_program> program, engine_options how,
               std::shared_ptr<slot_pool> slots, net::offload_pool* pool,
               unique_function<void(finished_batch)> deliver,
               unique_function<void(std::string)> note);
    row_engine(const row_engine&) = delete;
    row_engine& operator=(const row_engine&) = delete;

    /// Makes rows until it is cancelled.
    ///   errors  cancelled; std::bad_alloc and what a source's locate() throws
    [[nodiscard]] task<void> serve();

    /// Goes on from there; what was made of other requests is forgotten.
    void restart(std::uint64_t generation, batch_request first);
    /// A slot came back.
    void room_changed() noexcept { room_.set(); }
    /// A batch that was delivered has been taken: another one may be begun.
    void taken(std::uint64_t generation) noexcept {
        if (generation != generation_) return;
        waiting_ -= 1;
        room_.set();
    }

    /// The row that has been under way for longest, of those that are being made here; nothing
    /// when there are none. What it knows of their age is as old as the look before.
    [[nodiscard]] std::optional<row_under_way> oldest_row();
    /// Whether nothing goes on because all slots are out.
    [[nodiscard]] bool is_out_of_slots() const noexcept { return out_of_slots_; }
    [[nodiscard]] const desk& work() const noexcept { return desk_; }
    /// The threads together, then each helper.
    [[nodiscard]] std::vector<executor_stats> stats() const;
    /// Bytes of a row; 0: not known.
    [[nodiscard]] std::size_t row_bytes() const noexcept {
        return layout_ ? layout_->row_bytes() : 0;
    }

private:
    struct filling {
        std::uint64_t number = 0;
        finished_batch out;
        std::vector<std::uint64_t> samples; // of all its places
        std::vector<row_fate> fates;
        bool is_done = false;
    };
    using batch_ptr = std::shared_ptr<filling>;
    struct probed {
        std::shared_ptr<const row_layout> layout; // null: no row of the batch was made
        std::vector<bad_row> bad;
    };
    struct helper_state {
        std::unique_ptr<row_helper> remote;
        std::uint64_t executor = 0;
        std::size_t index = 0; // into stats
        bool broken = false;
        int failures = 0;
        int doubts = 0;                     // ranges with rows that were good here, close together
        std::uint64_t rows_since_doubt = 0; // made there
    };
    /// A thread's rows, looked at from the loop.
    struct watched_place {
        row_place place;
        std::uint64_t seen = 0; // its rows, at the look before
        time_point since{};     // when that one was seen first
        duration next_word{};   // of that age
    };
    /// Puts the place where the rows of this thread are seen.
    class row_watch;
    struct taken_range {
        std::vector<bad_row> bad;
        std::uint64_t remade = 0;       // rows that failed there and were tried here
        std::vector<bad_row> refuted{}; // those of them that were good
    };

    task<void> plan();
    task<void> make_here(std::uint64_t me);
    task<void> watch_deadlines();
    task<void> watch_rows();
    [[nodiscard]] watched_place& new_place();
    /// "sample 17 (cat/1.jpg), map(decode)"
    [[nodiscard]] std::string text_of_place(const row_place& at) const;
    task<void> remind();
    task<std::unique_ptr<row_helper>> wait_for_helper();
    task<void> keep_helper();
    ///   at  where the rows that it takes in are seen
    task<void> use_helper(helper_state* it, row_place* at);
    task<bool> one_range(helper_state* it, row_place* at);
    /// What a range asks a helper for; nothing: the source does not say where its samples are.
    [[nodiscard]] std::optional<rows_request> request_for(helper_state& it, const filling& batch,
                                                          work_range range);
    void say_if_it_does_not_pay(const executor_stats& helper);
    void hand_back(const helper_state& it, const work_range& range);
    [[nodiscard]] bool is_usable(helper_state& it, const work_range& range,
                                 const rows_answer& answer);
    [[nodiscard]] probed probe(const filling& batch, row_place& at) const;
    /// Makes the rows of a range, one by one, by row(index in the range, sample, values): each is
    /// written to its place. Other threads write the other rows of the batch meanwhile.
    ///   result  those that could not be made
    ///   errors  those that row() throws when `fatal` says so
    template <class Row, class Fatal>
    [[nodiscard]] std::vector<bad_row> each_row(filling& batch, work_range range, Row row,
                                                Fatal fatal) const;
    [[nodiscard]] std::vector<bad_row> fill(filling& batch, work_range range, row_place& at) const;
    [[nodiscard]] taken_range take_in(filling& batch, work_range range, const rows_answer& answer,
                                      row_place& at) const;
    [[nodiscard]] std::optional<error> doubt(helper_state& it, const work_range& range,
                                             const taken_range& taken);
    void write(const filling& batch, std::uint64_t row, const cells& values) const;
    void finish(std::uint64_t executor, const work_range& range, const batch_ptr& batch,
                std::vector<bad_row> bad, duration spent);
    void hand_out();
    [[nodiscard]] std::uint64_t most_rows() const noexcept;

    std::shared_ptr<const row_program> program_;
    engine_options how_;
    std::shared_ptr<slot_pool> slots_;
    net::offload_pool* pool_;
    unique_function<void(finished_batch)> deliver_;
    unique_function<void(std::string)> note_;

    desk desk_;
    event work_, room_, given_, asked_;
    std::map<std::uint64_t, batch_ptr> batches_; // open, in order
    std::uint64_t next_number_ = 1, generation_ = 0, slot_rows_ = 0;
    std::optional<batch_request> wanted_;
    std::shared_ptr<const row_layout> layout_;
    std::size_t waiting_ = 0;      // delivered, not taken
    std::size_t travel_bytes_ = 0; // of a row in an answer, at most; 0: there was none yet
    bool out_of_slots_ = false;
    bool has_reminded_ = false, has_said_pay_ = false;
    std::vector<executor_stats> stats_;
    std::list<watched_place> places_; // one for each that makes rows here
};

} // namespace skein::data::detail

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/row_engine.ipp>
#include <skein/data/detail/row_engine_helpers.ipp>
#endif
