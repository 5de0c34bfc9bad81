// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/data/arena.hpp>
#include <skein/data/detail/row_engine.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/offload.hpp>
#include <skein/sim/loop.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace row_engine_test {

using namespace skein;
using namespace std::chrono_literals;
using data::detail::batch_request;

/// Takes a request and never answers.
class silent_helper final : public data::detail::row_helper {
public:
    explicit silent_helper(int* asked) : asked_(asked) {}
    task<data::detail::rows_answer> make(data::detail::rows_request) override {
        ++*asked_;
        event never;
        auto waiting = never.wait();
        co_await waiting;
        co_return data::detail::rows_answer();
    }
    std::string name() const override { return "silent"; }

private:
    int* asked_;
};

/// Answers as the test says.
class scripted_helper final : public data::detail::row_helper {
public:
    using script = std::function<data::detail::rows_answer(const data::detail::rows_request&)>;
    explicit scripted_helper(script answer) : answer_(std::move(answer)) {}
    task<data::detail::rows_answer> make(data::detail::rows_request wanted) override {
        auto slept = sleep_for(1ms);
        co_await slept;
        co_return answer_(wanted);
    }
    std::string name() const override { return "scripted"; }

private:
    script answer_;
};

/// Rows of one number, with one helper.
class numbers final : public data::detail::row_program {
public:
    explicit numbers(int* asked) : asked_(asked) {}
    explicit numbers(scripted_helper::script answer) : answer_(std::move(answer)) {}
    std::uint64_t size() const override { return 100; }
    std::uint64_t sample_at(std::uint64_t, std::uint64_t, std::uint64_t place) const override {
        return place;
    }
    std::string describe() const override { return "numbers"; }
    bool make(std::uint64_t, std::uint64_t, std::uint64_t sample,
              data::detail::cells& out) const override {
        rows_made += 1;
        net::seem_to_take(making);
        if (sample == bad_sample) throw std::runtime_error("bad everywhere");
        put(static_cast<std::int64_t>(sample) * 3, out);
        return true;
    }
    bool finish(wire::reader& from, std::uint64_t, std::uint64_t, std::uint64_t,
                data::detail::cells& out) const override {
        net::seem_to_take(receiving);
        std::int64_t value = 0;
        if (!from.fixed(value)) from.status().value();
        put(value, out);
        return true;
    }
    static void put(std::int64_t value, data::detail::cells& out) {
        auto* const kept = data::arena::current().array<std::int64_t>(1).data();
        *kept = value;
        auto number = data::detail::number_cell<std::int64_t>();
        number.data = reinterpret_cast<const std::byte*>(kept);
        out = {number};
    }
    duration making{}, receiving{};
    std::uint64_t bad_sample = 1000;
    mutable int helpers_made = 0, rows_made = 0;
    data::helpers wanted() const override { return {.most = 1, .cpus = 1}; }
    task<std::unique_ptr<data::detail::row_helper>> make_helper() const override {
        helpers_made += 1;
        if (asked_ != nullptr) co_return std::make_unique<silent_helper>(asked_);
        co_return std::make_unique<scripted_helper>(answer_);
    }

private:
    int* asked_ = nullptr;
    scripted_helper::script answer_;
};

task<void> end(scope* work) {
    work->cancel();
    auto joined = work->join();
    try {
        co_await joined;
    } catch (const error& e) {
        CHECK(e.code() == errc::cancelled);
    }
}

task<void> go_on_elsewhere(int* asked, std::vector<std::uint64_t>* came) {
    const auto slots = std::make_shared<data::slot_pool>(1); // room for one slot
    data::detail::engine_options how;
    data::detail::row_engine engine(
        std::make_shared<numbers>(asked), how, slots, nullptr,
        [&](data::detail::finished_batch made) { came->push_back(made.generation); },
        [](const std::string&) {});
    slots->on_return([&] { engine.room_changed(); });
    const data::detail::dealing deal{.size = 100, .global_batch = 20};
    scope work;
    work.spawn(engine.serve());
    engine.restart(1, batch_request::of(deal, 0, 0, 0));
    while (*asked == 0) co_await sleep_for(1ms);
    engine.restart(2, batch_request::of(deal, 0, 40, 0)); // the helper has rows of the first batch
    co_await sleep_for(10s);
    auto ended_work = end(&work);
    co_await ended_work;
    slots->on_return({});
    CHECK(slots->slots() == 0);
}

