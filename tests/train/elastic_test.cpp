// SPDX-License-Identifier: Apache-2.0
// A training whose ranks change: threads that are lost, leave and join.
#include <skein/metrics/classification.hpp>
#include <skein/metrics/perplexity.hpp>
#include <skein/sim/local_elastic.hpp>
#include <skein/train/batch_growth.hpp>
#include <skein/train/elastic.hpp>
#include <skein/train/elastic_place.hpp>

#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>

namespace elastic_test {

using namespace train_test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Samples in their order, of which each rank takes its share; the state is the place in the whole.
struct one_place {
    numbers all{64};
    std::uint64_t at = 0, epoch = 0;
    bool by_rank = false; ///< not so: then each rank's state is its own
    int rank = 0;

    std::optional<sample_batch> next(const stream_share& share) {
        if (share.epoch > epoch) {
            epoch = share.epoch;
            at = 0;
        }
        rank = share.rank;
        if (at + share.global_batch > all.n) return std::nullopt;
        std::vector<std::uint64_t> ids;
        for (std::uint64_t i = 0; i < share.samples; ++i) ids.push_back(at + share.begin + i);
        if (share.is_last) at += share.global_batch;
        return all.batch(ids);
    }
    [[nodiscard]] std::string state() const {
        return fmt::format("{} {} {}", epoch, at, by_rank ? rank : 0);
    }
    void restore(std::string_view saved) {
        std::istringstream in{std::string(saved)};
        in >> epoch >> at;
    }
};

/// Where a rank may be lost besides in its loss.
enum class point { loss, step, evaluation, checkpoint };

/// A callback that counts, keeps its count, and tells the test.
struct step_counter {
    std::uint64_t* step;
    std::function<void(point, std::uint64_t step)> at{};
    std::uint64_t told = 0; ///< steps

    decision on_step(const step_info& now) {
        *step = now.step;
        ++told;
        if (at) at(point::step, now.step);
        return {};
    }
    void on_eval(const eval_info& now) const {
        if (at) at(point::evaluation, now.step);
    }
    void on_checkpoint(const checkpoint_info& now) const {
        if (at) at(point::checkpoint, now.step);
    }
    [[nodiscard]] std::string state() const { return std::to_string(told); }
    void restore(std::string_view saved) { told = std::stoull(std::string(saved)); }
};

/// A training of threads. What happens when is said by `during`, which each rank calls with its id
/// in every loss.
struct elastic_run {
    explicit elastic_run(const std::string& folder, int least = 1, int most = 4)
        : job(least, most), config(quiet_config(folder)) {
        config.scaling.workers = {least, most};
        config.write_files = true;
        config.max_steps = 12;
    }

    sk::sim::local_elastic job;
    run_config config;
    std::function<void(std::uint64_t id, std::uint64_t step)> during{};
    std::function<void(std::uint64_t id, point where, std::uint64_t step)> behind{};
    bool measures = false; ///< counts, and a sum of real numbers whose bits show its order
    std::optional<one_place> stream{}; ///< in place of the numbered data
    std::optional<sk::batch_growth_options> growth{};

    std::mutex guard; // the fields below
    std::map<std::uint64_t, std::vector<float>> weights_of;
    std::map<std::uint64_t, fit_result> results;
    std::map<std::uint64_t, std::uint64_t> told_steps;
    std::map<std::uint64_t, std::string> errors;
    std::map<std::uint64_t, bool> left;
    std::vector<std::thread> threads;

