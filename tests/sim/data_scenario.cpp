// SPDX-License-Identifier: Apache-2.0
// data: ranks read a data set through row engines, with threads and with helpers: actors on the
// nodes of a cluster. Helpers are killed, cut off, stand still and become a hundred times slower,
// nodes join and go, readers pause, hold what they got, and go on from other places; rows throw,
// are left out, or cannot be read or made on some hosts.
//
// Invariants: batches come in the order of their requests, with the samples, bytes and errors that
// one thread makes, and keep them while they are held; a row is written once; slots that are out
// are within the budget, and come back all; no range is overdue while threads are idle; a reader
// waits no longer than its rows take here, and a range and a second, however many helpers fall
// silent; no helper is asked for more at a time than was taken off the budget, nor again for what it
// cannot read. After the calm each place for a helper has one, and the epochs end. When all has ended
// no helper, slot, worker or job is left.
#include "sim/scenario.hpp"

#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/data/detail/row_engine.hpp>
#include <skein/data/detail/row_program.hpp>
#include <skein/data/pipeline.hpp>
#include <skein/net/offload.hpp>
#include <skein/rt/runtime_context.hpp>
#include <tests/support/sim_nodes.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace data_world {

using namespace skein;
using namespace std::chrono_literals;
using data::detail::batch_request;
using data::detail::finished_batch;
using test::sim_nodes;

/// What differs between the hosts of this world.
struct hosts {
    duration row_time{};
    std::map<std::string, int> slow; ///< so many times
    std::set<std::string> blind;     ///< they cannot read every fifth sample
    std::set<std::string> sick;      ///< functions throw there for some samples
};
thread_local hosts* here = nullptr;

// ---- the data set -------------------------------------------------------------------------------

/// As it travels: of any length.
struct raw {
    data::array<std::uint8_t> bytes;
    std::int64_t id = 0;
    std::int32_t width = 0;
};
struct point {
    data::array<float> x;
    std::int64_t id = 0;
    std::array<std::int16_t, 3> of = std::array<std::int16_t, 3>();
};
/// Where a sample is.
struct place {
    std::uint64_t sample = 0, length = 0;
};
struct store_reader {
    std::int32_t width = 0;
    std::uint64_t bad_every = 0; ///< 0: none

    raw read(const place& at) const {
        const auto host = runtime_context().host;
        if (here->blind.contains(host) && at.sample % 5 == 1)
            throw error(errc::not_found, "no file on " + host);
        if (bad_every > 0 && at.sample % bad_every == 2) throw std::runtime_error("unreadable");
        const auto found = here->slow.find(host);
        const int times = found == here->slow.end() ? 1 : found->second;
        net::seem_to_take(here->row_time * times);
        auto bytes = data::arena::current().array<std::uint8_t>(at.length);
        for (std::size_t i = 0; i < bytes.size(); ++i)
            bytes[i] = static_cast<std::uint8_t>(at.sample * 31 + i);
        return {bytes, static_cast<std::int64_t>(at.sample), width};
    }
};
struct store {
    std::uint64_t count = 0, longest = 0;
    store_reader how{};

