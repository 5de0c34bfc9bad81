// SPDX-License-Identifier: Apache-2.0
// Streams, and batches that are made ahead: what a run takes from its data, and when.
#include <skein/train/input.hpp>

#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

using namespace train_test;
using Catch::Matchers::ContainsSubstring;

namespace {

using id_list = std::vector<std::uint64_t>;

/// This rank's samples of an epoch: rank * 100, rank * 100 + 1, ...; each epoch starts 10 further.
struct countdown {
    std::uint64_t length = 20; ///< samples of this rank and epoch
    std::uint64_t place = 0, epoch = 0;

    struct counted : sample_batch {
        [[nodiscard]] std::uint64_t samples() const { return ids.size(); }
    };
    std::optional<counted> next(const stream_share& share) {
        if (share.epoch != epoch) {
            epoch = share.epoch;
            place = 0;
        }
        const auto count = std::min(share.samples, length - place);
        if (count == 0) return std::nullopt;
        id_list ids;
        for (std::uint64_t i = 0; i < count; ++i)
            ids.push_back(static_cast<std::uint64_t>(share.rank) * 100 + 10 * epoch + place++);
        return counted{numbers{1000}.batch(ids)};
    }
    [[nodiscard]] std::string state() const { return fmt::format("{} {}", epoch, place); }
    void restore(std::string_view saved) {
        const auto space = saved.find(' ');
        epoch = std::stoull(std::string(saved.substr(0, space)));
        place = std::stoull(std::string(saved.substr(space)));
    }
};

/// Counts what is asked of it on another thread than its own.
struct traveller : countdown {
    std::thread::id home;
    std::atomic<int>* away;
    [[nodiscard]] std::optional<counted> next(const stream_share& share) {
        if (std::this_thread::get_id() != home) *away += 1;
        return countdown::next(share);
    }
};

struct stream_run {
    std::map<int, id_list> order; ///< by rank
    std::vector<float> weights;
    fit_result result;
};

/// Trains every rank on a stream of its own length; rank 0 asks for a stop after some step.
stream_run train_stream(const std::vector<std::uint64_t>& lengths, const run_config& config,
                        std::uint64_t stop_after = 0) {
    stream_run out;
    std::mutex guard;
    std::atomic<bool> stop{false};
    run_world(static_cast<int>(lengths.size()), [&](context& ctx) {
        if (ctx.is_first()) ctx.watch_stop_flag(&stop);
        auto net = make_net();
        countdown stream{.length = lengths[static_cast<std::size_t>(ctx.rank())]};
        id_list order;
        std::uint64_t calls = 0;
        const auto loss = [&](Net& m, const sample_batch& b) {
            if (m->is_training()) order.insert(order.end(), b.ids.begin(), b.ids.end());
            if (m->is_training() && ctx.is_first() && ++calls == stop_after) stop = true;
            return class_loss(m, b);
        };
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        const auto r = trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, loss, stream, numbers{6});
        const std::lock_guard lock(guard);
        out.order[ctx.rank()] = order;
        if (!ctx.is_first()) return;
        out.weights = weights(*net);
        out.result = r;
    });
    return out;
}

run_config stream_config(const scratch& dir, int ahead) {
    auto config = quiet_config(dir.path);
    config.global_batch = 4;
    config.max_steps = 12;
    config.prefetch_batches = ahead;
    return config;
}

static_assert(batch_stream<countdown> && !data_source<countdown>);
static_assert(data_source<numbers> && !batch_stream<numbers>);

} // namespace

TEST_CASE("a stream's batches are made ahead on another thread") {
    for (const int ahead : {0, 2}) {
        scratch dir;
        std::atomic<int> away{0};
        auto ctx = context::single();
        auto net = make_net();
        traveller stream{{.length = 1000}, std::this_thread::get_id(), &away};
        sk::Trainer<sk::Single> trainer(ctx, stream_config(dir, ahead));
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, class_loss, stream, numbers{6});
        CHECK((away > 0) == (ahead > 0));
    }
}

TEST_CASE("a stream's epoch ends on all ranks with the first that has no whole batch left") {
    for (const int ahead : {0, 1, 3}) {
        scratch dir;
        auto config = stream_config(dir, ahead);
        config.epochs = 2;
        const auto run = train_stream({20, 6}, config); // ranks take 2 samples a step
        CHECK(run.result.steps == 6);
        CHECK(run.result.total == 6);
        CHECK_FALSE(run.result.stopped);
        CHECK(run.result.val_step == 6); // evaluated at the end, though nobody knew how many steps
        CHECK(run.order.at(0) == id_list{0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15});
        CHECK(run.order.at(1) ==
              id_list{100, 101, 102, 103, 104, 105, 110, 111, 112, 113, 114, 115});
    }
}