TEST_CASE("a forgotten batch gives its memory back though a helper never answers") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        int asked = 0;
        std::vector<std::uint64_t> came;
        sim::loop loop(seed);
        loop.run(go_on_elsewhere(&asked, &came));
        REQUIRE(!came.empty());
        CHECK(came.back() == 2);
    }
}

task<void> ask_late(std::shared_ptr<numbers> program, int* before, int* after) {
    const auto slots = std::make_shared<data::slot_pool>(1 << 20);
    data::detail::row_engine engine(
        program, {}, slots, nullptr, [](const data::detail::finished_batch&) {},
        [](const std::string&) {});
    scope work;
    work.spawn(engine.serve());
    co_await sleep_for(60s);
    *before = program->helpers_made;
    engine.restart(1, batch_request::of({.size = 100, .global_batch = 20}, 0, 0, 0));
    co_await sleep_for(1s);
    *after = program->helpers_made;
    auto ended_work = end(&work);
    co_await ended_work;
}

TEST_CASE("a loader that nobody asks takes no helper") {
    int asked = 0, before = -1, after = -1;
    sim::loop loop(1);
    loop.run(ask_late(std::make_shared<numbers>(&asked), &before, &after));
    CHECK(before == 0);
    CHECK(after == 1);
}

task<void> end_early(std::shared_ptr<numbers> program, int* before, int* after) {
    const auto slots = std::make_shared<data::slot_pool>(1 << 20);
    event first;
    data::detail::row_engine engine(
        program, {}, slots, nullptr, [&](const data::detail::finished_batch&) { first.set(); },
        [](const std::string&) {});
    scope work;
    work.spawn(engine.serve());
    engine.restart(1, batch_request::of({.size = 100, .global_batch = 20}, 0, 0, 0));
    auto came = first.wait();
    co_await came;
    *before = program->rows_made;
    auto ended_work = end(&work);
    co_await ended_work;
    *after = program->rows_made;
}

TEST_CASE("an engine that is cancelled ends with the range that has begun") {
    int asked = 0, before = 0, after = 0;
    const auto program = std::make_shared<numbers>(&asked);
    program->making = 1ms;
    sim::loop loop(1);
    loop.run(end_early(program, &before, &after));
    CHECK(before >= 20);
    CHECK(after - before <= 20); // 64 batches of 20 are planned ahead
}

/// What a helper should say.
data::detail::rows_answer right_answer(const data::detail::rows_request& wanted) {
    data::detail::rows_answer answer;
    wire::writer rows;
    for (const auto sample : wanted.samples) {
        answer.fates.push_back(data::detail::row_fate::made);
        rows.fixed(static_cast<std::int64_t>(sample) * 3);
    }
    answer.rows = std::move(rows).take();
    return answer;
}

struct outcome {
    std::vector<std::uint64_t> samples;
    std::vector<std::int64_t> values;
    std::vector<data::detail::bad_row> bad;
    std::string notes;
    std::vector<data::detail::executor_stats> stats;
};

