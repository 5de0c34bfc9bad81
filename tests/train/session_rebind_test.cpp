// SPDX-License-Identifier: Apache-2.0
// A session that goes on in another generation of its world: the same ranks, fewer ones, and those
// that cannot.
#include <skein/train/batch_growth.hpp>

#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <atomic>
#include <memory>
#include <stdexcept>

using namespace train_test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Where the rank that breaks the world does so.
enum class breaks { nowhere, in_the_middle, computed, agreed, one_agreed, applied };

struct change {
    std::vector<std::string> before; ///< hosts of the ranks
    std::vector<int> goes_on;        ///< ranks of before, in their new order
    std::uint64_t step = 5;          ///< that is under way
    breaks where = breaks::computed;
    std::string model = "shm";
};

struct seen {
    std::vector<float> weights;
    std::vector<std::uint64_t> order; ///< samples of rank 0
    std::uint64_t steps = 0;
    bool broke = false;
    std::vector<std::optional<sk::error>> errors; ///< by rank of before
};

/// What is done in a step; the rank that breaks the world throws.
template <class Range, class Session>
void train_on(Range& steps, Session& session, Zoo& net, const change& c, bool breaker, seen* out) {
    for (auto& step : steps) {
        const bool now = breaker && step.number() == c.step;
        std::vector<std::uint64_t> ids;
        for (auto& micro : step) {
            ids.insert(ids.end(), micro.ids.begin(), micro.ids.end());
            session.backward(zoo_loss(net, micro));
            if (now && c.where == breaks::in_the_middle) throw std::runtime_error("broken");
        }
        if (now && c.where == breaks::computed) throw std::runtime_error("broken");
        session.agree();
        const bool all = c.where == breaks::agreed && c.step == step.number();
        if (all && !std::exchange(out->broke, true)) throw std::runtime_error("broken");
        if (now && c.where == breaks::one_agreed) throw std::runtime_error("broken");
        out->order.insert(out->order.end(), ids.begin(), ids.end());
        if (c.where != breaks::applied || step.number() != c.step) continue;
        session.apply();
        if (!std::exchange(out->broke, true)) throw std::runtime_error("broken");
    }
}

/// body(rank) on as many threads; the errors by rank.
std::vector<std::optional<sk::error>> on_threads(int n, const std::function<void(int)>& body) {
    std::vector<std::optional<sk::error>> errors(static_cast<std::size_t>(n));
    std::vector<std::thread> threads;
    for (int r = 0; r < n; ++r)
        threads.emplace_back([&, r] {
            try {
                at::set_num_threads(1);
                body(r);
            } catch (...) {
                errors[static_cast<std::size_t>(r)] = sk::to_error(std::current_exception());
            }
        });
    for (auto& t : threads) t.join();
    return errors;
}

world_info place_of(int rank, int size) {
    world_info where;
    where.rank = where.local_rank = rank;
    where.world_size = where.local_size = size;
    where.host = "here";
    return where;
}

std::unique_ptr<sk::dist::comm_thread> meet(sk::spmd::rendezvous& world, const std::string& model) {
    sk::dist::comm_options options;
    options.model = model;
    return sk::dist::make_comm_thread(world, options);
}

/// All ranks train; one breaks the world (the last of before, or the first that does not go on);
/// those that go on meet in a second world.
template <class Strategy, class... Rules>
seen change_worlds(const run_config& config, const change& c, shape kind = shape::plain,
                   Rules... rules) {
    sk::sim::local_world first(c.before);
    std::vector<std::string> hosts;
    for (const int r : c.goes_on) hosts.push_back(c.before[static_cast<std::size_t>(r)]);
    sk::sim::local_world second(hosts);
    const int n = static_cast<int>(c.before.size());
    seen out;
    out.errors.resize(c.before.size());
    int breaker = n - 1;
    for (int r = n; r-- > 0;)
        if (std::ranges::find(c.goes_on, r) == c.goes_on.end()) breaker = r;

    const auto body = [&](int r) {
        auto comm = meet(first.at(r), c.model);
        std::unique_ptr<sk::dist::comm_thread> again; // outlives what uses it, as comm does
        context ctx(place_of(r, n), &first.at(r), comm.get());
        sk::dist::comm_options options;
        options.model = c.model;
        ctx.use_options(options);
        auto net = make_zoo(kind);
        const numbers data{64};
        sk::Trainer<Strategy, Rules...> trainer(ctx, config, rules...);
        auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
        auto steps = session.steps(data);
        seen mine;
        try {
            train_on(steps, session, net, c, r == breaker && c.where != breaks::nowhere, &mine);
        } catch (const std::exception& why) {
            const bool on_purpose = std::string(why.what()) == "broken";
            const auto found = std::ranges::find(c.goes_on, r);
            if (on_purpose) session.abort(sk::error(sk::errc::aborted, "the network is gone"));
            if (found == c.goes_on.end()) throw;
            const auto now = static_cast<int>(found - c.goes_on.begin());
            const auto size = static_cast<int>(c.goes_on.size());
            if (size > 1) again = meet(second.at(now), c.model);
            ctx.rebind(place_of(now, size), size > 1 ? &second.at(now) : nullptr, again.get());
            session.rebind();
            train_on(steps, session, net, c, false, &mine);
        }
        mine.steps = session.finish().steps;
        if (!ctx.is_first()) return;
        mine.weights = weights(*net);
        out.weights = mine.weights;
        out.order = mine.order;
        out.steps = mine.steps;
    };
    std::vector<std::thread> threads;
    for (int r = 0; r < n; ++r)
        threads.emplace_back([&, r] {
            try {
                at::set_num_threads(1);
                body(r);
            } catch (...) {
                out.errors[static_cast<std::size_t>(r)] = sk::to_error(std::current_exception());
            }
        });
    for (auto& t : threads) t.join();
    return out;
}

