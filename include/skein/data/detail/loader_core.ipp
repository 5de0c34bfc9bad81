// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/detail/loader_core.hpp>.

#include <skein/core/available_cores.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/clock.hpp>
#include <skein/core/fnv.hpp>
#include <skein/core/log.hpp>
#include <skein/core/units.hpp>
#include <skein/data/order.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/program/session.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace skein::data::detail {

SKEIN_INLINE int row_threads(const loader_options& how) {
    if (how.threads > 0) return how.threads;
    return std::max(1, static_cast<int>(available_cores()) / std::max(1, how.local_size));
}

// ---- places --------------------------------------------------------------------------------------

SKEIN_INLINE std::string loader_place::save() const {
    const std::uint64_t numbers[] = {0x31646b73u, fingerprint, seed, epoch, consumed}; // "skd1"
    return std::string(as_text(std::as_bytes(std::span(numbers))));
}

SKEIN_INLINE loader_place loader_place::restored(std::string_view saved,
                                                 std::string_view pipeline) const {
    std::uint64_t numbers[5] = {};
    if (saved.size() != sizeof(numbers))
        throw error(errc::malformed, fmt::format("the saved place of a loader has {} bytes, not {}",
                                                 saved.size(), sizeof(numbers)));
    std::memcpy(numbers, saved.data(), sizeof(numbers));
    if (numbers[0] != 0x31646b73u)
        throw error(errc::malformed, "the saved place of a loader is of no format that is known");
    if (numbers[2] != seed)
        throw error(errc::mismatch,
                    fmt::format("the run was started with seed {}, now it is {}", numbers[2], seed))
            .with_hint("go on with the same seed, or start anew");
    if (numbers[1] != fingerprint)
        throw error(errc::mismatch,
                    fmt::format("the checkpoint is of other data than {}", pipeline))
            .with_hint("go on with the pipeline and the data that it was started with, or start "
                       "anew");
    return {numbers[1], numbers[2], numbers[3], numbers[4]};
}

// ---- the thread that takes -----------------------------------------------------------------------

class loader_core::impl {
public:
    impl(std::shared_ptr<const row_program> program, loader_options how)
        : program_(std::move(program)), how_(how), fingerprint_(hash_of(program_->describe())) {
        if (program_->size() == 0)
            throw error(errc::usage, "the data set has no samples")
                .with_where(program_->describe());
        if (how_.threads < 0 || how_.threads > 4096 || how_.world_size < 1 || how_.rank < 0 ||
            how_.rank >= how_.world_size)
            throw error(errc::invalid_argument,
                        fmt::format("a loader of {} threads for rank {} of {}", how_.threads,
                                    how_.rank, how_.world_size));
        const int threads = row_threads(how_);
        const auto wanted = program_->wanted();
        if (wanted.most < 0 || wanted.cpus < 1 || wanted.most > 1024 || wanted.cpus > 1024)
            throw error(errc::invalid_argument,
                        fmt::format("{} helpers of {} cpus each", wanted.most, wanted.cpus))
                .with_hint("give 0 to 1024, of 1 to 1024 cpus");
        pool_.emplace(static_cast<unsigned>(threads));
        // What is under way at helpers counts, too: half of the budget at most.
        engine_options make{.seed = how_.seed, .threads = threads};
        const auto answers =
            static_cast<std::size_t>(wanted.most) * static_cast<std::size_t>(wanted.cpus + 1);
        if (answers > 0) make.most_answer = std::min(make.most_answer, how_.budget / 2 / answers);
        slots_ = std::make_shared<slot_pool>(how_.budget - answers * make.most_answer);
        if (wanted.most > 0) {
            run_options to;
            to.workers = 1; // helpers hold cores, so each has a process of its own
            session_.emplace(to);
        } else {
            thread_.emplace("data");
        }
        run([this, make]() -> task<void> { return start(make); });
        slots_->on_return([this] { post([this] { engine_->room_changed(); }); });
    }
    impl(const impl&) = delete;
    impl& operator=(const impl&) = delete;
    ~impl() {
        run([this]() -> task<void> { return stop(); });
    }

    /// Nothing more is begun. False: a row does not end, and the threads cannot go.
    [[nodiscard]] bool end() {
        slots_->on_return({});
        run([this]() -> task<void> { return cancel(); });
        for (;;) {
            const auto oldest = look_at_work().oldest;
            if (!oldest) return true;
            if (oldest->age >= patience_) {
                logging::warn("data", fmt::format("{}: does not end: its thread is left behind",
                                                  oldest->text));
                return false;
            }
            std::unique_lock lock(mutex_);
            (void)changed_.wait_for(lock, std::chrono::milliseconds(5));
        }
    }
    void watch_stop(std::function<bool()> wanted, duration patience) {
        stop_wanted_ = std::move(wanted);
        patience_ = patience;
    }