    std::uint64_t size() const { return count; }
    place locate(std::uint64_t i) const { return {i, i * 7919 % (longest + 1)}; }
    store_reader reader() const { return how; }
};
raw stir(raw r, data::draws& random) {
    if (r.id % 23 == 7) throw std::runtime_error("cannot be stirred");
    if (r.id % 5 == 2 && here->sick.contains(runtime_context().host))
        throw std::runtime_error("cannot be stirred there");
    auto bytes = data::arena::current().array<std::uint8_t>(r.bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<std::uint8_t>(r.bytes[i] + random.integer(256));
    r.bytes = bytes;
    return r;
}
bool is_wanted(const raw& r, data::draws& random) { return r.id % 11 != 3 && random.unit() < 0.9; }
point gather(const raw& r, data::draws& random) {
    if (r.id % 29 == 11) throw std::runtime_error("cannot be gathered");
    point made;
    auto x = data::arena::current().array<float>(static_cast<std::size_t>(r.width));
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = random.uniform(-1, 1) + (r.bytes.empty() ? 0 : r.bytes[i % r.bytes.size()]);
    made.x = x;
    made.id = r.id;
    made.of = {static_cast<std::int16_t>(r.bytes.size()), 1, 2};
    return made;
}
bool is_kept(const point& p) { return p.id % 13 != 5; }

auto plan(const store& from, data::helpers where, bool shuffled) {
    auto made = from | data::map<&stir>() | data::filter<&is_wanted>() |
                data::on(std::move(where)) | data::map<&gather>() | data::filter<&is_kept>();
    made.is_shuffled = shuffled;
    return made;
}
using program_type = data::detail::typed_program<decltype(plan({}, {}, false))>;

// ---- what is looked at --------------------------------------------------------------------------

/// A program and its helpers, seen from outside.
class watched_program final : public data::detail::row_program {
public:
    explicit watched_program(program_type of) : of_(std::move(of)) {}

    int helpers_alive = 0;
    int most_requests = 0;       ///< under way at one helper
    std::uint64_t most_rows = 0; ///< of one request
    std::uint64_t rows_there = 0;
    std::uint64_t turn = 0;             ///< how often it went on elsewhere
    bool asks_again = false;            ///< for rows that could not be read there
    std::function<bool()> has_layout{}; ///< else the first row is being looked for
    std::map<std::pair<std::uint64_t, std::uint64_t>, int> written{}; ///< by epoch and sample

    std::uint64_t size() const override { return of_.size(); }
    std::uint64_t sample_at(std::uint64_t seed, std::uint64_t epoch,
                            std::uint64_t at) const override {
        return of_.sample_at(seed, epoch, at);
    }
    std::string describe() const override { return of_.describe(); }
    bool make(std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample,
              data::detail::cells& out) const override {
        note(epoch, sample);
        return of_.make(seed, epoch, sample, out);
    }
    data::helpers wanted() const override { return of_.wanted(); }
    byte_buffer locate(const std::vector<std::uint64_t>& samples) const override {
        return of_.locate(samples);
    }
    bool finish(wire::reader& from, std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample,
                data::detail::cells& out) const override {
        note(epoch, sample);
        return of_.finish(from, seed, epoch, sample, out);
    }
    task<std::unique_ptr<data::detail::row_helper>> make_helper() const override {
        auto making = of_.make_helper();
        auto made = co_await making;
        co_return std::make_unique<watched_helper>(const_cast<watched_program*>(this),
                                                   std::move(made));
    }
    /// What one thread makes of a sample.
    bool make_alone(std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample,
                    data::detail::cells& out) const {
        return of_.make(seed, epoch, sample, out);
    }

private:
    class watched_helper final : public data::detail::row_helper {
    public:
        watched_helper(watched_program* by, std::unique_ptr<data::detail::row_helper> of)
            : by_(by), of_(std::move(of)) {
            ++by_->helpers_alive;
        }
        ~watched_helper() override { --by_->helpers_alive; }
        task<data::detail::rows_answer> make(data::detail::rows_request wanted) override {
            struct presence {
                explicit presence(int& in) : count(in) { ++count; }
                presence(const presence&) = delete;
                ~presence() { --count; }
                int& count;
            } const asked(requests_);
            by_->most_requests = std::max(by_->most_requests, requests_);
            const auto samples = wanted.samples;
            const auto time = std::pair(by_->turn, wanted.epoch);
            by_->most_rows = std::max(by_->most_rows, samples.size());
            for (const auto sample : samples)
                if (away_.contains({time, sample})) by_->asks_again = true;
            auto making = of_->make(std::move(wanted));
            auto made = co_await making;
            by_->rows_there += samples.size();
            if (!made.bad.empty() && std::ranges::count(made.fates, data::detail::row_fate::away))
                for (const auto sample : samples) away_.insert({time, sample});
            co_return made;
        }
        std::string name() const override { return of_->name(); }

    private:
        watched_program* by_;
        std::unique_ptr<data::detail::row_helper> of_;
        int requests_ = 0;
        std::set<std::pair<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t>>
            away_; // by turn, epoch and sample
    };

    void note(std::uint64_t epoch, std::uint64_t sample) const {
        if (has_layout && has_layout())
            ++const_cast<watched_program*>(this)->written[{epoch, sample}];
    }

    program_type of_;
};

/// A batch as one thread makes it.
struct expected_batch {
    std::vector<std::uint64_t> samples, bad;
    std::vector<std::vector<std::byte>> columns;
};
expected_batch make_alone(const watched_program& by, std::uint64_t seed, const batch_request& r) {
    expected_batch out;
    data::arena memory;
    const data::arena_scope scope(memory);
    data::detail::cells values;
    for (auto at = r.first; at < r.first + r.count; ++at) {
        memory.reset();
        const auto sample = by.sample_at(seed, r.epoch, at);
        try {
            if (!by.make_alone(seed, r.epoch, sample, values)) continue;
        } catch (const std::exception&) {
            out.bad.push_back(sample);
            continue;
        }
        out.samples.push_back(sample);
        out.columns.resize(values.size());
        for (std::size_t i = 0; i < values.size(); ++i)
            out.columns[i].insert(out.columns[i].end(), values[i].data,
                                  values[i].data + values[i].size());
    }
    return out;
}

// ---- a rank -------------------------------------------------------------------------------------

struct stage {
    sim::world& w;
    sim_nodes& c;
    hosts what{};
    bool calm = false;
    std::string violation{}; ///< seen where an error would be taken for a helper's

    void expect(bool holds, const std::string& text) {
        if (!holds && violation.empty()) violation = text;
    }
    void check() const { w.check(violation.empty(), violation); }
};

task<void> wait_for(event* what) {
    auto waiting = what->wait();
    co_await waiting;
}

/// What a loader is around its row engine, on one loop.
struct reader : std::enable_shared_from_this<reader> {
    reader(stage* in, std::string as) : s(in), name(std::move(as)) {}

    stage* s;
    std::string name;
    std::uint64_t seed = 0;
    data::detail::dealing deal;
    std::shared_ptr<watched_program> program;
    std::shared_ptr<data::slot_pool> slots;
    std::unique_ptr<data::detail::row_engine> engine;
    scope work;
    std::exception_ptr failure;

    event changed;
    std::deque<finished_batch> ready;
    std::optional<batch_request> asked_next, delivered_next;
    std::uint64_t generation = 0;
    struct kept {
        finished_batch batch;
        expected_batch wanted;
    };
    std::vector<kept> held;
    std::vector<std::weak_ptr<data::slot>> out;
    std::size_t largest = 0; ///< bytes of a slot
    int left_out = 0;        ///< places for helpers that have none any more
    std::uint64_t batches = 0;
    duration longest{};

    data::detail::engine_options how;

    void start(std::size_t budget);
    task<void> serve();
    task<void> stop();
    void ask(const batch_request& wanted);
    task<finished_batch> next(batch_request wanted);
    [[nodiscard]] duration range_here() const;
    task<void> wait_for_one(batch_request wanted);
    task<void> watch();
    void deliver(finished_batch made);
    void check(const finished_batch& made, const expected_batch& wanted);
    void check_budget();
    void check_written(const finished_batch& made);
    void let_go();
    /// As from another thread.
    void post(unique_function<void(reader&)> call) {
        loop::current().post([self = weak_from_this(), call = std::move(call)]() mutable {
            if (const auto me = self.lock(); me && me->engine) call(*me);
        });
    }
};

void reader::start(std::size_t budget) {
    slots = std::make_shared<data::slot_pool>(budget);
    engine = std::make_unique<data::detail::row_engine>(
        program, how, slots, nullptr, [this](finished_batch made) { deliver(std::move(made)); },
        [this](const std::string& line) {
            if (line.find("is left out") != std::string::npos) ++left_out;
        });
    program->has_layout = [this] { return engine->row_bytes() > 0; };
    slots->on_return([this] { post([](reader& me) { me.engine->room_changed(); }); });
    work.spawn(serve());
    work.spawn(watch());
}

task<void> reader::serve() {
    try {
        auto served = engine->serve();
        co_await served;
    } catch (...) {
        failure = std::current_exception();
    }
    changed.set();
}

task<void> reader::stop() {
    slots->on_return({});
    work.cancel();
    auto joined = shield(work.join());
    co_await joined;
    engine.reset();
    ready.clear();
    let_go();
    s->w.check(slots->slots() == 0 && slots->used() == 0,
               fmt::format("{} slots of {} bytes are lost", slots->slots(), slots->used()));
    s->w.check(program->helpers_alive == 0, "a helper is left");
}

void reader::check_budget() {
    std::size_t bytes = 0, count = 0;
    std::erase_if(out, [](const auto& one) { return one.expired(); });
    for (const auto& one : out)
        if (const auto it = one.lock()) {
            largest = std::max(largest, it->layout().slot_bytes(it->capacity()));
            bytes += it->layout().slot_bytes(it->capacity());
            count += 1;
        }
    s->expect(bytes <= slots->budget() || count == 1,
              fmt::format("{} slots of {} bytes are out, of {}", count, bytes, slots->budget()));
    s->expect(bytes <= slots->used(), "a slot is out and not counted");
    s->expect(slots->used() <= slots->budget() || slots->slots() == 1,
              fmt::format("{} bytes are used of {}", slots->used(), slots->budget()));
}

void reader::deliver(finished_batch made) {
    if (made.generation != generation) return;
    s->expect(delivered_next && made.wanted == *delivered_next, "a batch that was not due came");
    delivered_next = made.wanted.after();
    check_written(made);
    if (made.memory) out.push_back(made.memory);
    check_budget();
    ready.push_back(std::move(made));
    s->expect(ready.size() <= how.most_ahead, "more batches wait than may");
    changed.set();
}

void reader::check_written(const finished_batch& made) {
    const auto& r = made.wanted;
    const std::set<std::uint64_t> there(made.samples.begin(), made.samples.end());
    for (auto at = r.first; at < r.first + r.count; ++at) {
        const auto sample = program->sample_at(seed, r.epoch, at);
        const auto times = program->written[{r.epoch, sample}];
        s->expect(times <= 1, fmt::format("a row was made {} times here", times));
        s->expect(times == 1 || !there.contains(sample), "a row came that nobody wrote");
    }
}

void reader::check(const finished_batch& made, const expected_batch& wanted) {
    auto& w = s->w;
    w.check(made.samples == wanted.samples, "a batch has other samples");
    std::vector<std::uint64_t> bad;
    for (const auto& one : made.bad) bad.push_back(one.sample);
    w.check(bad == wanted.bad, "a batch has other errors");
    for (std::size_t i = 0; i < wanted.columns.size(); ++i) {
        const auto& bytes = wanted.columns[i];
        w.check(std::equal(bytes.begin(), bytes.end(), made.memory->column(i)),
                fmt::format("column {} of places {} to {} has other bytes", i, made.wanted.first,
                            made.wanted.first + made.wanted.count));
    }
}

void reader::let_go() {
    for (const auto& one : held) check(one.batch, one.wanted);
    held.clear();
}

/// The longest that a range takes here, and what an idle thread needs to come to it.
duration reader::range_here() const {
    return how.desk.range_time * 2 + s->what.row_time * 4 + 50ms;
}

/// No longer than one thread takes for its rows, and a second and a range: those that fall silent
/// one after the other share them.
task<void> reader::wait_for_one(batch_request wanted) {
    auto begin = loop::current().exact_now();
    int out_for = 0;
    while (ready.empty()) {
        s->check();
        if (failure) std::rethrow_exception(failure);
        changed.reset();
        auto soon = as_result(with_timeout(wait_for(&changed), 250ms));
        if (const auto came = co_await soon; !came && came.error().code() != errc::timeout)
            throw came.error();
        s->w.check(loop::current().exact_now() - begin < 60s, "a batch does not come");
        out_for = ready.empty() && engine->is_out_of_slots() ? out_for + 1 : 0;
        if (out_for < 3) continue;
        s->w.check(!held.empty(), "all slots are out, and the reader has none");
        let_go(); // its own doing
        begin = loop::current().exact_now();
    }
    const auto waited = loop::current().exact_now() - begin;
    longest = std::max(longest, waited);
    const auto rows = s->what.row_time * static_cast<int>(wanted.count);
    s->w.check(waited <= rows + 1s + range_here(),
               fmt::format("{} waited {:.3f} s for {} rows of {:.3f} s, a range takes {:.3f} s",
                           name, to_seconds(waited), wanted.count, to_seconds(rows),
                           to_seconds(range_here())));
}

/// While threads are idle no range is overdue, and none is waited for too long.
task<void> reader::watch() {
    auto busy = loop::current().exact_now();
    std::uint64_t made = 0;
    const auto most = 50ms + 2 * (s->what.row_time + how.desk.range_time);
    for (;;) {
        co_await sleep_for(20ms);
        const auto now = loop::current().exact_now();
        if (const auto rows = engine->stats()[0].rows; rows != std::exchange(made, rows))
            busy = now;
        const auto due = engine->work().next_deadline();
        s->expect(!due || now - std::max(*due, busy) < most,
                  "a range is overdue, and idle threads do not take it");
        s->expect(!due || *due <= now + 1s + range_here(),
                  "a helper is waited for longer than a range takes here and a second");
    }
}

/// Anything but what is due begins anew.
void reader::ask(const batch_request& wanted) {
    if (asked_next && *asked_next == wanted) return;
    ready.clear();
    const auto mine = ++generation;
    asked_next = delivered_next = wanted;
    post([mine, wanted](reader& me) {
        me.program->written.clear();
        me.program->turn += 1;
        me.engine->restart(mine, wanted);
    });
}

task<finished_batch> reader::next(batch_request wanted) {
    ask(wanted);
    asked_next = wanted.after();
    auto waiting = wait_for_one(wanted);
    co_await waiting;
    auto made = std::move(ready.front());
    ready.pop_front();
    post([mine = generation](reader& me) { me.engine->taken(mine); });
    batches += 1;
    co_return made;
}

/// Reads from there to the end of the last epoch, or until it likes to go on elsewhere.
task<void> read_on(reader* r, batch_request from) {
    auto& w = r->s->w;
    for (auto wanted = std::optional(from); wanted; wanted = wanted->after()) {
        if (!r->s->calm && w.chance(0.08)) { // it changes its mind while it waits
            if (w.chance(0.5)) r->ask(*wanted);
            const auto most = w.chance(0.5) ? 3000U : 60'000U;
            if (w.chance(0.5)) co_await sleep_for(std::chrono::microseconds(w.below(most)));
            co_return;
        }
        auto reading = r->next(*wanted);
        auto made = co_await reading;
        r->s->check();
        w.loop.trace(made.samples.size());
        auto alone = make_alone(*r->program, r->seed, *wanted);
        r->check(made, alone);
        if (w.chance(0.3)) r->held.push_back({std::move(made), std::move(alone)});
        if (r->held.size() > 3 || w.chance(0.2)) r->let_go();
        if (w.chance(0.1)) co_await sleep_for(std::chrono::milliseconds(w.below(300)));
    }
}

batch_request somewhere(reader* r) {
    auto& w = r->s->w;
    const auto batches = (r->deal.size + r->deal.global_batch - 1) / r->deal.global_batch;
    const auto begin = w.below(batches) * r->deal.global_batch;
    if (r->deal.samples_at(begin) == 0) return batch_request::of(r->deal, 0, 0, 0);
    const auto epoch = w.below(r->deal.epochs);
    const auto part = w.below(static_cast<std::uint64_t>(r->deal.parts));
    return batch_request::of(r->deal, epoch, begin, static_cast<int>(part));
}

/// Each place has its helper, or is left out.
task<void> check_helpers(reader* r) {
    const auto wanted = r->program->wanted().most;
    const auto has_all = [&] { return r->program->helpers_alive + r->left_out == wanted; };
    for (int i = 0; i < 1200 && !has_all(); ++i) co_await sleep_for(100ms);
    r->s->w.check(has_all(), fmt::format("{} of {} helpers are there long after the calm",
                                         r->program->helpers_alive, wanted));
}

task<void> read_all(reader* r) {
    auto& w = r->s->w;
    if (w.chance(0.5)) { // changes its mind while the first row is looked for
        r->ask(somewhere(r));
        co_await sleep_for(std::chrono::microseconds(w.below(3000)));
    }
    while (!r->s->calm) {
        auto reading = read_on(r, somewhere(r));
        co_await reading;
        if (w.chance(0.3)) co_await sleep_for(std::chrono::milliseconds(w.below(1500)));
    }
    auto first = read_on(r, somewhere(r));
    co_await first;
    auto checked = check_helpers(r);
    co_await checked;
    auto whole = read_on(r, batch_request::of(r->deal, 0, 0, 0));
    co_await whole;
}

/// Answers under way are taken off the budget: they are as many and as large as was said.
void check_requests(reader* r) {
    const auto& by = *r->program;
    r->s->expect(by.most_requests <= by.wanted().cpus + 1,
                 fmt::format("{} requests at one helper", by.most_requests));
    r->s->expect(!by.asks_again, "a helper is asked again for what it cannot read");
    const auto row = std::max<std::size_t>(1, r->engine->row_bytes());
    r->s->expect(by.most_rows <= std::max<std::size_t>(1, r->how.most_answer / row),
                 fmt::format("{} rows of {} bytes were asked for, of {} bytes at most",
                             by.most_rows, row, r->how.most_answer));
}

task<void> live(reader* r, std::size_t budget) {
    r->start(budget);
    auto reading = as_result(read_all(r));
    const auto done = co_await reading;
    check_requests(r);
    auto stopped = as_result(r->stop());
    const auto over = co_await stopped;
    if (!done) throw done.error();
    if (!over) throw over.error();
    r->s->check();
}

// ---- the world ----------------------------------------------------------------------------------

/// Options of its engine, as a loader makes them of its own; the bytes of its slots.
std::size_t draw_engine(sim::world* w, reader* r) {
    auto& how = r->how;
    how.seed = r->seed;
    how.threads = 1 + static_cast<int>(w->below(3));
    how.most_ahead = w->chance(0.3) ? 1 + w->below(4) : 64;
    const auto wanted = r->program->wanted();
    const auto batch = (r->deal.global_batch + 1) * 500;
    const auto budget = w->chance(0.35) ? w->below(2000) : w->below(batch * 8);
    const auto answers =
        static_cast<std::size_t>(wanted.most) * static_cast<std::size_t>(wanted.cpus + 1);
    if (answers > 0) how.most_answer = std::min(how.most_answer, budget / 2 / answers);
    return budget - answers * how.most_answer;
}

std::shared_ptr<reader> make_reader(stage* s, int rank, const data::detail::dealing& deal,
                                    const store& from) {
    auto& w = s->w;
    auto made = std::make_shared<reader>(s, fmt::format("rank-{}", rank));
    made->deal = deal;
    made->deal.rank = rank;
    made->deal.parts = 1 + static_cast<int>(w.below(3));
    made->seed = 5;
    data::helpers where;
    where.most = static_cast<int>(w.below(4));
    where.cpus = 1 + static_cast<int>(w.below(2));
    made->program =
        std::make_shared<watched_program>(program_type(plan(from, where, w.chance(0.5))));
    return made;
}

int slowness(sim::world* w) { return w->chance(0.5) ? 100 : 1 + static_cast<int>(w->below(20)); }

/// What goes wrong with one node.
task<void> hurt_node(stage* s, sim_nodes::node* n) {
    auto& w = s->w;
    const auto all = n->children->running();
    switch (w.below(7)) {
    case 0:
        if (!all.empty()) n->children->kill(all[w.below(all.size())].pid);
        break;
    case 1:
        if (!all.empty()) {
            const auto which = w.below(all.size());
            n->children->pause(all[which].pid, std::chrono::milliseconds(w.below(8000)));
        }
        break;
    case 2: s->what.slow[n->host] = slowness(&w); break;
    case 3: w.network.isolate(n->host); break;
    case 4:
        if (w.chance(0.5)) s->what.blind.insert(n->host);
        break;
    case 5:
        if (w.chance(0.5)) s->what.sick.insert(n->host);
        break;
    default: {
        auto replaced = s->c.replace_agent(*n, w.chance(0.5));
        co_await replaced;
    }
    }
}

void add_node(stage* s) {
    auto& w = s->w;
    const auto& made = s->c.add_breaking_node(1 + static_cast<int>(w.below(3)));
    if (w.chance(0.3)) s->what.slow[made.host] = slowness(&w);
}

task<void> hurt(stage* s) {
    auto& w = s->w;
    for (auto left = w.below(12); left > 0; --left) {
        co_await sleep_for(std::chrono::milliseconds(w.below(2500)));
        if (w.chance(0.15)) {
            add_node(s);
        } else if (w.chance(0.2)) {
            w.network.heal_all();
        } else {
            auto hurting = hurt_node(s, &s->c.at(w.below(s->c.nodes())));
            co_await hurting;
        }
    }
}

task<void> drive(stage* s) {
    auto& w = s->w;
    auto& c = s->c;
    c.start_head();
    for (auto left = 1 + w.below(3); left > 0; --left) add_node(s);
    store from{.count = 5 + w.below(150), .longest = w.below(300)};
    from.how.width = 1 + static_cast<std::int32_t>(w.below(60));
    if (w.chance(0.3)) from.how.bad_every = 3 + w.below(20);
    data::detail::dealing deal{.size = from.count, .global_batch = 1 + w.below(40)};
    deal.epochs = 1 + w.below(2);
    deal.drop_last = w.chance(0.3);
    if (deal.drop_last) deal.global_batch = std::min(deal.global_batch, deal.size);
    deal.world_size = 1 + static_cast<int>(w.below(3));
    s->what.row_time = std::chrono::microseconds(20 + w.below(w.chance(0.3) ? 20'000 : 2000));
    std::vector<std::shared_ptr<reader>> readers;
    std::vector<std::unique_ptr<sim_nodes::driver>> drivers;
    scope reading;
    for (int rank = 0; rank < deal.world_size; ++rank) {
        readers.push_back(make_reader(s, rank, deal, from));
        auto& r = *readers.back();
        drivers.push_back(c.make_driver(r.name, 1));
        const auto budget = draw_engine(&w, &r);
        reading.spawn(
            sim::run_on(drivers.back()->home, drivers.back()->self.run_here(live(&r, budget))));
    }
    w.network.begin_link_faults();
    auto hurts = hurt(s);
    co_await hurts;
    auto calming = c.be_calm();
    co_await calming;
    s->what.slow.clear();
    c.add_node(20); // room for all
    s->calm = true;
    auto read = as_result(reading.join());
    const auto outcome = co_await read;
    for (const auto& d : drivers) {
        auto ended = sim::run_on(d->home, d->end());
        co_await ended;
    }
    auto all = c.end_when_empty(60s);
    const auto left = co_await all;
    if (!outcome) throw outcome.error();
    w.check(left.empty(), left);
    for (const auto& r : readers) w.loop.trace(r->batches);
}

task<void> scenario(sim::world& w) {
    sim_nodes c(w.loop, w.network);
    c.agent_times.start_timeout = 5s; // some starts hang
    stage s{w, c};
    here = &s.what;
    w.network.draw_clocks();
    auto driving = drive(&s);
    co_await driving;
    here = nullptr;
}

const sim::scenario registered("data", &scenario);

} // namespace data_world