run_config short_config(const scratch& dir, std::int64_t steps = 9) {
    auto config = quiet_config(dir.path);
    config.max_steps = steps;
    return config;
}

/// The same ranks meet again: nothing shows that they were apart.
template <class Strategy>
void same_ranks(const std::vector<std::string>& hosts, const std::string& model) {
    scratch dir;
    change c{.before = hosts, .goes_on = {}, .model = model};
    for (int r = 0; r < static_cast<int>(hosts.size()); ++r) c.goes_on.push_back(r);
    c.where = breaks::nowhere;
    const auto whole = change_worlds<Strategy>(short_config(dir), c);
    for (const auto& e : whole.errors) CHECK(!e);
    for (const auto where :
         {breaks::in_the_middle, breaks::computed, breaks::agreed, breaks::applied}) {
        INFO(model << " x" << hosts.size() << ", broken at " << static_cast<int>(where));
        c.where = where;
        const auto again = change_worlds<Strategy>(short_config(dir), c);
        for (const auto& e : again.errors) CHECK((e ? std::string(e->what()) : "") == "");
        CHECK(again.weights == whole.weights);
        CHECK(again.order == whole.order);
        CHECK(again.steps == 9);
    }
}

const std::vector<std::string> one_host{"a", "a"}, two_hosts{"a", "b"};

} // namespace

TEST_CASE(
    "a batch that has grown goes on in another generation of the world, and the run ends with "
    "the sample that it would have") {
    const sk::batch_growth rule({.at_steps = {3, 6}});
    for (const int ranks : {2, 3}) {
        scratch dir;
        auto config = short_config(dir, 20);
        config.last = last_batch::shorten;
        change c{.before = std::vector<std::string>(static_cast<std::size_t>(ranks), "a"),
                 .goes_on = {}};
        for (int r = 0; r < ranks; ++r) c.goes_on.push_back(r);
        c.where = breaks::nowhere;
        const auto whole = change_worlds<sk::DDP<tiny_buckets>>(config, c, shape::plain, rule);
        for (const auto& e : whole.errors) CHECK(!e);
        CHECK(whole.steps < 12);
        for (const auto where :
             {breaks::in_the_middle, breaks::computed, breaks::agreed, breaks::applied})
            for (const std::uint64_t step : {4u, 5u, 7u}) {
                c.where = where;
                c.step = step;
                INFO(ranks << " ranks, step " << step << ", " << static_cast<int>(where));
                const auto parted =
                    change_worlds<sk::DDP<tiny_buckets>>(config, c, shape::plain, rule);
                CHECK(parted.steps == whole.steps);
                CHECK(parted.order == whole.order);
                CHECK(parted.weights == whole.weights);
            }
    }
}

TEST_CASE("ranks whose exchange broke meet again and go on as if nothing had been: DDP and ZeRO") {
    same_ranks<sk::DDP<tiny_buckets>>(one_host, "shm");
    same_ranks<sk::DDP<tiny_buckets>>(two_hosts, "ring");
    same_ranks<sk::Zero1<>>(one_host, "shm");
    same_ranks<sk::Zero2<>>(two_hosts, "ring");
}

TEST_CASE("ranks whose exchange broke meet again and go on as if nothing had been: FSDP, Hybrid") {
    same_ranks<sk::FSDP<sk::auto_wrap<Cell>>>(one_host, "shm");
    same_ranks<sk::FSDP<sk::auto_wrap<Cell>>>(two_hosts, "ring");
    same_ranks<sk::Hybrid<sk::auto_wrap<Cell>>>({"a", "a", "b", "b"}, "automatic");
}