    std::uint64_t start() { return start(1).front(); }
    /// All are known before the first one asks: it would be a world of its own, and train to its end.
    /// All have their weights by then, too: who asks first warms up, and draws from the generator that
    /// these threads share.
    std::vector<std::uint64_t> start(int count) {
        std::vector<std::pair<sk::spmd::elastic_world*, Zoo>> added;
        std::vector<std::uint64_t> ids;
        for (int i = 0; i < count; ++i)
            ids.push_back(added.emplace_back(&job.add(), make_zoo(shape::plain)).first->id());
        for (const auto& [mine, net] : added)
            threads.emplace_back([this, mine, net] { live(*mine, net); });
        return ids;
    }
    void end() {
        for (std::size_t i = 0; i < threads.size(); ++i) threads[i].join();
    }
    void live(sk::spmd::elastic_world& mine, Zoo net) {
        try {
            at::set_num_threads(1);
            train(mine, std::move(net));
        } catch (const rank_left&) {
            const std::lock_guard lock(guard);
            left[mine.id()] = true;
        } catch (...) {
            const auto why = sk::to_error(std::current_exception());
            const std::lock_guard lock(guard);
            errors[mine.id()] = why.what();
        }
    }
    void train(sk::spmd::elastic_world& mine, Zoo net) {
        sk::dist::comm_options options;
        options.model = "shm";
        elastic_place place(mine, options);
        context ctx({.rank = 0, .world_size = 1, .local_size = 1, .host = "here", .job_id = "j"},
                    nullptr, nullptr);
        ctx.use_elastic(&place);
        const numbers data{64};
        std::uint64_t step = 0;
        const auto loss = [&](Zoo& net, const sample_batch& batch, skein::train::stage& here) {
            if (during) during(mine.id(), step);
            const auto scores = net->forward(batch.x, batch.ids).to(torch::kFloat);
            if (measures) here.update(scores, batch.y);
            return torch::nn::functional::cross_entropy(scores, batch.y);
        };
        const auto told = [&](point where, std::uint64_t at) {
            if (behind) behind(mine.id(), where, at);
        };
        if (growth) {
            sk::Trainer<sk::Elastic<sk::DDP<>>, step_counter, sk::batch_growth> trainer(
                ctx, config, step_counter{&step, told}, sk::batch_growth(*growth));
            const auto result =
                trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, loss, data, data);
            const std::lock_guard lock(guard);
            weights_of[mine.id()] = weights(*net);
            results[mine.id()] = result;
            return;
        }
        sk::Trainer<sk::Elastic<sk::DDP<>>, step_counter> trainer(ctx, config,
                                                                  step_counter{&step, told});
        if (measures) {
            namespace metrics = sk::metrics;
            trainer.measure(
                {metrics::on("train", metrics::accuracy{.classes = 4}, metrics::perplexity{}),
                 metrics::on("val", metrics::accuracy{.classes = 4}, metrics::perplexity{})});
        }
        auto places = stream;
        const auto result =
            places ? trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, loss, *places, data)
                   : trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, loss, data, data);
        const std::lock_guard lock(guard);
        weights_of[mine.id()] = weights(*net);
        told_steps[mine.id()] = trainer.template callback<step_counter>().told;
        results[mine.id()] = result;
    }
};

std::string text_of_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream all;
    all << in.rdbuf();
    return all.str();
}

} // namespace

TEST_CASE("elastic: ranks that nothing happens to train as DDP does", "[train][elastic]") {
    scratch dir;
    elastic_run run(dir.path);
    const auto ids = run.start(2);
    run.end();
    for (const auto& [id, why] : run.errors) FAIL_CHECK(id << ": " << why);
    REQUIRE(run.weights_of.size() == 2);
    CHECK(run.weights_of[ids[0]] == run.weights_of[ids[1]]);
    CHECK(run.results[ids[0]].steps == 12);
    std::vector<float> expected;
    scratch plain;
    run_world(2, [&](context& ctx) {
        auto config = quiet_config(plain.path);
        config.max_steps = 12;
        auto net = make_zoo(shape::plain);
        const numbers data{64};
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, zoo_loss, data, data);
        if (ctx.is_first()) expected = weights(*net);
    });
    CHECK(run.weights_of[ids[0]] == expected);
}

TEST_CASE("elastic: a rank is lost, the first one too, and the others go on", "[train][elastic]") {
    for (const bool the_first : {false, true}) {
        INFO("the first: " << the_first);
        scratch dir;
        elastic_run run(dir.path);
        std::atomic<bool> done{false};
        run.during = [&](std::uint64_t id, std::uint64_t step) {
            if (id != (the_first ? 1U : 3U) || step != 5 || done.exchange(true)) return;
            const sk::error why(sk::errc::peer_lost, "killed by a test");
            run.job.lose(id, why);
            throw sk::error(sk::errc::aborted, "it is dead");
        };
        run.start(3);
        run.end();
        REQUIRE(run.errors.size() == 1);
        REQUIRE(run.weights_of.size() == 2);
        const auto& a = *run.weights_of.begin();
        const auto& b = *std::next(run.weights_of.begin());
        CHECK(a.second == b.second);
        for (const auto& [id, result] : run.results) CHECK(result.steps == 12);
        const auto csv = text_of_file(dir.path + "/run/metrics.csv");
        CHECK(std::ranges::count(csv, '\n') == 13); // a header, and each step once
        CHECK_THAT(text_of_file(dir.path + "/run/events.jsonl"),
                   ContainsSubstring("killed by a test"));
    }
}

