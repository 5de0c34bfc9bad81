// SPDX-License-Identifier: Apache-2.0
// Sums over ranks and the steps of an epoch: on any number of ranks, over a resume, and with ranks
// that are lost and join.
#include <skein/sim/local_elastic.hpp>
#include <skein/train/accumulator.hpp>
#include <skein/train/detail/epoch_sums.hpp>
#include <skein/train/elastic.hpp>
#include <skein/train/elastic_place.hpp>

#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace accumulator_test {

using namespace train_test;
using Catch::Matchers::ContainsSubstring;

namespace {

constexpr std::uint64_t samples = 60; // five steps of 12, in each of three epochs
constexpr std::int64_t epochs = 3;

run_config epoch_config(const std::string& folder) {
    auto config = quiet_config(folder);
    config.max_steps = 0;
    config.epochs = epochs;
    config.write_files = true;
    return config;
}

using all_sums = std::vector<std::map<std::string, double>>; // by epoch

/// What it has to come to: by each sample's number, so that a sample twice or never shows.
all_sums wanted() {
    double numbers = 0.0;
    for (std::uint64_t id = 0; id < samples; ++id) numbers += static_cast<double>(id * id);
    return {std::size_t(epochs),
            {{"numbers", numbers}, {"steps", 5.0}, {"total", double(samples)}}};
}

/// A loop of epochs; what it saw at their ends.
///   during  called in each micro-batch, before its backward pass and behind it
template <class Trainer>
all_sums train_epochs(
    Trainer& trainer, Zoo& net, const context& ctx, const numbers& data,
    const std::function<void(session&, std::uint64_t step, bool behind)>& during) {
    auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
    accumulator a(session);
    all_sums seen;
    for (auto& epoch : remaining_epochs_until(session, epochs, data)) {
        for (auto& step : epoch) {
            expect(session.current_epoch() == epoch.number());
            for (auto& micro : step) {
                const auto number = step.number();
                if (during) during(session, number, false);
                session.backward(zoo_loss(net, micro));
                for (const auto id : micro.ids) a["numbers"] += static_cast<double>(id * id);
                a["total"] += static_cast<double>(micro.ids.size());
                if (during) during(session, number, true);
            }
            if (ctx.is_first()) a["steps"] += 1.0;
        }
        const auto sums = a.synchronized();
        expect(sums.epoch() == epoch.number());
        seen.resize(epoch.number() + 1);
        seen[epoch.number()] = sums.all();
    }
    expect(session.finished_epochs() == std::uint64_t(epochs));
    expect(session.current_epoch() == std::uint64_t(epochs));
    (void)session.finish();
    return seen;
}

/// A rank of an elastic job, as a thread.
struct elastic_epochs {
    explicit elastic_epochs(const std::string& folder, int least, int most)
        : job(least, most), config(epoch_config(folder)) {
        config.scaling.workers = {least, most};
    }
    sk::sim::local_elastic job;
    run_config config;
    std::function<void(std::uint64_t id, session&, std::uint64_t step, bool behind)> during{};
    std::mutex guard; // the fields below
    std::map<std::uint64_t, all_sums> seen;
    std::map<std::uint64_t, std::string> errors;
    std::vector<std::thread> threads;

    void start(int count) {
        std::vector<std::pair<sk::spmd::elastic_world*, Zoo>> added;
        for (int i = 0; i < count; ++i) added.emplace_back(&job.add(), make_zoo(shape::plain));
        for (const auto& [mine, net] : added)
            threads.emplace_back([this, mine, net] { live(*mine, net); });
    }
    void end() {
        for (std::size_t i = 0; i < threads.size(); ++i) threads[i].join();
    }
    void live(sk::spmd::elastic_world& mine, Zoo net) {
        try {
            at::set_num_threads(1);
            sk::dist::comm_options options;
            options.model = "shm";
            elastic_place place(mine, options);
            context ctx(
                {.rank = 0, .world_size = 1, .local_size = 1, .host = "here", .job_id = "j"},
                nullptr, nullptr);
            ctx.use_elastic(&place);
            sk::Trainer<sk::Elastic<sk::DDP<>>> trainer(ctx, config);
            const numbers data{samples};
            auto mine_seen = train_epochs(trainer, net, ctx, data,
                                          [&](session& of, std::uint64_t step, bool behind) {
                                              if (during) during(mine.id(), of, step, behind);
                                          });
            const std::lock_guard lock(guard);
            seen[mine.id()] = std::move(mine_seen);
        } catch (...) {
            const auto why = sk::to_error(std::current_exception());
            const std::lock_guard lock(guard);
            errors[mine.id()] = why.what();
        }
    }
};

} // namespace