TEST_CASE("a short last batch of a stream is what the ranks have, and counts by its samples") {
    for (const int ahead : {0, 2}) {
        scratch dir;
        auto config = stream_config(dir, ahead);
        config.epochs = 2;
        config.last = last_batch::shorten;
        const auto run = train_stream({20, 4}, config);
        CHECK(run.result.steps == 6); // two whole ones and one of rank 0 alone, twice
        CHECK(run.order.at(0) == id_list{0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15});
        CHECK(run.order.at(1) == id_list{100, 101, 102, 103, 110, 111, 112, 113});
    }
}

TEST_CASE("a run on streams goes on where it was interrupted, whatever was made ahead") {
    for (const int world : {1, 2}) {
        scratch one;
        const std::vector<std::uint64_t> lengths(static_cast<std::size_t>(world), 17);
        auto config = stream_config(one, 0);
        config.checkpoint.enabled = true;
        const auto whole = train_stream(lengths, config);
        for (const int ahead : {0, 1, 4}) {
            scratch two;
            config = stream_config(two, ahead);
            config.checkpoint.enabled = true;
            CHECK(train_stream(lengths, config).weights == whole.weights);
            config.name = "interrupted";
            auto first = train_stream(lengths, config, /*stop_after=*/7);
            CHECK(first.result.steps == 7);
            config.resume = resume_mode::latest;
            const auto second = train_stream(lengths, config);
            CHECK(second.result.first_step == 7);
            CHECK(second.weights == whole.weights);
            for (auto& [rank, ids] : first.order) {
                const auto& rest = second.order.at(rank);
                ids.insert(ids.end(), rest.begin(), rest.end());
                CHECK(ids == whole.order.at(rank));
            }
        }
    }
}

TEST_CASE("streams that no step can be made of, or of another number of ranks, are refused") {
    scratch dir;
    auto config = stream_config(dir, 1);
    const auto text = [&](const std::vector<std::uint64_t>& lengths) {
        try {
            (void)train_stream(lengths, config);
        } catch (const sk::error& why) {
            return std::string(why.what());
        }
        return std::string("trained");
    };
    CHECK_THAT(text({20, 0}), ContainsSubstring("does not fill one global batch of 4 samples"));
    config.last = last_batch::carry;
    CHECK_THAT(text({20}), ContainsSubstring("cannot carry samples over"));
    config.last = last_batch::drop;
    config.checkpoint.enabled = true;
    config.max_steps = 3;
    CHECK(text({20, 12}) == "trained");
    config.resume = resume_mode::latest;
    config.max_steps = 6;
    config.global_batch = 6; // two for each of three, as before
    const auto before = text({20, 12, 12});
    CHECK(before == "trained"); // all were at the same place: one state for all
    config.name = "apart";
    config.resume = resume_mode::fresh;
    CHECK(text({20}) == "trained");
    config.resume = resume_mode::latest;
    config.max_steps = 9;
    auto ctx = context::single();
    auto net = make_net();
    sk::Trainer<sk::Single> trainer(ctx, config);
    try {
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, class_loss, numbers{64},
                          numbers{0});
        FAIL("data of a size went on where a stream had been");
    } catch (const sk::error& why) {
        CHECK(why.code() == sk::errc::mismatch);
        CHECK_THAT(why.what(), ContainsSubstring("started on a stream"));
    }
}

// ---- made ahead ---------------------------------------------------------------------------------

namespace {

/// Notes who asks for what; may throw at a call, and may draw from torch's generator.
struct observed : numbers {
    struct log {
        std::mutex guard;
        std::vector<std::thread::id> threads;
        std::vector<id_list> asked;
        std::atomic<int> inside{0}, most{0};
    };
    std::shared_ptr<log> seen = std::make_shared<log>();
    std::size_t throws_at = 0;
    bool draws = false;

    [[nodiscard]] sample_batch batch(std::span<const std::uint64_t> ids) const {
        seen->most = std::max(seen->most.load(), ++seen->inside);
        std::size_t number = 0;
        {
            const std::lock_guard lock(seen->guard);
            seen->threads.push_back(std::this_thread::get_id());
            seen->asked.emplace_back(ids.begin(), ids.end());
            number = seen->asked.size();
        }
        auto out = numbers::batch(ids);
        if (draws) out.x = out.x + 0.1 * torch::rand({8});
        --seen->inside;
        if (number == throws_at) throw std::out_of_range("no such page");
        return out;
    }
};

struct ahead_run {
    std::vector<float> weights;
    std::vector<id_list> used;
    std::shared_ptr<observed::log> seen;
};

ahead_run train_ahead(const scratch& dir, int ahead, observed data = {}, int accumulation = 1) {
    auto config = quiet_config(dir.path);
    config.max_steps = 7;
    config.eval_every = 2;
    config.accumulation = accumulation;
    config.prefetch_batches = ahead;
    auto ctx = context::single();
    auto net = make_net();
    ahead_run out;
    out.seen = data.seen;
    const auto loss = [&](Net& m, const sample_batch& b) {
        if (m->is_training()) out.used.push_back(b.ids);
        const auto x = torch::nn::functional::dropout(
            b.x, torch::nn::functional::DropoutFuncOptions().p(0.3).training(m->is_training()));
        return torch::nn::functional::cross_entropy(m->forward(x), b.y);
    };
    sk::Trainer<sk::Single> trainer(ctx, config);
    (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, loss, data, data);
    out.weights = weights(*net);
    return out;
}

} // namespace