    finished_batch next(const batch_request& wanted) {
        require_own_process();
        const auto begin = system_clock().now();
        std::unique_lock lock(mutex_);
        if (!begun_) first_ = begin;
        if (!begun_ || !expected_ || *expected_ != wanted) {
            begun_ = true;
            ready_.clear();
            const auto generation = ++generation_;
            post([this, generation, wanted] { engine_->restart(generation, wanted); });
        }
        expected_ = wanted.after();
        auto out = wait(lock);
        ready_.pop_front();
        post([this, generation = generation_] { engine_->taken(generation); });
        waited_ += to_seconds(between(begin, system_clock().now()));
        SKEIN_CHECK(out.wanted == wanted, "a loader made places {} to {} where {} were wanted",
                    out.wanted.first, out.wanted.first + out.wanted.count, wanted.first);
        refuse_bad(out);
        counts_.batches += 1;
        counts_.rows += out.samples.size();
        counts_.dropped += wanted.count - out.samples.size() - out.bad.size();
        return out;
    }

    loader_stats stats() {
        require_own_process();
        loader_stats now;
        {
            const std::lock_guard lock(mutex_);
            now = counts_;
            now.waited = waited_;
            if (begun_)
                now.lasted = std::chrono::duration<double>(system_clock().now() - first_).count();
        }
        run([&]() -> task<void> { return look(now); });
        now.peak_bytes = slots_->peak();
        now.budget = how_.budget;
        return now;
    }

    std::vector<left_out_sample> left_out(std::size_t seen) {
        const std::lock_guard lock(mutex_);
        const auto& all = counts_.left_out;
        return {all.begin() + static_cast<std::ptrdiff_t>(std::min(seen, all.size())), all.end()};
    }

    [[nodiscard]] const row_program& program() const noexcept { return *program_; }
    [[nodiscard]] const loader_options& options() const noexcept { return how_; }
    [[nodiscard]] std::uint64_t fingerprint() const noexcept { return fingerprint_; }
    /// False in a child that was forked: the threads have stayed with its parent.
    [[nodiscard]] bool is_own_process() const noexcept { return ::getpid() == process_; }

private:
    void require_own_process() const {
        if (!is_own_process())
            throw error(errc::usage, fmt::format("process {} asks a loader that process {} has "
                                                 "made: its threads are not here",
                                                 ::getpid(), process_))
                .with_hint("make the loader after the fork");
    }
    static std::uint64_t hash_of(std::string_view line) {
        fnv1a hash;
        hash.text(line);
        return hash.value();
    }
    template <class F>
    void run(F f) {
        if (session_)
            session_->run(std::move(f));
        else
            thread_->run(std::move(f));
    }
    void post(unique_function<void()> call) {
        if (session_)
            (void)session_->door()->post(std::move(call));
        else
            thread_->loop().post_from_any_thread(std::move(call));
    }

    task<void> start(engine_options make) {
        engine_.emplace(
            program_, make, slots_, &*pool_,
            [this](finished_batch made) { deliver(std::move(made)); },
            [](const std::string& line) { logging::warn("data", line); });
        work_.emplace();
        work_->spawn(serve());
        co_return;
    }
    task<void> serve() {
        std::exception_ptr failure;
        try {
            auto served = engine_->serve();
            co_await served;
        } catch (const std::bad_alloc&) {
            failure = no_memory();
        } catch (const std::length_error&) { // of a vector
            failure = no_memory();
        } catch (...) {
            failure = std::current_exception();
        }
        const std::lock_guard lock(mutex_);
        failure_ = std::move(failure);
        changed_.notify_all();
    }
    [[nodiscard]] std::exception_ptr no_memory() const {
        const auto row = engine_->row_bytes();
        return std::make_exception_ptr(
            error(errc::exhausted,
                  row == 0 ? std::string("no memory for the numbers of the samples of a batch")
                           : fmt::format("no memory for a batch of rows of {} bytes, {} MiB of "
                                         "others are in use",
                                         row, slots_->used() >> 20))
                .with_where(program_->describe())
                .with_hint("take smaller batches, or give the loader a smaller budget"));
    }
    task<void> cancel() {
        if (work_) work_->cancel();
        co_return;
    }
    task<void> stop() {
        if (work_) {
            work_->cancel();
            auto joined = work_->join();
            co_await joined;
        }
        work_.reset();
        engine_.reset();
    }
    task<void> look(loader_stats& now) {
        now.makers = engine_->stats();
        now.row_bytes = engine_->row_bytes();
        now.given_again = engine_->work().given_again();
        now.late = engine_->work().dropped();
        co_return;
    }