TEST_CASE("sums of an epoch are those of all samples, on one, two and three ranks") {
    for (const int ranks : {1, 2, 3})
        for (const int parts : {1, 2}) {
            INFO(ranks << " ranks, " << parts << " micro-batches");
            scratch dir;
            std::mutex guard;
            std::vector<all_sums> seen;
            run_world(ranks, [&](context& ctx) {
                auto config = epoch_config(dir.path);
                config.accumulation = parts;
                sk::Trainer<sk::DDP<>> trainer(ctx, config);
                auto net = make_zoo(shape::plain);
                const numbers data{samples};
                auto mine = train_epochs(trainer, net, ctx, data, {});
                const std::lock_guard lock(guard);
                seen.push_back(std::move(mine));
            });
            CHECK(seen == std::vector(static_cast<std::size_t>(ranks), wanted()));
            CHECK_THAT(dir.text("run/metrics.csv"), ContainsSubstring("sum/total")); // of each step
        }
}

TEST_CASE("a step that is taken back is in the sums once") {
    scratch dir;
    run_world(2, [&](context& ctx) {
        sk::Trainer<sk::DDP<>> trainer(ctx, epoch_config(dir.path));
        auto net = make_zoo(shape::plain);
        const numbers data{samples};
        std::map<std::uint64_t, int> redone;
        const auto seen = train_epochs(trainer, net, ctx, data,
                                       [&](session& of, std::uint64_t step, bool behind) {
                                           if (behind && step % 4 == 0 && redone[step]++ == 0)
                                               of.redo();
                                       });
        expect(seen == wanted());
        expect(redone.size() == 3);
    });
}

TEST_CASE("sums go on where a run is resumed, amid an epoch and at its end, with other ranks") {
    for (const std::uint64_t stop_at : {3, 5, 7, 12}) {
        INFO("stopped in step " << stop_at);
        scratch dir;
        const auto train = [&](int ranks, bool resumes) {
            std::mutex guard;
            all_sums seen;
            run_world(ranks, [&](context& ctx) {
                auto config = epoch_config(dir.path);
                config.checkpoint.enabled = true;
                config.resume = resumes ? resume_mode::latest : resume_mode::fresh;
                sk::Trainer<sk::DDP<>> trainer(ctx, config);
                auto net = make_zoo(shape::plain);
                const numbers data{samples};
                auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
                accumulator a(session);
                all_sums mine;
                for (auto& epoch : remaining_epochs_until(session, epochs, data)) {
                    for (auto& step : epoch) {
                        for (auto& micro : step) {
                            session.backward(zoo_loss(net, micro));
                            for (const auto id : micro.ids)
                                a["numbers"] += static_cast<double>(id * id);
                            a["total"] += static_cast<double>(micro.ids.size());
                        }
                        if (ctx.is_first()) a["steps"] += 1.0;
                        if (!resumes && step.number() == stop_at) session.request_stop();
                    }
                    mine.resize(epoch.number() + 1);
                    mine[epoch.number()] = a.synchronized().all();
                }
                (void)session.finish();
                if (!ctx.is_first()) return;
                const std::lock_guard lock(guard);
                seen = std::move(mine);
            });
            return seen;
        };
        const auto before = train(2, false);
        const auto behind = train(stop_at % 2 == 0 ? 3 : 1, true);
        const auto all = wanted();
        REQUIRE(behind.size() == all.size());
        for (std::size_t e = 0; e < all.size(); ++e) {
            INFO("epoch " << e);
            const bool is_whole = e < before.size() && before[e] == all[e];
            CHECK((is_whole || behind[e] == all[e]));
        }
        CHECK(behind.back() == all.back());
    }
}