TEST_CASE("DDP goes on with the ranks that are left, with the bits of a resume from a checkpoint") {
    for (const auto& [goes_on, model] :
         {std::pair{std::vector{0, 1}, "ring"}, std::pair{std::vector{2, 1}, "shm"},
          std::pair{std::vector{1}, "shm"}}) {
        INFO(goes_on.size() << " ranks, first " << goes_on[0] << ", " << model);
        change c{.before = {"a", "a", "a"}, .goes_on = goes_on, .model = model};
        if (c.model == "ring") c.before = {"a", "b", "c"};
        scratch one, two;
        auto config = short_config(one);
        config.write_files = config.checkpoint.enabled = true;
        config.checkpoint.every = 3;
        const auto changed = change_worlds<sk::DDP<tiny_buckets>>(config, c);
        for (const int r : goes_on) CHECK(!changed.errors[static_cast<std::size_t>(r)]);
        CHECK(changed.steps == 9);

        config.runs_dir = two.path;
        config.max_steps = 4;
        c.where = breaks::nowhere;
        c.goes_on.clear();
        (void)change_worlds<sk::DDP<tiny_buckets>>(config, c);
        config.max_steps = 9;
        config.resume = resume_mode::latest;
        c.before.resize(goes_on.size());
        const auto resumed = change_worlds<sk::DDP<tiny_buckets>>(config, c);
        CHECK(changed.weights == resumed.weights);
        CHECK(one.text("run/metrics.csv") == two.text("run/metrics.csv"));
    }
}

TEST_CASE("hybrid sharding goes on when a host is lost, close to a run on the host that is left") {
    scratch dir;
    using hybrid = sk::Hybrid<sk::auto_wrap<Cell>>;
    change c{.before = {"a", "a", "b", "b"}, .goes_on = {2, 3}, .model = "automatic"};
    const auto changed = change_worlds<hybrid>(short_config(dir), c);
    CHECK(!changed.errors[2]);
    CHECK(!changed.errors[3]);
    c.where = breaks::nowhere;
    c.before = {"a"};
    c.goes_on.clear();
    const auto alone = change_worlds<sk::Single>(short_config(dir), c);
    CHECK(changed.steps == 9);
    CHECK(relative_error(changed.weights, alone.weights) < 1e-6);
}

TEST_CASE("a world in which somebody has no part, or another step, is refused on every rank") {
    scratch dir;
    const auto refused = [&](const seen& out, const change& c, sk::errc code, const char* words) {
        for (const int r : c.goes_on) {
            const auto& why = out.errors[static_cast<std::size_t>(r)];
            REQUIRE(why);
            INFO("rank " << r << ": " << why->what());
            CHECK(why->code() == code);
            CHECK_THAT(why->what(), ContainsSubstring(words) && ContainsSubstring("checkpoint"));
        }
    };
    for (const auto* model : {"shm", "ring"}) {
        change c{.before = {"a", "a", "a"}, .goes_on = {0, 1}, .model = model};
        if (c.model == "ring") c.before = {"a", "b", "c"};
        refused(change_worlds<sk::FSDP<sk::auto_wrap<Cell>>>(short_config(dir), c), c,
                sk::errc::not_supported, "rank 0 has part 0 of 3, and would have 0 of 2");
    }
    change turned{.before = one_host, .goes_on = {1, 0}};
    refused(change_worlds<sk::Zero1<>>(short_config(dir), turned), turned, sk::errc::not_supported,
            "rank 0 has part 1 of 2, and would have 0 of 2");
    change late{.before = one_host, .goes_on = {0, 1}, .where = breaks::one_agreed};
    refused(change_worlds<sk::DDP<>>(short_config(dir), late), late, sk::errc::mismatch,
            "rank 0 comes with step 5, rank 1 with step 4");
}

TEST_CASE("a rank that was not there from the beginning is refused, with the rank") {
    scratch dir;
    sk::sim::local_world second(2);
    const auto join = [&](int r) {
        auto comm = meet(second.at(r), "shm");
        const auto config = short_config(dir);
        const numbers data{64};
        auto net = make_zoo(shape::plain);
        context ctx = r == 0 ? context::single() // and the other one begins in the world
                             : context(place_of(1, 2), &second.at(1), comm.get());
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
        const auto steps = session.steps(data);
        (void)steps;
        ctx.rebind(place_of(r, 2), &second.at(r), comm.get());
        session.rebind();
    };
    const auto errors = on_threads(2, join);
    for (const auto& why : errors) REQUIRE(why);
    INFO(errors[0]->what() << " | " << errors[1]->what());
    CHECK(errors[0]->code() == sk::errc::not_supported);
    CHECK_THAT(errors[0]->what(), ContainsSubstring("rank 1 begins anew"));
}

