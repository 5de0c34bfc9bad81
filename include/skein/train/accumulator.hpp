// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums over all ranks and over the steps of an epoch, for loops over a session.
//
//     skein::train::accumulator a(session);
//     for (auto& epoch : skein::train::remaining_epochs_until(session, 14, data)) {
//         for (auto& step : epoch)
//             for (auto& micro : step) {
//                 ...
//                 a["correct"] += correct;
//                 a["total"] += samples;
//             }
//         const auto sums = a.synchronized();
//         fmt::print("{}: {}\n", epoch.number(), sums["correct"] / sums["total"]);
//     }
//
// What a rank adds goes with the row of its step, in the column "sum/<name>": there is no exchange
// of its own. It counts when the step is committed. So a step that was lost or taken back is
// counted once, sums are in checkpoints, and workers that join have them. They begin anew with the
// first step of the next epoch. Whole numbers come to the same for any number of ranks; sums of
// others do so but for the order of their additions, and with logical shards to the same bits.

#include <skein/train/session.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

namespace detail {
[[noreturn]] void left_epoch(std::uint64_t number);
} // namespace detail

/// The sums of an epoch, equal on all ranks.
class epoch_totals {
public:
    epoch_totals(std::uint64_t epoch, std::map<std::string, double> sums)
        : epoch_(epoch), sums_(std::move(sums)) {}

    /// Errors: not_found, with the names that there are.
    [[nodiscard]] double operator[](std::string_view name) const;
    /// The same; `otherwise` where no rank has added anything by that name.
    [[nodiscard]] double get(std::string_view name, double otherwise) const;
    [[nodiscard]] const std::map<std::string, double>& all() const noexcept { return sums_; }
    /// Whose steps they are of: that of the step that was committed last.
    [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }

private:
    std::uint64_t epoch_;
    std::map<std::string, double> sums_;
};

/// What ranks add up. Several of one session are the same. The session must outlive it; its thread.
class accumulator {
public:
    /// One name of it: what stands left of += and -=.
    class place {
    public:
        place(session& of, std::string_view name) : of_(&of), name_(name) {}
        /// Errors: usage without a step in hand, and for a name that cannot be one.
        void operator+=(double more) const { of_->accumulate(name_, more); }
        void operator-=(double less) const { of_->accumulate(name_, -less); }

    private:
        session* of_;
        std::string_view name_;
    };

    explicit accumulator(session& of) : of_(&of) {}

    /// For += and -= at once: the name must live until then.
    [[nodiscard]] place operator[](std::string_view name) { return {*of_, name}; }
    /// The steps of the epoch that are committed, of all ranks; behind the steps of an epoch those
    /// of the whole epoch. Not collective: every rank has them.
    [[nodiscard]] epoch_totals synchronized() const {
        return {of_->epoch_of_sums(), of_->epoch_sums()};
    }

private:
    session* of_;
};

/// One pass over the data: its steps, for a range-based for.
template <class Batch>
class epoch_view {
public:
    class iterator {
    public:
        using value_type = step_view<Batch>;
        using difference_type = std::ptrdiff_t;
        step_view<Batch>& operator*() const { return epoch_->step_; }
        iterator& operator++() {
            epoch_->go_on();
            return *this;
        }
        void operator++(int) { ++*this; }
        friend bool operator==(const iterator& it, std::default_sentinel_t) {
            return it.epoch_->is_over();
        }

    private:
        friend class epoch_view;
        explicit iterator(epoch_view& of) : epoch_(&of) {}
        epoch_view* epoch_;
    };

    explicit epoch_view(session& of) : of_(&of), step_(of) {}
    [[nodiscard]] iterator begin() { return iterator(*this); }
    [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }
    [[nodiscard]] std::uint64_t number() const noexcept { return number_; } ///< from 0

private:
    template <class>
    friend class epoch_range;
    /// The first step that is left is drawn.
    void start() {
        if (of_->phase() == step_phase::applied) of_->commit(); // applied before a rebind()
        has_step_ = of_->draw();
        enter();
    }
    void enter() {
        number_ = of_->current_epoch();
        of_->enter_epoch(number_);
    }
    void go_on() {
        of_->complete();
        has_step_ = of_->draw();
    }
    [[nodiscard]] bool is_over() const { return !has_step_ || of_->current_epoch() != number_; }

    session* of_;
    step_view<Batch> step_;
    std::uint64_t number_ = 0;
    bool has_step_ = false;
};

/// The epochs that are left. Leaving one before its last step is an error.
template <class Batch>
class epoch_range {
public:
    class iterator {
    public:
        using value_type = epoch_view<Batch>;
        using difference_type = std::ptrdiff_t;
        epoch_view<Batch>& operator*() const { return range_->epoch_; }
        /// Errors: usage: the epoch was left before its last step.
        iterator& operator++() {
            range_->next();
            return *this;
        }
        void operator++(int) { ++*this; }
        friend bool operator==(const iterator& it, std::default_sentinel_t) {
            return !it.range_->epoch_.has_step_;
        }

    private:
        friend class epoch_range;
        explicit iterator(epoch_range& of) : range_(&of) {}
        epoch_range* range_;
    };

    explicit epoch_range(session& of) : of_(&of), epoch_(of) {}
    [[nodiscard]] iterator begin() {
        epoch_.start();
        return iterator(*this);
    }
    [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

private:
    void next() {
        if (!epoch_.is_over()) detail::left_epoch(epoch_.number_);
        epoch_.enter();
    }
    session* of_;
    epoch_view<Batch> epoch_;
};

/// The epochs that the run has left, for loops with an epoch's end: a resumed run goes on amid the
/// one in which it was. Resumes first, if that is asked for. In place of session.steps(), once.
///   count   run_config.epochs, which says how long the run is
///   errors  usage for another count; those of steps()
template <class Data>
    requires train_input<Data>
[[nodiscard]] epoch_range<batch_of<Data>> remaining_epochs_until(session& of, std::int64_t count,
                                                                 Data& data) {
    of.require_epochs(count);
    of.begin(detail::make_input(data));
    return epoch_range<batch_of<Data>>(of);
}

} // namespace skein::train

/// AdaptDL's accumulators are read by name; here that is said of the sums.
template <class Char>
struct fmt::formatter<skein::train::accumulator::place, Char> {
    static_assert(sizeof(Char) == 0, "an accumulator is written to by a[name]; what is read is "
                                     "a.synchronized()[name]");
};

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/accumulator.ipp>
#endif