TEST_CASE("what is added between two epochs is refused, and counts in neither") {
    scratch dir;
    run_world(1, [&](context& ctx) {
        sk::Trainer<sk::DDP<>> trainer(ctx, epoch_config(dir.path));
        auto net = make_zoo(shape::plain);
        const numbers data{samples};
        auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
        accumulator a(session);
        std::string why;
        for (auto& epoch : remaining_epochs_until(session, epochs, data)) {
            for (auto& step : epoch)
                for (auto& micro : step) session.backward(zoo_loss(net, micro));
            try {
                a["test"] += 1.0;
            } catch (const sk::error& e) {
                why = e.what();
            }
            break;
        }
        expect(why.find("'test' is added to behind the last step of epoch 0") != std::string::npos);
        expect(why.find("session.evaluate_on") != std::string::npos);
        expect(a.synchronized().all().empty());
    });
}

TEST_CASE("sums of fractions come back from a checkpoint to the same bits") {
    skein::train::detail::epoch_sums sums;
    sums.begin_step(4);
    sums.take_step({{"loss", 1.0}, {"sum/a", 0.1}, {"sum/b", -1e-300}});
    sums.begin_step(4);
    sums.take_back();
    CHECK(sums.is_taken_back());
    sums.begin_step(4);
    CHECK_FALSE(sums.is_taken_back());
    sums.take_step({{"sum/a", 0.2}, {"sum/c", 1.0 / 3.0}});
    CHECK(sums.sums() ==
          std::map<std::string, double>{{"a", 0.1 + 0.2}, {"b", -1e-300}, {"c", 1.0 / 3.0}});
    skein::train::detail::epoch_sums back;
    const sk::json extra{{"epoch_sums", sums.saved()}};
    back.restore(sk::parse_json(sk::dump_json(extra)).value(), "here");
    CHECK(back.sums() == sums.sums());
    CHECK(back.epoch() == 4);
    back.begin_step(5); // a new epoch
    back.take_step({{"sum/a", 1.0}});
    CHECK(back.sums() == std::map<std::string, double>{{"a", 1.0}});
    back.restore(sk::json::object(), "here"); // of a run that had none
    CHECK(back.sums().empty());
    for (const char* bad : {R"({"epoch_sums":[]})", R"({"epoch_sums":{"epoch":1}})",
                            R"({"epoch_sums":{"epoch":-1,"sums":{}}})",
                            R"({"epoch_sums":{"epoch":1,"sums":{"a":"soon"}}})",
                            R"({"epoch_sums":{"epoch":1,"sums":{"a":1}}})",
                            R"({"epoch_sums":{"epoch":1,"sums":{"a":"0x1p+0 0x1p+0"}}})"}) {
        INFO(bad);
        try {
            back.restore(sk::parse_json(std::string_view(bad)).value(), "step-00000003");
            FAIL_CHECK("taken");
        } catch (const sk::error& why) {
            CHECK(why.code() == sk::errc::malformed);
            CHECK_THAT(why.what(), ContainsSubstring("step-00000003"));
        }
    }
}