TEST_CASE("batches made ahead come from one other thread, in order, and change no bit") {
    scratch dir;
    const auto here = std::this_thread::get_id();
    for (const int parts : {1, 3}) {
        const auto plain = train_ahead(dir, 0, {}, parts);
        for (const auto& thread : plain.seen->threads) CHECK(thread == here);
        for (const int ahead : {1, 3}) {
            const auto run = train_ahead(dir, ahead, {}, parts);
            CHECK(run.weights == plain.weights);
            CHECK(run.used == plain.used);
            CHECK(run.seen->most == 1); // never beside an evaluation of the same data
            std::size_t elsewhere = 0;
            std::vector<id_list> made;
            for (std::size_t i = 0; i < run.seen->threads.size(); ++i)
                elsewhere += run.seen->threads[i] != here ? 1 : 0;
            CHECK(elsewhere ==
                  6 * static_cast<std::size_t>(parts)); // all but those of the first step
        }
    }
}

TEST_CASE("data that draws from torch's generator is left on the thread that computes") {
    scratch dir;
    observed drawing;
    drawing.draws = true;
    const auto plain = train_ahead(dir, 0, drawing);
    drawing.seen = std::make_shared<observed::log>();
    const auto run = train_ahead(dir, 2, drawing);
    CHECK(run.weights == plain.weights);
    for (const auto& thread : run.seen->threads) CHECK(thread == std::this_thread::get_id());
}

TEST_CASE("what the data throws ahead of time is told at the step it belongs to, as without") {
    for (const int ahead : {0, 2}) {
        scratch dir;
        auto config = quiet_config(dir.path);
        config.prefetch_batches = ahead;
        observed data;
        data.throws_at = 4;
        auto ctx = context::single();
        auto net = make_net();
        int steps = 0;
        const auto loss = [&](Net& m, const sample_batch& b) {
            ++steps;
            return class_loss(m, b);
        };
        sk::Trainer<sk::Single> trainer(ctx, config);
        try {
            (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, loss, data, numbers{0});
            FAIL("trained");
        } catch (const sk::error& why) {
            CHECK(why.code() == sk::errc::invalid_argument);
            CHECK_THAT(why.what(), ContainsSubstring("the loss threw std::out_of_range on rank 0 "
                                                     "at step 4: no such page"));
        }
        CHECK(steps == 3);
    }
}

TEST_CASE("a session that ends in the middle waits for the batch that is being made") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.prefetch_batches = 3;
    observed data;
    {
        auto ctx = context::single();
        auto net = make_net();
        sk::Trainer<sk::Single> trainer(ctx, config);
        auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
        for (auto& step : session.steps(data)) {
            for (auto& micro : step) session.backward(class_loss(net, micro));
            if (step.number() == 3) break;
        }
    }
    CHECK(data.seen->inside == 0);
    CHECK(data.seen->asked.size() == 6);
}

TEST_CASE("epochs are steps by the size of the data, and what becomes of its end is told") {
    struct keep {
        start_info* out;
        void on_start(const start_info& s) { *out = s; }
    };
    scratch dir;
    const auto train = [&](last_batch last, std::vector<std::size_t>& sizes) {
        auto config = quiet_config(dir.path);
        config.epochs = 2;
        config.last = last;
        auto ctx = context::single();
        auto net = make_net();
        start_info start;
        const auto loss = [&](Net& m, const sample_batch& b) {
            sizes.push_back(b.ids.size());
            return class_loss(m, b);
        };
        sk::Trainer<sk::Single, keep> trainer(ctx, config, keep{&start});
        const auto r =
            trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, loss, numbers{30}, numbers{0});
        CHECK(r.steps == start.total_steps);
        return start;
    };
    std::vector<std::size_t> drop, shorten, carry;
    CHECK(train(last_batch::drop, drop).epochs ==
          "2 epochs of 30 samples, the last 6 of each left out");
    CHECK(drop == std::vector<std::size_t>(4, 12));
    CHECK(train(last_batch::shorten, shorten).epochs ==
          "2 epochs of 30 samples, the last 6 of each a short batch");
    CHECK(shorten == std::vector<std::size_t>{12, 12, 6, 12, 12, 6});
    CHECK_THAT(train(last_batch::carry, carry).epochs, ContainsSubstring("carried over"));
    CHECK(carry == std::vector<std::size_t>(5, 12));
}