TEST_CASE("elastic: a rank joins, and has the state of the others", "[train][elastic]") {
    scratch dir;
    elastic_run run(dir.path);
    std::atomic<bool> done{false};
    std::uint64_t joiner = 0;
    run.during = [&](std::uint64_t id, std::uint64_t step) {
        if (id != 1 || step != 4 || done.exchange(true)) return;
        joiner = run.start();
        run.job.wait_for_joiner();
    };
    run.threads.reserve(8);
    run.start(2);
    run.end();
    for (const auto& [id, why] : run.errors) FAIL_CHECK(id << ": " << why);
    REQUIRE(run.weights_of.size() == 3);
    CHECK(run.weights_of[1] == run.weights_of[2]);
    CHECK(run.weights_of[1] == run.weights_of[joiner]);
    CHECK(run.results[joiner].steps == 12);
    CHECK(run.job.generation() == 2);
    const auto csv = text_of_file(dir.path + "/run/metrics.csv");
    CHECK(std::ranges::count(csv, '\n') == 13);
}

TEST_CASE("elastic: a plan that the next world cannot hold is cut, and comes back",
          "[train][elastic]") {
    scratch dir;
    elastic_run run(dir.path);
    run.config.global_batch = 8;
    run.config.accumulation = 2;
    run.config.max_steps = 24;
    run.growth = {.factor = 1.25, .at_steps = {2}, .more_micro_batches = true}; // 10 in 3 parts
    std::atomic<bool> added{false}, lost{false};
    std::uint64_t joiner = 0; // of the one thread that starts and loses it
    run.during = [&](std::uint64_t id, std::uint64_t step) {
        if (id != 1) return;
        if (step == 4 && !added.exchange(true)) { // 4 ranks of 3 parts: 12
            joiner = run.start();
            run.job.wait_for_joiner();
        }
        if (step == 8 && !lost.exchange(true))
            run.job.lose(joiner, sk::error(sk::errc::peer_lost, "killed by a test"));
    };
    run.threads.reserve(8);
    run.start(3);
    run.end();
    for (const auto& [id, why] : run.errors) {
        INFO(id << ": " << why);
        CHECK(id == joiner);
    }
    CHECK(run.results[1].steps > 8);
    const auto events = text_of_file(dir.path + "/run/events.jsonl");
    CHECK_THAT(events, ContainsSubstring("\"what\":\"micro_batches\",\"from\":3,\"to\":2"));
    CHECK_THAT(events, ContainsSubstring("\"what\":\"micro_batches\",\"from\":2,\"to\":3"));
}

TEST_CASE("elastic: a rank leaves in order, and nothing is redone", "[train][elastic]") {
    scratch dir;
    elastic_run run(dir.path);
    std::atomic<int> losses{0};
    std::vector<sk::spmd::elastic_world*> worlds;
    std::atomic<bool> done{false};
    run.threads.reserve(8);
    auto& leaver = run.job.add();
    auto& stays = run.job.add();
    run.during = [&](std::uint64_t id, std::uint64_t step) {
        if (id == stays.id()) ++losses;
        if (id == leaver.id() && step == 6 && !done.exchange(true)) leaver.ask_to_leave("told to");
    };
    for (auto* const each : {&leaver, &stays})
        run.threads.emplace_back(
            [&run, each, net = make_zoo(shape::plain)] { run.live(*each, net); });
    run.end();
    for (const auto& [id, why] : run.errors) FAIL_CHECK(id << ": " << why);
    CHECK(run.left[leaver.id()]);
    CHECK(run.results[stays.id()].steps == 12);
    const auto csv = text_of_file(dir.path + "/run/metrics.csv");
    CHECK(std::ranges::count(csv, '\n') == 13);
}

TEST_CASE("elastic: a stream with one state for all goes on, one for each rank is refused",
          "[train][elastic]") {
    for (const bool by_rank : {false, true}) {
        INFO("a state for each rank: " << by_rank);
        scratch dir;
        elastic_run run(dir.path);
        run.stream = one_place{.by_rank = by_rank};
        run.config.epochs = 4;
        run.config.max_steps = 0;
        std::atomic<bool> done{false};
        std::uint64_t joiner = 0;
        run.threads.reserve(8);
        run.during = [&](std::uint64_t id, std::uint64_t step) {
            if (id != 1 || step != 7 || done.exchange(true)) return;
            joiner = run.start();
            run.job.wait_for_joiner();
        };
        run.start(2);
        run.end();
        if (by_rank) {
            REQUIRE(run.errors.size() == 2);
            CHECK_THAT(run.errors[1], ContainsSubstring("a state for each rank"));
            continue;
        }
        for (const auto& [id, why] : run.errors) FAIL_CHECK(id << ": " << why);
        REQUIRE(run.weights_of.size() == 3);
        CHECK(run.weights_of[1] == run.weights_of[joiner]);
        CHECK(run.results[1].steps == 20);
        CHECK(run.results[joiner].steps == 20);
    }
}