TEST_CASE("what cannot be added, read or left is said", "[train]") {
    scratch dir;
    auto ctx = context::single();
    auto net = make_zoo(shape::plain);
    const numbers data{samples};
    const auto why = [](const auto& call, sk::errc code) -> std::string {
        try {
            call();
        } catch (const sk::error& refused) {
            CHECK(refused.code() == code);
            return refused.what();
        }
        return "nothing was thrown";
    };
    {
        sk::Trainer<sk::DDP<>> trainer(ctx, epoch_config(dir.path));
        auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
        accumulator a(session);
        CHECK_THAT(why([&] { a["x"] += 1.0; }, sk::errc::usage),
                   ContainsSubstring("'x' is added to without a step in hand"));
        CHECK_THAT(why([&] { (void)remaining_epochs_until(session, 14, data); }, sk::errc::usage),
                   ContainsSubstring("14 epochs of a run that is 3 epochs long"));
        CHECK(a.synchronized().all().empty());
        CHECK_THAT(why([&] { (void)a.synchronized()["x"]; }, sk::errc::not_found),
                   ContainsSubstring("there are no sums"));
        const auto left = [&] {
            for (auto& epoch : remaining_epochs_until(session, epochs, data))
                for (auto& step : epoch) {
                    for (auto& micro : step) session.backward(zoo_loss(net, micro));
                    CHECK_THAT(why([&] { a[""] += 1.0; }, sk::errc::usage),
                               ContainsSubstring("without a name"));
                    a["left"] += 1.0;
                    a["left"] -= 3.0;
                    if (step.number() == 2) break;
                }
        };
        CHECK_THAT(why(left, sk::errc::usage),
                   ContainsSubstring("epoch 0 was left before its last step"));
        CHECK(a.synchronized()["left"] == -2.0);
        CHECK(a.synchronized().get("right", 7.0) == 7.0);
        CHECK_THAT(why([&] { (void)a.synchronized()["right"]; }, sk::errc::not_found),
                   ContainsSubstring("nothing was added to 'right' in epoch 0") &&
                       ContainsSubstring("\"left\""));
        session.redo();
    }
    auto by_steps = quiet_config(dir.path);
    sk::Trainer<sk::DDP<>> trainer(ctx, by_steps);
    auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
    CHECK_THAT(why([&] { (void)remaining_epochs_until(session, 2, data); }, sk::errc::usage),
               ContainsSubstring("2 epochs of a run that is 20 steps long"));
}

TEST_CASE("elastic: a rank that is lost and one that joins leave the sums as they were",
          "[train][elastic]") {
    for (const bool behind_backward : {false, true}) {
        INFO("lost behind its backward pass: " << behind_backward);
        scratch dir;
        elastic_epochs run(dir.path, 1, 3);
        std::atomic<int> done{0};
        run.threads.reserve(8);
        run.during = [&](std::uint64_t id, session&, std::uint64_t step, bool behind) {
            if (id == 1 && step == 4 && behind == behind_backward && done == 0) {
                done = 1;
                run.job.lose(1, sk::error(sk::errc::peer_lost, "killed by a test"));
                throw sk::error(sk::errc::aborted, "it is dead");
            }
            if (id == 2 && step == 7 && !behind && done == 1) {
                done = 2;
                run.start(1);
                run.job.wait_for_joiner();
            }
        };
        run.start(3);
        run.end();
        REQUIRE(run.errors.size() == 1);
        CHECK_THAT(run.errors[1], ContainsSubstring("it is dead"));
        CHECK(done == 2);
        REQUIRE(run.seen.size() == 3);
        for (const auto& [id, seen] : run.seen) {
            INFO("rank of id " << id);
            const auto all = wanted();
            REQUIRE(seen.size() == all.size());
            for (std::size_t e = id == 4 ? 1 : 0; e < all.size(); ++e) CHECK(seen[e] == all[e]);
        }
    }
}

TEST_CASE("with logical shards sums of fractions have the bits of one rank") {
    std::vector<all_sums> seen;
    for (const int ranks : {1, 2, 3}) {
        scratch dir;
        std::mutex guard;
        run_world(ranks, [&](context& ctx) {
            auto config = epoch_config(dir.path);
            config.scaling.logical_shards = 4;
            sk::Trainer<sk::DDP<>> trainer(ctx, config);
            auto net = make_zoo(shape::plain);
            const numbers data{samples};
            auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
            accumulator a(session);
            all_sums mine;
            for (auto& epoch : remaining_epochs_until(session, epochs, data)) {
                for (auto& step : epoch)
                    for (auto& micro : step) {
                        session.backward(zoo_loss(net, micro));
                        for (const auto id : micro.ids) a["x"] += std::sin(double(id));
                    }
                mine.push_back(a.synchronized().all());
            }
            (void)session.finish();
            const std::lock_guard lock(guard);
            seen.push_back(std::move(mine));
        });
    }
    REQUIRE(seen.size() == 6);
    for (const auto& each : seen) CHECK(each == seen[0]);
}

} // namespace accumulator_test