    void deliver(finished_batch made) {
        const std::lock_guard lock(mutex_);
        if (made.generation != generation_) return;
        ready_.push_back(std::move(made));
        changed_.notify_all();
    }

    finished_batch wait(std::unique_lock<std::mutex>& lock) {
        const auto begin = system_clock().now();
        std::optional<time_point> stopping; // when that was seen
        auto looked = begin;
        while (ready_.empty()) {
            if (failure_) std::rethrow_exception(failure_);
            (void)changed_.wait_for(lock, std::chrono::milliseconds(200));
            const auto now = system_clock().now();
            if (!ready_.empty() || between(looked, now) < std::chrono::seconds(1)) continue;
            looked = now;
            lock.unlock();
            if (!stopping && stop_wanted_ && stop_wanted_()) stopping = now;
            const auto seen = look_at_work();
            lock.lock();
            if (!ready_.empty()) break;
            refuse_slow(seen, stopping ? between(*stopping, now) : duration(0));
            // Nobody but the caller can give one back.
            if (seen.is_out_of_slots && between(begin, now) >= std::chrono::seconds(5))
                throw error(errc::exhausted,
                            fmt::format("the loader's budget of {} MiB is out: {} batches that it "
                                        "gave are still held",
                                        how_.budget >> 20, slots_->slots()))
                    .with_hint("copy what has to be kept (clone() of a tensor), or give the loader "
                               "a larger budget: a step holds all of its micro-batches at once");
        }
        return std::move(ready_.front());
    }

    struct work_seen {
        bool is_out_of_slots = false;
        std::optional<row_under_way> oldest;
    };
    [[nodiscard]] work_seen look_at_work() {
        work_seen seen;
        run([this, &seen]() -> task<void> { return ask(seen); });
        return seen;
    }
    task<void> ask(work_seen& seen) {
        seen.is_out_of_slots = engine_->is_out_of_slots();
        seen.oldest = engine_->oldest_row();
        co_return;
    }

    /// Throws for a row that has had its time. Nothing can end it: the loader goes without it.
    ///   stopping  since a stop was wanted
    void refuse_slow(const work_seen& seen, duration stopping) const {
        if (!seen.oldest) return;
        const auto& row = *seen.oldest;
        const auto seconds = to_seconds(row.age);
        if (how_.row_limit > duration(0) && row.age >= how_.row_limit)
            throw error(errc::timeout, fmt::format("it has taken {:.0f} s so far, its limit is "
                                                   "{:.0f} s",
                                                   seconds, to_seconds(how_.row_limit)))
                .with_where(row.text);
        if (stopping >= patience_ && row.age >= patience_)
            throw error(
                errc::cancelled,
                fmt::format("a stop was asked for, and it has taken {:.0f} s so far", seconds))
                .with_where(row.text);
    }

    /// Throws unless the bad rows of a batch may be left out. A batch that is refused counts
    /// nothing: who asks for it again has it made again.
    void refuse_bad(const finished_batch& out) {
        if (out.bad.empty()) return;
        if (const auto unlike = std::ranges::find_if(out.bad, &bad_row::is_unlike);
            unlike != out.bad.end())
            throw unlike->why;
        // What this host is short of now says nothing of the row.
        const auto is_short = [](const bad_row& one) { return one.why.code() == errc::exhausted; };
        if (const auto found = std::ranges::find_if(out.bad, is_short); found != out.bad.end())
            throw found->why;
        std::map<std::uint64_t, const error*> bad; // new ones: each counts once, in all epochs
        for (const auto& one : out.bad)
            if (!bad_samples_.contains(one.sample)) bad.emplace(one.sample, &one.why);
        if (bad_samples_.size() + bad.size() > how_.bad_rows) {
            auto why = out.bad.front().why;
            if (how_.bad_rows > 0)
                (void)why.with_hint(fmt::format("{} samples could not be made, {} may be left out",
                                                bad_samples_.size() + bad.size(),
                                                how_.bad_rows.value()));
            throw why;
        }
        for (const auto& [sample, why] : bad) leave_out(sample, *why);
    }