TEST_CASE("elastic: with logical shards the bits are those of one undisturbed rank",
          "[train][elastic]") {
    const auto train = [](const std::string& folder, bool disturbed) {
        elastic_run run(folder);
        run.measures = true;
        run.config.scaling.logical_shards = 4;
        run.config.max_steps = 16;
        run.config.eval_every = 5;
        std::atomic<int> done{0};
        run.threads.reserve(16);
        if (disturbed)
            run.during = [&](std::uint64_t id, std::uint64_t step) {
                if (id == 1 && step == 4 && done.exchange(1) == 0) {
                    run.job.lose(1, sk::error(sk::errc::peer_lost, "killed by a test"));
                    throw sk::error(sk::errc::aborted, "it is dead");
                }
                if (id == 2 && step == 8 && done.exchange(2) == 1) {
                    run.start();
                    run.job.wait_for_joiner();
                }
                if (id == 3 && step == 13 && done.exchange(3) == 2) {
                    run.job.lose(3, sk::error(sk::errc::peer_lost, "killed by a test"));
                    throw sk::error(sk::errc::aborted, "it is dead");
                }
            };
        run.start(disturbed ? 3 : 1);
        run.end();
        CHECK(done == (disturbed ? 3 : 0));
        CHECK(run.errors.size() == (disturbed ? 2 : 0));
        REQUIRE_FALSE(run.weights_of.empty());
        for (const auto& [id, weights] : run.weights_of)
            CHECK(weights == run.weights_of.begin()->second);
        return run.weights_of.begin()->second;
    };
    scratch quiet, loud;
    CHECK(train(quiet.path, false) == train(loud.path, true));
    CHECK(text_of_file(quiet.path + "/run/metrics.csv") ==
          text_of_file(loud.path + "/run/metrics.csv"));
}

TEST_CASE("elastic: a rank is lost at any point of a step's end, and each step is there once",
          "[train][elastic]") {
    const auto train = [](const std::string& folder, std::optional<point> where,
                          std::uint64_t culprit) {
        elastic_run run(folder);
        run.measures = true;
        run.config.scaling.logical_shards = 4; // so that the numbers do not show who made them
        run.config.eval_every = 3;
        run.config.checkpoint.enabled = true;
        run.config.checkpoint.every = 3;
        std::atomic<bool> done{false};
        if (where)
            run.behind = [&](std::uint64_t id, point now, std::uint64_t step) {
                if (id != culprit || now != *where || step != 6 || done.exchange(true)) return;
                run.job.lose(id, sk::error(sk::errc::peer_lost, "killed by a test"));
                throw sk::error(sk::errc::aborted, "it is dead");
            };
        run.start(where ? 3 : 1);
        run.end();
        CHECK(run.errors.size() == (where ? 1 : 0));
        REQUIRE_FALSE(run.weights_of.empty());
        for (const auto& [id, weights] : run.weights_of)
            CHECK(weights == run.weights_of.begin()->second);
        for (const auto& [id, told] : run.told_steps) CHECK(told == 12);
        return run.weights_of.begin()->second;
    };
    scratch quiet;
    const auto expected = train(quiet.path, std::nullopt, 0);
    const auto rows = text_of_file(quiet.path + "/run/metrics.csv");
    for (const auto where : {point::step, point::evaluation, point::checkpoint})
        for (const std::uint64_t culprit : {1U, 2U, 3U}) {
            INFO("rank process " << culprit << " at " << static_cast<int>(where));
            scratch loud;
            CHECK(train(loud.path, where, culprit) == expected);
            CHECK(text_of_file(loud.path + "/run/metrics.csv") == rows);
        }
}