/// Ten epochs of 100 rows.
task<void> make_all(std::shared_ptr<numbers> program, outcome* into) {
    const auto slots = std::make_shared<data::slot_pool>(1 << 20);
    std::size_t batches = 0;
    data::detail::row_engine* running = nullptr;
    event over;
    const auto deliver = [&](data::detail::finished_batch made) {
        batches += 1;
        const auto* const column =
            reinterpret_cast<const std::int64_t*>(made.memory ? made.memory->column(0) : nullptr);
        into->samples.insert(into->samples.end(), made.samples.begin(), made.samples.end());
        into->values.insert(into->values.end(), column, column + made.samples.size());
        into->bad.insert(into->bad.end(), made.bad.begin(), made.bad.end());
        running->taken(1);
        if (batches == 50) over.set();
    };
    data::detail::engine_options how;
    how.most_ahead = 3;
    data::detail::row_engine engine(program, how, slots, nullptr, deliver,
                                    [&](const std::string& line) { into->notes += line + "\n"; });
    running = &engine;
    slots->on_return([&] { engine.room_changed(); });
    scope work;
    work.spawn(engine.serve());
    engine.restart(1, batch_request::of({.size = 100, .global_batch = 20, .epochs = 10}, 0, 0, 0));
    auto ended = over.wait();
    co_await ended;
    into->stats = engine.stats();
    auto ended_work = end(&work);
    co_await ended_work;
    slots->on_return({});
}

outcome run_with(scripted_helper::script answer, duration making, duration receiving,
                 std::uint64_t seed, std::uint64_t bad_sample = 1000) {
    const auto program = std::make_shared<numbers>(std::move(answer));
    program->making = making;
    program->receiving = receiving;
    program->bad_sample = bad_sample;
    outcome made;
    sim::loop loop(seed);
    loop.run(make_all(program, &made));
    return made;
}

void check_rows(const outcome& made) {
    CHECK(made.bad.empty());
    REQUIRE(made.samples.size() == 1000);
    for (std::size_t i = 0; i < 1000; ++i) {
        CHECK(made.samples[i] == i % 100);
        CHECK(made.values[i] == std::int64_t(i % 100) * 3);
    }
}

TEST_CASE("a helper that answers nonsense is left out, and its rows are made here") {
    using data::detail::row_fate;
    const auto wrong = [](auto change) {
        return [change](const data::detail::rows_request& wanted) {
            auto answer = right_answer(wanted);
            change(answer);
            return answer;
        };
    };
    const std::vector<scripted_helper::script> scripts{
        wrong([](auto& a) { a.fates.pop_back(); }),
        wrong([](auto& a) { a.fates.push_back(row_fate::made); }),
        wrong([](auto& a) { a.fates.clear(); }),
        wrong([](auto& a) { a.fates[0] = row_fate::bad; }), // without its error
        wrong([](auto& a) { a.bad.push_back({0, error(errc::io, "of no row")}); }),
        wrong([](auto& a) { a.rows.pop_back(); }),
        wrong([](auto& a) { a.rows.push_back(std::byte{}); }),
        wrong([](auto& a) { a.rows.clear(); }),
        wrong([](auto& a) { a.fates[0] = static_cast<row_fate>(17); }),
    };
    for (std::size_t i = 0; i < scripts.size(); ++i) {
        INFO("answer " << i);
        const auto made = run_with(scripts[i], 1ms, {}, i + 1);
        check_rows(made);
        CHECK(made.notes.find("helper scripted is left out") != std::string::npos);
        INFO(made.notes);
        CHECK(made.stats[1].rows == 0);
    }
}

/// A helper at which some rows fail.
scripted_helper::script failing_at(std::function<bool(std::uint64_t)> fails) {
    return [fails](const data::detail::rows_request& wanted) {
        data::detail::rows_answer answer;
        wire::writer rows;
        for (const auto sample : wanted.samples) {
            const bool is_bad = fails(sample);
            answer.fates.push_back(is_bad ? data::detail::row_fate::bad
                                          : data::detail::row_fate::made);
            if (is_bad)
                answer.bad.push_back({sample, error(errc::io, "a bad disk")});
            else
                rows.fixed(static_cast<std::int64_t>(sample) * 3);
        }
        answer.rows = std::move(rows).take();
        return answer;
    };
}

TEST_CASE("rows that fail at a helper alone are made here, and it is left out by its name") {
    const auto made =
        run_with(failing_at([](auto sample) { return sample % 10 == 7; }), 1ms, {}, 1);
    check_rows(made);
    INFO(made.notes);
    CHECK(made.notes.find(
              "helper scripted failed at a row that is good here: sample 17: a bad disk") !=
          std::string::npos);
    CHECK(made.notes.find("helper scripted is left out: 3 rows failed there and were good here") !=
          std::string::npos);
    CHECK(made.stats[1].refuted == 3);
}