    /// Says it, once for each sample.
    void leave_out(std::uint64_t sample, const error& why) {
        bad_samples_.insert(sample);
        counts_.bad += 1;
        counts_.left_out.push_back({sample, program_->name_of(sample), why.what()});
        logging::warn("data", fmt::format("left out, {} of at most {}: {}", counts_.bad,
                                          how_.bad_rows, why.what()));
    }

    const pid_t process_ = ::getpid();
    std::shared_ptr<const row_program> program_;
    const loader_options how_;
    const std::uint64_t fingerprint_;
    std::shared_ptr<slot_pool> slots_;
    std::optional<net::offload_pool> pool_;
    std::optional<net::loop_thread> thread_;
    std::optional<session> session_;
    std::optional<row_engine> engine_; // of the loop, as work_
    std::optional<scope> work_;
    std::function<bool()> stop_wanted_;
    duration patience_ = std::chrono::seconds(5); // with a row that is in the way of an end

    std::mutex mutex_; // guards what follows
    std::condition_variable changed_;
    std::deque<finished_batch> ready_;
    std::exception_ptr failure_;
    std::optional<batch_request> expected_;
    bool begun_ = false;
    std::uint64_t generation_ = 0;
    loader_stats counts_;
    std::set<std::uint64_t> bad_samples_; // left out so far
    double waited_ = 0;
    time_point first_{};
};

SKEIN_INLINE loader_core::loader_core(std::shared_ptr<const row_program> program,
                                      loader_options how)
    : impl_(std::make_unique<impl>(std::move(program), how)) {}
SKEIN_INLINE loader_core::~loader_core() {
    if (!impl_->is_own_process()) {
        (void)impl_.release(); // there is nobody whose end to wait for
    } else if (!impl_->end()) {
        static auto* const left_behind = new std::vector<impl*>; // threads work with them yet
        static std::mutex guard;
        const std::lock_guard lock(guard);
        left_behind->push_back(impl_.release());
    }
}
SKEIN_INLINE finished_batch loader_core::next(const batch_request& wanted) {
    return impl_->next(wanted);
}
SKEIN_INLINE loader_stats loader_core::stats() const { return impl_->stats(); }
SKEIN_INLINE void loader_core::watch_stop(std::function<bool()> wanted, duration patience) {
    impl_->watch_stop(std::move(wanted), patience);
}
SKEIN_INLINE std::vector<left_out_sample> loader_core::left_out(std::size_t seen) const {
    return impl_->left_out(seen);
}
SKEIN_INLINE const row_program& loader_core::program() const noexcept { return impl_->program(); }
SKEIN_INLINE const loader_options& loader_core::options() const noexcept {
    return impl_->options();
}
SKEIN_INLINE std::uint64_t loader_core::fingerprint() const noexcept {
    return impl_->fingerprint();
}

} // namespace skein::data::detail

namespace skein::data {

SKEIN_INLINE std::string loader_stats::text() const {
    std::string out = fmt::format("{} batches, {} rows of {} bytes, {} left out by filters, {} "
                                  "bad samples; waited {:.1f} % of {:.2f} s; "
                                  "at most {} of {} MiB\n",
                                  batches, rows, row_bytes, dropped, bad, 100 * wait_fraction(),
                                  lasted, peak_bytes >> 20, budget >> 20);
    if (given_again > 0)
        out += fmt::format("  {} ranges were given out again, {} answers came too late\n",
                           given_again, late);
    std::uint64_t all = 0;
    for (const auto& each : makers) all += each.rows;
    for (const auto& each : makers)
        out += fmt::format(
            "  {:<12} {:>8} rows {:>5.1f} % {:>10} per row{}{}{}{}{}\n", each.name, each.rows,
            all > 0 ? 100.0 * static_cast<double>(each.rows) / static_cast<double>(all) : 0.0,
            cost_seconds(each.seconds / static_cast<double>(std::max<std::uint64_t>(1, each.rows))),
            each.receive_seconds > 0
                ? fmt::format(", about {} to receive", cost_seconds(detail::receive_cost(each)))
                : "",
            !detail::pays(makers.front(), each) ? ", which does not pay" : "",
            each.lost > 0 ? ", lost" : "",
            each.away > 0 ? fmt::format(", {} rows not readable there", each.away) : "",
            each.refuted > 0 ? fmt::format(", {} rows failed there, not here", each.refuted) : "");
    return out;
}

} // namespace skein::data