TEST_CASE("elastic: a rank is lost or joins with a save in flight, and nothing shows it",
          "[train][elastic]") {
    enum class change { none, lost, joins };
    const auto train = [](const std::string& folder, change what, std::uint64_t culprit,
                          std::uint64_t at) {
        elastic_run run(folder);
        run.measures = true;
        run.config.scaling.logical_shards = 4;
        run.config.eval_every = 3;
        run.config.checkpoint.enabled = true;
        run.config.checkpoint.every = 2;
        run.config.checkpoint.asynchronous = true;
        std::atomic<bool> done{false};
        run.behind = [&](std::uint64_t id, point now, std::uint64_t step) {
            if (what == change::none || now != point::step || step != at) return;
            if (id != culprit || done.exchange(true)) return;
            if (what == change::joins) {
                (void)run.start();
                run.job.wait_for_joiner();
                return;
            }
            run.job.lose(id, sk::error(sk::errc::peer_lost, "killed by a test"));
            throw sk::error(sk::errc::aborted, "it is dead");
        };
        run.threads.reserve(8);
        run.start(what == change::none ? 1 : 3);
        run.end();
        CHECK(run.errors.size() == (what == change::lost ? 1 : 0));
        REQUIRE_FALSE(run.weights_of.empty());
        for (const auto& [id, weights] : run.weights_of)
            CHECK(weights == run.weights_of.begin()->second);
        for (const auto& [id, result] : run.results)
            CHECK_THAT(result.checkpoint, ContainsSubstring("step-00000012"));
        sk::posix_disk disk;
        CHECK(checkpointer::open(disk, folder + "/run/checkpoints/step-00000012").has_value());
        return run.weights_of.begin()->second;
    };
    scratch quiet;
    const auto expected = train(quiet.path, change::none, 0, 0);
    const auto rows = text_of_file(quiet.path + "/run/metrics.csv");
    for (const auto what : {change::lost, change::joins})
        for (const std::uint64_t culprit : {1U, 3U})
            for (const std::uint64_t step : {6U, 7U}) { // before and behind a save's beginning
                INFO("rank process " << culprit << " at " << step << ", "
                                     << (what == change::lost ? "lost" : "joined"));
                scratch loud;
                CHECK(train(loud.path, what, culprit, step) == expected);
                CHECK(text_of_file(loud.path + "/run/metrics.csv") == rows);
            }
}

TEST_CASE("elastic: a rank that joins has the buffers of rank 0", "[train][elastic]") {
    struct counting_net : torch::nn::Module {
        counting_net() : norm(8), out(8, 4) {
            register_module("norm", norm);
            register_module("out", out);
        }
        torch::Tensor forward(const torch::Tensor& x) { return out(norm(x)); }
        torch::nn::BatchNorm1d norm;
        torch::nn::Linear out;
    };
    sk::sim::local_elastic job(1, 4);
    std::mutex guard;
    std::map<std::uint64_t, std::vector<float>> statistics;
    std::vector<std::thread> threads;
    threads.reserve(8);
    std::atomic<bool> done{false};
    scratch dir;
    std::function<void(sk::spmd::elastic_world&)> live;
    const auto start = [&] {
        auto& mine = job.add();
        threads.emplace_back([&live, &mine] { live(mine); });
    };
    std::vector<std::string> errors;
    live = [&](sk::spmd::elastic_world& mine) {
        try {
            at::set_num_threads(1);
            sk::dist::comm_options options;
            options.model = "shm";
            elastic_place place(mine, options);
            context ctx({.rank = 0, .world_size = 1, .local_size = 1, .host = "here"}, nullptr,
                        nullptr);
            ctx.use_elastic(&place);
            auto config = quiet_config(dir.path);
            config.max_steps = 8;
            std::uint64_t step = 0;
            auto net = std::make_shared<counting_net>();
            const numbers data{64};
            const auto at = [&](point where, std::uint64_t now) {
                if (where != point::step || now != 3 || mine.id() != 1 || done.exchange(true))
                    return;
                start();
                job.wait_for_joiner();
            };
            sk::Trainer<sk::Elastic<sk::DDP<>>, step_counter> trainer(ctx, config,
                                                                      step_counter{&step, at});
            (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, class_loss, data, data);
            const auto mean = net->norm->running_mean.contiguous();
            const auto* const from = mean.const_data_ptr<float>();
            const std::lock_guard lock(guard);
            statistics[mine.id()].assign(from, from + mean.numel());
        } catch (...) {
            const std::lock_guard lock(guard);
            errors.emplace_back(sk::to_error(std::current_exception()).what());
        }
    };
    start();
    start();
    for (std::size_t i = 0; i < threads.size(); ++i) threads[i].join();
    for (const auto& why : errors) FAIL_CHECK(why);
    REQUIRE(statistics.size() == 3);
    CHECK(statistics[2] == statistics[1]);
    CHECK(statistics[3] == statistics[1]);
}

} // namespace elastic_test