TEST_CASE("a row that fails everywhere is bad, with the error of here, and no helper's fault") {
    const auto made =
        run_with(failing_at([](auto sample) { return sample == 13; }), 1ms, {}, 1, 13);
    REQUIRE(made.bad.size() == 10); // of ten epochs
    for (const auto& one : made.bad) {
        CHECK(one.sample == 13);
        CHECK(std::string(one.why.what()).find("bad everywhere") != std::string::npos);
    }
    CHECK(made.samples.size() == 990);
    CHECK(made.notes.empty());
    CHECK(made.stats[1].rows > 100);
    CHECK(made.stats[1].refuted == 0);
}

TEST_CASE("it is said when taking rows in costs as much as making them") {
    const auto dear = run_with(right_answer, 10ms, 20ms, 1);
    check_rows(dear);
    CHECK(dear.notes.find("helpers do not pay here: taking a row in costs about") !=
          std::string::npos);
    CHECK_FALSE(data::detail::pays(dear.stats[0], dear.stats[1]));
    const auto cheap = run_with(right_answer, 10ms, 1ms, 1);
    check_rows(cheap);
    CHECK(cheap.notes.empty());
    CHECK(cheap.stats[1].rows > 64);
}

/// Numbers whose sample 3 does not end until it is let go.
class waiting_numbers final : public data::detail::row_program {
public:
    explicit waiting_numbers(std::shared_future<void> go) : go_(std::move(go)) {}
    std::uint64_t size() const override { return 10; }
    std::uint64_t sample_at(std::uint64_t, std::uint64_t, std::uint64_t place) const override {
        return place;
    }
    std::string name_of(std::uint64_t sample) const override {
        return "file-" + std::to_string(sample);
    }
    std::string step_name(std::uint32_t) const override { return "map(wait)"; }
    std::string describe() const override { return "waiting numbers"; }
    bool make(std::uint64_t, std::uint64_t, std::uint64_t sample,
              data::detail::cells& out) const override {
        if (sample == 3) go_.wait();
        numbers::put(static_cast<std::int64_t>(sample), out);
        return true;
    }

private:
    std::shared_future<void> go_;
};

struct slow_run {
    std::promise<void> gate;
    std::vector<std::string> notes;
    std::size_t rows = 0;
    net::offload_pool pool{1};
};

task<void> make_slowly(slow_run* run) {
    const auto program = std::make_shared<waiting_numbers>(run->gate.get_future().share());
    const auto slots = std::make_shared<data::slot_pool>(1 << 20);
    data::detail::engine_options how;
    how.slow_row = 20ms;
    event over;
    data::detail::row_engine engine(
        program, how, slots, &run->pool,
        [&](const data::detail::finished_batch& made) {
            run->rows += made.samples.size();
            over.set();
        },
        [&](const std::string& line) {
            run->notes.push_back(line);
            if (run->notes.size() == 2) run->gate.set_value();
        });
    scope work;
    work.spawn(engine.serve());
    const data::detail::dealing deal{.size = 10, .global_batch = 10, .epochs = 1};
    engine.restart(1, batch_request::of(deal, 0, 0, 0));
    auto came = over.wait();
    co_await came;
    work.cancel();
    auto joined = as_result(work.join());
    (void)co_await joined;
}

TEST_CASE("a row that takes long is named, with what it is in and for how long") {
    slow_run run;
    {
        net::loop_thread thread("rows");
        thread.run([&run] { return make_slowly(&run); });
    }
    CHECK(run.rows == 10);
    REQUIRE(run.notes.size() >= 2); // again after twice the time
    CHECK(run.notes[0].starts_with("sample 3 (file-3), map(wait): has taken 0 s"));
}

} // namespace row_engine_test