namespace {

/// Breaks once, in the place and at the rank that a test chose.
struct break_once {
    bool* armed;
    void on_eval(const eval_info& e) {
        if (e.rank == 1 && e.step == 4 && std::exchange(*armed, false))
            throw sk::error(sk::errc::io, "broken after an evaluation");
    }
};

} // namespace

TEST_CASE("an evaluation of the averaged weights, or a checkpoint, that broke is made up for") {
    struct outcome {
        std::vector<float> weights;
        std::string rows;
        bool saved = false;
    };
    const auto run = [](bool breaks_loss, bool breaks_after) {
        scratch dir;
        auto config = short_config(dir, 4);
        config.write_files = config.checkpoint.enabled = true;
        config.eval_every = config.checkpoint.every = 2;
        sk::sim::local_world first(2), second(2);
        outcome out;
        const auto body = [&](int r) {
            auto comm = meet(first.at(r), "shm");
            std::unique_ptr<sk::dist::comm_thread> again;
            context ctx(place_of(r, 2), &first.at(r), comm.get());
            auto net = make_zoo(shape::plain);
            const numbers data{64}, held_out{10};
            bool loss_breaks = breaks_loss && r == 1, armed = breaks_after;
            int evaluated = 0;
            auto loss = [&](Zoo& m, const sample_batch& b) {
                // In the second evaluation, with the averages in place of the weights.
                if (!m->is_training() && ++evaluated == 2 && std::exchange(loss_breaks, false))
                    throw sk::error(sk::errc::io, "broken in an evaluation");
                return zoo_loss(m, b);
            };
            sk::Trainer<sk::Zero1<>, break_once> trainer(ctx, config, break_once{&armed});
            optimizer_options options = sk::AdamW{};
            options.more.average = sk::average_options{.decay = 0.9, .evaluate = true};
            auto session = trainer.open(net, options, constant_rate{1e-2});
            session.evaluate_on(net, loss, held_out);
            auto steps = session.steps(data);
            const auto all = [&] {
                for (auto& step : steps)
                    for (auto& micro : step) session.backward(zoo_loss(net, micro));
            };
            try {
                all();
            } catch (const sk::error& why) {
                session.abort(why);
                again = meet(second.at(r), "shm");
                ctx.rebind(place_of(r, 2), &second.at(r), again.get());
                session.rebind();
                all();
            }
            const auto result = session.finish();
            if (r != 0) return;
            out.weights = weights(*net);
            out.rows = dir.text("run/metrics.csv");
            out.saved = result.checkpoint.ends_with("step-00000004");
        };
        const auto errors = on_threads(2, body);
        for (const auto& e : errors) CHECK((e ? std::string(e->what()) : "") == "");
        return out;
    };
    const auto whole = run(false, false);
    CHECK(whole.saved);
    for (const bool in_the_loss : {true, false}) {
        INFO("broken in the evaluation: " << in_the_loss);
        const auto again = run(in_the_loss, !in_the_loss);
        CHECK(again.weights == whole.weights);
        CHECK(again.rows == whole.rows);
        CHECK(again.saved);
    }
}

TEST_CASE("two trainings that began apart do not become one") {
    scratch dir;
    sk::sim::local_world second(2);
    std::vector<std::optional<sk::error>> errors(2);
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r)
        threads.emplace_back([&, r] {
            try {
                auto comm = meet(second.at(r), "shm");
                const auto config = short_config(dir);
                const numbers data{64};
                auto net = make_zoo(shape::plain);
                context ctx = context::single();
                sk::Trainer<sk::DDP<>> trainer(ctx, config);
                auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
                const auto steps = session.steps(data);
                (void)steps;
                ctx.rebind(place_of(r, 2), &second.at(r), comm.get());
                session.rebind();
            } catch (...) {
                errors[static_cast<std::size_t>(r)] = sk::to_error(std::current_exception());
            }
        });
    for (auto& t : threads) t.join();
    for (const auto& why : errors) REQUIRE(why);
    CHECK((errors[0]->code() == sk::errc::not_supported ||
           errors[1]->code() == sk::errc::not_supported));
}

TEST_CASE("a session that has not begun has nothing to go on with") {
    scratch dir;
    auto ctx = context::single();
    auto net = make_zoo(shape::plain);
    const auto config = short_config(dir);
    sk::Trainer<sk::Single> trainer(ctx, config);
    auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
    try {
        session.rebind();
        FAIL("went on");
    } catch (const sk::error& why) {
        CHECK(why.code() == sk::errc::usage);
        CHECK_THAT(why.what(), ContainsSubstring("has not begun"));
    }
}
